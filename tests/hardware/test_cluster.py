"""Clusters as numbers: links, routes, changed copies."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simrank.config import builtin_clusters
from simrank.hardware import load_cluster

DEVICE = {
    "name": "toy",
    "memory": "1 GB",
    "memory_bandwidth": "1 TB/s",
    "num_sms": 10,
    "peak_flops": {"float32": "1 TFLOPS"},
    "kernel_floor": "1 us",
    "launch_overhead": "0 us",
    "host_link": "10 GB/s",
}
COLLECTIVES = {
    "launch_latency": "1 us",
    "step_overhead": "1 us",
    "num_channels": 1,
    "buffer": "4 MiB",
}


def link(first, second, bandwidth="100 GB/s", latency="1 us"):
    """Return one entry of `links`."""
    return {"between": [first, second], "bandwidth": bandwidth, "latency": latency}


def own_cluster(count, links, **keys):
    """Build a cluster of toy devices."""
    device = DEVICE | {"count": count}
    base = {"name": "own", "source": "assumed", "device": device, "collectives": COLLECTIVES}
    return load_cluster(base | {"links": links} | keys)


def route(cluster, src, dst):
    """Return the names of the links from one device to another."""
    links = cluster.paths(src, dst).links[0]
    return [cluster.link_name(int(index)) for index in links if index < cluster.num_links]


def test_a_pair_behind_a_switch_uses_two_directed_links():
    """Up from the source, down to the target; one LL step of 0.6 us in all."""
    cluster = load_cluster("hgx_h100")

    assert route(cluster, 3, 5) == ["node 0: gpu3 -> nvswitch", "node 0: nvswitch -> gpu5"]
    assert cluster.paths(3, 5).latency_ps.tolist() == [600_000]


def test_a_device_reaches_itself_without_links():
    """A local copy has no links and no latency."""
    paths = load_cluster("hgx_h100").paths([0, 1], [0, 2])

    assert paths.links[0].tolist() == [16, 16]
    assert paths.latency_ps.tolist() == [0, 600_000]


def test_the_last_link_is_a_dummy_that_costs_nothing():
    """So padded routes need no special case."""
    cluster = load_cluster("hgx_h100")

    assert cluster.link_bandwidth_bytes_per_s[cluster.num_links] == np.inf
    assert cluster.link_latency_ps[cluster.num_links] == 0
    assert cluster.link_name(cluster.num_links) == "no link"


def test_one_rail_is_taken_where_both_gpus_are_on_it():
    """GPU k to GPU k of another node goes over rail k and touches no NVSwitch."""
    assert route(load_cluster("h100_ib", nodes=4), 1, 25) == [
        "node 0: gpu1 -> nic1",
        "node 0: nic1 -> rail1",
        "node 3: rail1 -> nic1",
        "node 3: nic1 -> gpu1",
    ]


def test_a_pair_on_two_rails_changes_rail_in_the_source_node():
    """As NCCL's PXN: NVSwitch first, then the target's rail."""
    assert route(load_cluster("h100_ib"), 0, 13) == [
        "node 0: gpu0 -> nvswitch",
        "node 0: nvswitch -> gpu5",
        "node 0: gpu5 -> nic5",
        "node 0: nic5 -> rail5",
        "node 1: rail5 -> nic5",
        "node 1: nic5 -> gpu5",
    ]


def test_links_between_switches_of_the_fabric_exist_once():
    """A leaf and spine fabric: only pairs on different leaves cross the spine."""
    fabric = {
        "switches": ["leaf0..1", "spine"],
        "links": [link("each gpu", "same leaf"), link("each leaf", "spine")],
    }
    cluster = own_cluster(2, [], fabric=fabric, nodes=3)

    assert route(cluster, 0, 4) == ["node 0: gpu0 -> leaf0", "node 2: leaf0 -> gpu0"]
    assert route(cluster, 1, 2) == [
        "node 0: gpu1 -> leaf1",
        "leaf1 -> spine",
        "spine -> leaf0",
        "node 1: leaf0 -> gpu0",
    ]
    assert len(route(cluster, 0, 1)) == 4
    assert cluster.num_links == 3 * 4 + 4


def test_latency_decides_a_route_before_the_number_of_links():
    """Three fast links win over one slow one; of equal latency, the fewest links win."""
    fast = [link("gpu0", "gpu1"), link("gpu1", "gpu2"), link("gpu2", "gpu3")]
    slow = own_cluster(4, [*fast, link("gpu0", "gpu3", latency="4 us")])
    equal = own_cluster(4, [*fast, link("gpu0", "gpu3", latency="3 us")])

    assert len(route(slow, 0, 3)) == 3
    assert len(route(equal, 0, 3)) == 1


def test_equal_routes_are_told_apart_by_the_order_of_declaration():
    """Of two equal switches the first one declared carries everything."""
    links = [link("each gpu", "left"), link("each gpu", "right")]

    for switches in (["left", "right"], ["right", "left"]):
        cluster = own_cluster(2, links, switches=switches)
        assert route(cluster, 0, 1)[0] == f"node 0: gpu0 -> {switches[0]}"


def test_a_link_may_differ_by_direction():
    """Forward is from the first end of `between` to the second."""
    rates = {"forward": "30 GB/s", "backward": "10 GB/s"}
    cluster = own_cluster(2, [link("gpu0", "gpu1", rates)])

    for src, dst, rate in ((0, 1, 30e9), (1, 0, 10e9)):
        (index,) = cluster.paths(src, dst).links[0]
        assert cluster.link_bandwidth_bytes_per_s[index] == rate


def test_with_link_changes_one_direction_of_one_node():
    """All else, the original included, stays as it was."""
    cluster = load_cluster("h100_ib")
    slow = cluster.with_link("nic3", "rail3", node=1, bandwidth_bytes_per_s=10**9, latency_ps=7)
    changed = cluster.link_index("nic3", "rail3", node=1)

    different = slow.link_bandwidth_bytes_per_s != cluster.link_bandwidth_bytes_per_s
    assert np.flatnonzero(different).tolist() == [changed]
    assert slow.link_latency_ps[changed] == 7
    assert slow.link_name(changed) == "node 1: nic3 -> rail3"
    assert route(slow, 11, 3) == route(cluster, 11, 3)


@pytest.mark.parametrize(
    ("ends", "node", "message"),
    [
        (("gpu0", "rail0"), 0, "no link from gpu0 to rail0"),
        (("gpu0", "nvswitch"), None, "say which, as in `node 0: gpu0 -> nvswitch`"),
        (("gpu0", "nvswitch"), 2, "nodes of h100_ib are 0 to 1"),
    ],
)
def test_an_unknown_link_is_refused(ends, node, message):
    """With the reason."""
    with pytest.raises(ValueError, match=message):
        load_cluster("h100_ib").link_index(*ends, node=node)


def test_a_link_cannot_become_impossible():
    """No rate of zero, no negative latency."""
    cluster = load_cluster("hgx_h100")
    with pytest.raises(ValueError, match="above zero"):
        cluster.with_link("gpu0", "nvswitch", bandwidth_bytes_per_s=0)
    with pytest.raises(ValueError, match="negative"):
        cluster.with_link("gpu0", "nvswitch", latency_ps=-1)


@pytest.mark.parametrize("pair", [(0, 8), (-1, 0)])
def test_a_device_outside_the_cluster_is_refused(pair):
    """Negative indices do not wrap around."""
    with pytest.raises(ValueError, match="devices of hgx_h100 are 0 to 7"):
        load_cluster("hgx_h100").paths(*pair)


def test_no_pairs_have_no_routes():
    """An empty round of a schedule is no special case."""
    paths = load_cluster("hgx_h100").paths([], [])

    assert (paths.links.shape[0], paths.latency_ps.shape) == (0, (0,))


def test_arrays_are_read_only():
    """A cluster is data that many runs share."""
    with pytest.raises(ValueError, match="read-only"):
        load_cluster("hgx_h100").link_bandwidth_bytes_per_s[0] = 1


def test_a_cluster_travels_to_another_process():
    """Sweeps send clusters to workers; routes are found there again."""
    cluster = load_cluster("h100_ib")
    copy = pickle.loads(pickle.dumps(cluster))

    assert route(copy, 0, 13) == route(cluster, 0, 13)
    assert copy.device == cluster.device
    assert hash(copy.device) == hash(cluster.device)


def test_the_largest_cluster_stays_small():
    """131,072 GPUs: all neighbours of a ring at once, in links of six hops at most."""
    cluster = load_cluster("h100_ib", nodes=16_384)
    devices = np.arange(cluster.num_devices)
    paths = cluster.paths(devices, (devices + 1) % cluster.num_devices)

    assert cluster.num_devices == 131_072
    assert paths.links.shape == (131_072, 6)
    assert cluster.link_name(int(paths.links[-1, 0])) == "node 16383: gpu7 -> nvswitch"
    assert (cluster.node_of(devices)[[0, 8, -1]] == [0, 1, 16_383]).all()


@pytest.mark.parametrize("name", builtin_clusters())
def test_every_route_of_a_built_in_cluster_is_connected(name):
    """From the source to the target, each link starts where the one before ends."""
    cluster = load_cluster(name)
    count = min(cluster.num_devices, 16)
    for src in range(count):
        for dst in range(count):
            assert_connected(cluster, src, dst)


def assert_connected(cluster, src, dst):
    """Check one route link by link, across nodes only through the fabric."""
    per_node = cluster.devices_per_node
    vertex = (src // per_node, f"gpu{src % per_node}")
    node_vertices = cluster.topology.vertices[: cluster.topology.num_node_vertices]
    for name in route(cluster, src, dst):
        where, _, ends = name.rpartition(": ")
        tail, head = ends.split(" -> ")
        node = int(where.removeprefix("node ")) if where else None
        assert vertex == ((node if tail in node_vertices else None), tail)
        vertex = ((node if head in node_vertices else None), head)
    assert vertex == (dst // per_node, f"gpu{dst % per_node}")


@given(data=st.data())
def test_routes_are_shortest_on_any_graph(data):
    """Latencies equal those of Floyd and Warshall's algorithm, and sum over the links."""
    count = data.draw(st.integers(2, 7))
    latencies = st.integers(0, 5)
    parents = [data.draw(st.integers(0, child - 1)) for child in range(1, count)]
    pairs = {(parent, child): data.draw(latencies) for child, parent in enumerate(parents, 1)}
    for first in range(count):
        for second in range(first + 1, count):
            if (first, second) not in pairs and data.draw(st.booleans()):
                pairs[first, second] = data.draw(latencies)
    links = [link(f"gpu{a}", f"gpu{b}", latency=f"{ps} ps") for (a, b), ps in pairs.items()]
    cluster = own_cluster(count, links)

    distance = np.full((count, count), 10**6)
    for (first, second), latency_ps in pairs.items():
        distance[first, second] = distance[second, first] = latency_ps
    np.fill_diagonal(distance, 0)
    for middle in range(count):
        distance = np.minimum(distance, distance[:, [middle]] + distance[[middle], :])
    src, dst = (grid.ravel() for grid in np.indices((count, count)))
    paths = cluster.paths(src, dst)
    assert (paths.latency_ps == distance[src, dst]).all()
    assert (cluster.link_latency_ps[paths.links].sum(axis=1) == paths.latency_ps).all()
    for pair in zip(src, dst, strict=True):
        assert_connected(cluster, *pair)


