"""Routes of a whole cluster from those of one and two nodes; more are in `test_cluster`."""

import numpy as np

from simrank.hardware import load_cluster


def test_routes_do_not_depend_on_what_was_asked_before():
    """Next edges are looked up as they are needed; asking for others in between changes nothing."""
    reference, cluster = (load_cluster({"name": "h100_ib", "nodes": 3}) for _ in range(2))
    src, dst = (part.ravel() for part in np.indices((24, 24)))
    whole = reference.paths(src, dst)
    for seed in range(3):
        some = np.random.default_rng(seed).permutation(len(src))[:40]
        found = cluster.paths(src[some], dst[some])
        width = found.links.shape[1]
        assert np.array_equal(found.links, whole.links[some, :width])
        assert np.array_equal(found.latency_ps, whole.latency_ps[some])


def test_a_large_ring_knows_its_neighbours():
    """A thousand devices without a switch: either way around, the shorter one."""
    links = [
        {"between": [f"gpu{i}", f"gpu{(i + 1) % 1000}"], "bandwidth": "1 GB/s", "latency": "1 us"}
        for i in range(1000)
    ]
    device = {"like": "hgx_h100", "count": 1000}
    cluster = load_cluster({"name": "r", "source": "assumed", "device": device, "links": links})
    assert cluster.paths([0, 0, 999], [1, 999, 9]).latency_ps.tolist() == [10**6, 10**6, 10**7]
