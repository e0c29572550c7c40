"""Costs of single steps: latency, shared links, rounding."""

import numpy as np

from simrank.collectives.schedule import Round
from simrank.collectives.time_network import NOT_ARRIVED, NOT_KNOWN, Lane, known_or_marked
from simrank.hardware import load_cluster

CLUSTER = load_cluster("hgx_h100")


def steps(src, dst, fan=None):
    """Return a round of copies."""
    ends = [np.array(src), np.array(dst)]
    zeros = np.zeros_like(ends[0])
    fans = None if fan is None else np.array(fan)
    return Round(*ends, *(zeros,) * 4, zeros + 1, zeros, zeros, fan=fans)


def lane(*args, loaded=None, **kwargs):
    """Return the costs of a round on eight ranks of one node."""
    mask = None if loaded is None else np.array(loaded)
    return Lane(CLUSTER, np.arange(8), steps=steps(*args, **kwargs), loaded=mask)


def test_cost_is_latency_and_bytes_rounded_up_once():
    """376 bytes at 376 GB/s are exactly 1,000 ps; one more is 2.66 ps more."""
    costs = lane([0], [1])
    assert costs.cost_ps(376).tolist() == [601_000]
    assert costs.cost_ps(377).tolist() == [601_003]
    assert costs.cost_ps(0).tolist() == [600_000]


def test_steps_that_share_a_link_share_its_bandwidth():
    """Three senders to one rank; a fourth step elsewhere keeps its rate."""
    costs = lane([0, 1, 2, 4], [3, 3, 3, 5]).cost_ps(376_000)
    assert costs.tolist() == [3_600_000, 3_600_000, 3_600_000, 1_600_000]


def test_empty_steps_load_nothing():
    """A step without bytes costs its latency, and no other step's time."""
    costs = lane([0, 1], [3, 3], loaded=[True, False])
    assert costs.cost_ps(np.array([376_000, 0])).tolist() == [1_600_000, 600_000]


def test_steps_of_one_fan_load_a_shared_link_once():
    """A multicast leaves its source once; without a switch that copies it would leave thrice."""
    apart = lane([0, 0, 0], [1, 2, 3]).cost_ps(376_000)
    fanned = lane([0, 0, 0], [1, 2, 3], fan=[5, 5, 5]).cost_ps(376_000)
    mixed = lane([0, 0, 0], [1, 2, 3], fan=[5, 5, -1]).cost_ps(376_000)
    assert apart.tolist() == [3_600_000] * 3
    assert fanned.tolist() == [1_600_000] * 3
    assert mixed.tolist() == [2_600_000] * 3


def test_unknown_times_are_marked():
    """Anything that adds costs to an absent rank's arrival is not known."""
    times = np.array([5, NOT_ARRIVED + 12345])
    assert known_or_marked(times).tolist() == [5, NOT_KNOWN]