@given(st.lists(st.integers(0, 31), min_size=1, max_size=12, unique=True))
def test_what_devices_take_those_alike_on_the_first_nodes_take(devices):
    """Latencies of all routes are equal, and links become each other's."""
    cluster = load_cluster({"name": "h100_ib", "nodes": 4})
    own = np.array(devices)
    alike, nodes = cluster.first_alike(own)
    assert set(cluster.node_of(alike)) == set(range(len(nodes)))
    assert np.array_equal(nodes[cluster.node_of(alike)], cluster.node_of(own))
    pairs = [part.ravel() for part in np.indices((len(own), len(own)))]
    expected, found = (cluster.paths(*(each[pair] for pair in pairs)) for each in (own, alike))
    assert np.array_equal(expected.latency_ps, found.latency_ps)
    moved = cluster.links_on(nodes, found.links.ravel().astype(np.int64))
    assert np.array_equal(moved, expected.links.ravel())


def test_devices_of_unequal_nodes_stand_for_themselves():
    """After `with_link` the node says what a group takes."""
    cluster = load_cluster({"name": "h100_ib", "nodes": 4})
    slow = cluster.with_link("gpu0", "nvswitch", node=2, bandwidth_bytes_per_s=1e9)
    own = np.array([17, 9])
    alike, nodes = slow.first_alike(own)
    assert alike.tolist() == [17, 9]
    assert slow.links_on(nodes, np.arange(slow.num_links)).tolist() == list(range(slow.num_links))
    assert cluster.first_alike(own)[0].tolist() == [1, 9]
