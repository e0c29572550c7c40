"""The ring's hops, by hand."""

import pytest

from simrank.collectives import Problem, build
from simrank.collectives.schedule import Buffer


def hops(schedule):
    """Return (source chunk, destination chunk) of rank 0's send in each round."""
    return [
        (int(steps.src_chunk[0]), int(steps.dst_chunk[0]), Buffer(int(steps.dst_buffer[0])).name)
        for steps in schedule.rounds()
    ]


def test_all_reduce_sends_own_chunk_first():
    """Rank 0 of three sends chunk 0, passes on the sum of 2, then gathers from chunk 1 on."""
    assert hops(build(Problem("all_reduce", 3, 9), "ring")) == [
        (0, 0, "SCRATCH"),
        (0, 2, "OUTPUT"),
        (1, 1, "OUTPUT"),
        (0, 0, "OUTPUT"),
    ]


@pytest.mark.parametrize(("collective", "factor"), [("all_gather", 1), ("reduce_scatter", 1)])
def test_half_rings_take_half_the_rounds(collective, factor):
    """All_reduce is the two of them, one after the other."""
    whole = build(Problem("all_reduce", 7, 14), "ring")
    assert build(Problem(collective, 7, 2), "ring").num_rounds * 2 == whole.num_rounds * factor


def test_channels_split_every_block():
    """Twice the steps per round, of half the size."""
    one = build(Problem("all_gather", 4, 8), "ring")
    two = build(Problem("all_gather", 4, 8), "ring", options={"num_channels": 2})
    assert [schedule.materialise()[1].num_steps for schedule in (one, two)] == [4, 8]
    assert (one.max_chunk, two.max_chunk) == (8, 4)
    assert two.options == {"num_channels": 2, "num_loops": 1}


def test_uneven_blocks_are_not_uniform():
    """Rounds of a ring of uneven inputs differ in cost."""
    assert build(Problem("all_gather", 3, 4), "ring").uniform
    assert not build(Problem("all_gather", 3, 0, splits=(1, 2, 3)), "ring").uniform
