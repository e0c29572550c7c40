"""The rings of a schedule's channels, and the pairs of ranks they share."""

import numpy as np

from simrank.collectives import Problem, build
from simrank.collectives.time_rounds import Channels
from simrank.hardware import load_cluster

CLUSTER = load_cluster({"name": "h100_ib", "nodes": 2})


def channels(node_size):
    """Return the channels of a ring on sixteen ranks of two nodes."""
    schedule = build(Problem("all_gather", 16, 8, node_size=node_size), "ring")
    return Channels(CLUSTER, np.arange(16), phase=schedule.phases[0])


def test_rings_begin_on_their_own_rail():
    """Channel c visits local ranks c, c + 1, ... of both nodes."""
    rings = channels(8).rings[:, 0]
    assert rings[3].tolist() == [3, 4, 5, 6, 7, 0, 1, 2, 11, 12, 13, 14, 15, 8, 9, 10]
    assert channels(0).rings.tolist() == [[list(range(16))]]


def test_eight_rings_share_the_links_inside_a_node():
    """Each NVLink carries all channels at 376 GB/s, each NIC one at 47 GB/s: the same."""
    for costs in channels(8).costs(47_000):
        assert set(costs.stay_ps[0].tolist()) == {600_000 + 1_000_000}
        crossing = np.flatnonzero(costs.move_ps[0] > 1_600_000)
        assert crossing.tolist() == [7, 15]
        assert set(costs.move_ps[0][crossing].tolist()) == {3_300_000 + 1_000_000}


def test_one_ring_waits_for_its_two_nics():
    """Its messages inside a node are eight times as fast."""
    (costs,) = channels(0).costs(376_000)
    assert costs.stay_ps[0].tolist() == [*[1_600_000] * 7, 8_600_000] * 2
