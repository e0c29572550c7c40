"""Costs of single steps: latency, shared links, rounding."""

import numpy as np
import pytest

from simrank.collectives.time_network import NOT_ARRIVED, NOT_KNOWN, Lane, known_or_marked
from simrank.errors import TimeOverflowError
from simrank.hardware import load_cluster

CLUSTER = load_cluster("hgx_h100")


def costs(src, dst, step_bytes, *, cluster=CLUSTER, fan=None, loaded=None):
    """Return sender's and receiver's costs of a round on eight ranks of one node."""
    mask = None if loaded is None else np.array(loaded)
    fans = None if fan is None else np.array(fan)
    lane = Lane(cluster, (np.array(src), np.array(dst)), fan=fans, loaded=mask)
    return lane.costs(np.array(step_bytes))


def flight(*args, **kwargs):
    """Return after how long the receivers have their messages."""
    return costs(*args, **kwargs).flight_ps.tolist()


def test_cost_is_latency_and_bytes_rounded_up_once():
    """376 bytes at 376 GB/s are exactly 1,000 ps; one more is 2.66 ps more."""
    assert flight([0], [1], 376) == [601_000]
    assert flight([0], [1], 377) == [601_003]
    assert flight([0], [1], 0) == [600_000]


def test_steps_that_share_a_link_share_its_bandwidth():
    """Three senders to one rank; a fourth step elsewhere keeps its rate."""
    found = flight([0, 1, 2, 4], [3, 3, 3, 5], 376_000)
    assert found == [3_600_000, 3_600_000, 3_600_000, 1_600_000]


def test_empty_steps_load_nothing():
    """A step without bytes costs its latency, and no other step's time."""
    found = flight([0, 1], [3, 3], [376_000, 0], loaded=[True, False])
    assert found == [1_600_000, 600_000]


def test_a_sender_is_busy_for_the_overhead_of_a_long_route():
    """Between nodes the message takes 2.7 us; its sender goes on after 0.6 us and the bytes."""
    cluster = load_cluster("h100_ib")
    found = costs([0, 1], [8, 2], [47_000, 376_000], cluster=cluster)
    assert found.flight_ps.tolist() == [2_700_000 + 1_000_000, 600_000 + 1_000_000]
    assert found.busy_ps.tolist() == [600_000 + 1_000_000, 600_000 + 1_000_000]


def test_a_repeated_step_loads_its_links_as_often():
    """As if it had been listed twice."""
    ends = (np.array([0, 1]), np.array([3, 3]))
    found = Lane(CLUSTER, ends, repeats=np.array([2, 1])).costs(376_000)
    assert found.flight_ps.tolist() == [3_600_000, 3_600_000]


def test_steps_of_one_fan_load_a_shared_link_once():
    """A multicast leaves its source once; without a switch that copies it would leave thrice."""
    ends = ([0, 0, 0], [1, 2, 3], 376_000)
    assert flight(*ends) == [3_600_000] * 3
    assert flight(*ends, fan=[5, 5, 5]) == [1_600_000] * 3
    assert flight(*ends, fan=[5, 5, -1]) == [2_600_000] * 3


def test_unknown_times_are_marked():
    """Anything that adds costs to an absent rank's arrival is not known."""
    times = np.array([5, NOT_ARRIVED + 12345])
    assert known_or_marked(times).tolist() == [5, NOT_KNOWN]


def test_a_step_longer_than_simulated_time_is_refused():
    """It would not fit an int64, and be any number."""
    with pytest.raises(TimeOverflowError, match=r"26\.7 days"):
        flight([0], [1], 2**62)
