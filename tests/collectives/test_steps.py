"""Steps of several chunks as steps of one."""

import numpy as np

from simrank.collectives import Problem, build
from simrank.collectives.schedule import one_chunk_steps, spread


def test_a_step_of_several_chunks_becomes_one_per_chunk():
    """In order, with consecutive chunks on both sides."""
    steps = next(iter(build(Problem("all_reduce", 8, 16), "halving_doubling").rounds()))
    count = int(steps.count[0])
    assert count > 1
    single = one_chunk_steps(steps)
    assert single.num_steps == int(steps.count.sum())
    assert (single.count == 1).all()
    assert single.src_chunk[:count].tolist() == [int(steps.src_chunk[0]) + i for i in range(count)]
    assert single.dst[:count].tolist() == [int(steps.dst[0])] * count


def test_single_steps_are_left_alone():
    """The same object comes back."""
    steps = next(iter(build(Problem("all_reduce", 4, 16), "ring").rounds()))
    assert one_chunk_steps(steps) is steps


def test_spread_numbers_each_run():
    """Runs of equal and of different lengths, empty ones too."""
    assert spread(np.array([5, 1]), np.array([2, 2])).tolist() == [5, 6, 1, 2]
    assert spread(np.array([5, 1, 9]), np.array([2, 0, 1])).tolist() == [5, 6, 9]
