"""Whole rounds at once give the bits of single steps."""

import numpy as np
import pytest

from simrank.collectives import Problem, algorithms_for, build
from simrank.collectives.data import FoldPlayer
from simrank.collectives.data_stacked import play_stacked
from simrank.collectives.problem import COLLECTIVES, GATHERED, reduction

CASES = [(coll, name) for coll in (*COLLECTIVES, *GATHERED) for name in algorithms_for(coll, 16)]


@pytest.mark.parametrize(("collective", "algorithm"), CASES)
@pytest.mark.parametrize("count", [16, 21, 1600])
def test_both_ways_give_the_same_bits(collective, algorithm, count):
    """Even chunks as words and as strided rows, and uneven ones element by element."""
    schedule = build(Problem(collective, 16, count), algorithm)
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(16, schedule.input.num_elements)).astype(np.float32)
    shape = (16, schedule.output.num_elements)
    direct, stacked = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    how = reduction("avg", inputs.dtype, 16)

    FoldPlayer(schedule).play(list(inputs), outputs=list(direct), how=how)
    play_stacked(schedule, inputs, outputs=stacked, how=how)

    assert direct.tobytes() == stacked.tobytes()


@pytest.mark.slow
def test_a_thousand_ranks_reduce_in_place():
    """The size of the benchmark, on one array."""
    values = np.random.default_rng(4).integers(0, 9, (1024, 2048)).astype(np.int32)
    expected = values.sum(axis=0, dtype=np.int32)
    schedule = build(Problem("all_reduce", 1024, 2048), "ring")
    play_stacked(schedule, values, outputs=values, how=reduction("sum", values.dtype, 1024))
    assert (values == expected).all()
