"""Recursive halving and doubling: rounds, and what they move."""

import pytest

from simrank.collectives import Problem, build


@pytest.mark.parametrize(("world_size", "rounds"), [(1, 0), (2, 2), (3, 4), (6, 6), (8, 6), (9, 8)])
def test_all_reduce_takes_two_logarithms(world_size, rounds):
    """And two rounds more where ranks are left over."""
    assert build(Problem("all_reduce", world_size, 9), "halving_doubling").num_rounds == rounds


def test_messages_halve_then_double():
    """Neighbours exchange the largest ones."""
    schedule = build(Problem("all_reduce", 8, 8), "halving_doubling")
    moved = [(int(s.dst[0] - s.src[0]), int(s.count[0])) for s in schedule.rounds()]
    assert moved == [(1, 4), (2, 2), (4, 1), (4, 1), (2, 2), (1, 4)]


def test_all_gather_and_reduce_scatter_are_mirrored():
    """Distances 1, 2, 4 there and 4, 2, 1 here, with as many chunks."""
    for collective, expected in (("all_gather", [1, 2, 4]), ("reduce_scatter", [4, 2, 1])):
        rounds = build(Problem(collective, 8, 3), "halving_doubling").materialise()[-3:]
        assert [int(steps.dst[0] - steps.src[0]) for steps in rounds] == expected
        assert [int(steps.count[0]) for steps in rounds] == expected
