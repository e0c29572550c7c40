"""Closed forms of rings by hand; the property tests compare them with played rounds."""

import numpy as np
import pytest

from simrank.collectives.time_ring import (
    RingCosts,
    has_closed_form,
    is_equal_ring,
    ring_rounds,
    ring_times,
)


def same(cost):
    """Return a ring whose senders are busy until their messages have arrived."""
    return RingCosts(cost, cost)


def test_equal_costs_end_together_after_a_lap():
    """Every rank has heard from the last arrival."""
    start = np.array([0, 50, 3, 7])
    cost = same(np.full(4, 10))
    assert is_equal_ring(cost, 3)
    assert not is_equal_ring(cost, 2)
    assert ring_times(start, cost, 6).tolist() == [110] * 4


def test_before_a_lap_only_neighbours_matter():
    """After two rounds rank 0 has heard from ranks 3 and 2, not from 1."""
    assert ring_times(np.array([0, 50, 3, 7]), same(np.full(4, 10)), 2).tolist() == [27, 70, 70, 70]


def test_a_slow_link_sets_the_pace():
    """Walks stay at the slow sender; ranks behind it are later by the way from there."""
    start, cost = np.zeros(4, dtype=np.int64), same(np.array([1, 100, 1, 1]))
    assert ring_times(start, cost, 6).tolist() == [402, 600, 600, 501]


def test_a_long_route_is_paid_once_per_crossing():
    """Nobody stays on it: six rounds cross it twice at most, four rounds once."""
    ring = RingCosts(np.full(4, 1), np.array([1, 100, 1, 1]))
    start = np.zeros(4, dtype=np.int64)
    assert ring_times(start, ring, 6).tolist() == [105, 105, 204, 204]
    assert ring_times(start, ring, 4).tolist() == [103, 103, 103, 103]


def test_laps_are_walked_only_where_they_pay():
    """A lap of 13 loses to four rounds at the dearest rank, one of 53 beats them."""
    start, stay = np.zeros(4, dtype=np.int64), np.array([1, 1, 10, 1])
    for extra, longest in ((0, 400), (10, 530)):
        ring = RingCosts(stay, stay + extra)
        done = ring_times(start, ring, 40)
        assert done.tolist() == ring_rounds(start, ring, 40, is_eager=True).tolist()
        assert done.max() == longest


def test_rendezvous_ring_waits_for_both_sides():
    """In one round, a late rank delays the rank before it as well as the one after it."""
    start, cost = np.array([0, 0, 50, 0, 0]), same(np.full(5, 10))
    assert ring_rounds(start, cost, 1, is_eager=True).tolist() == [10, 10, 60, 60, 10]
    assert ring_rounds(start, cost, 1, is_eager=False).tolist() == [10, 60, 60, 60, 10]


@pytest.mark.slow
def test_large_ring_with_one_slow_link():
    """131,072 ranks, no round played."""
    cost = np.full(131_072, 700)
    cost[77] = 9_000
    num_rounds = 2 * len(cost) - 2
    assert has_closed_form(same(cost), num_rounds)
    done = ring_times(np.zeros_like(cost), same(cost), num_rounds)
    assert done[76:80].tolist() == [1_271_397_000, 2_359_278_000, 2_359_278_000, 2_359_269_700]
