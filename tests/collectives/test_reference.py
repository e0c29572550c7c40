"""The reference finds what is wrong, and nothing else."""

import ml_dtypes
import numpy as np
import pytest

from simrank.collectives import Problem
from simrank.collectives.reference import count_wrong, reference, tolerance


def test_reference_of_each_collective():
    """Two ranks, by hand."""
    inputs = [np.array([1, 2], np.float32), np.array([10, 20], np.float32)]
    results = {
        ("all_reduce", 2): [[11, 22], [11, 22]],
        ("all_gather", 2): [[1, 2, 10, 20], [1, 2, 10, 20]],
        ("reduce_scatter", 1): [[11], [22]],
        ("all_to_all", 1): [[1, 10], [2, 20]],
        ("broadcast", 2): [[10, 20], [10, 20]],
    }
    for (collective, count), expected in results.items():
        root = 1 if collective == "broadcast" else 0
        found = reference(Problem(collective, 2, count, root=root), inputs)
        assert [values.tolist() for values in found] == expected, collective


def test_reduce_has_a_result_at_its_root_only():
    """Other ranks' outputs are nobody's business."""
    found = reference(Problem("reduce", 2, 1, root=1), [np.ones(1), np.ones(1)])
    assert found[0] is None
    assert found[1].tolist() == [2.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32])
def test_a_wrong_element_is_counted(dtype):
    """Also at the end of the last block of the check."""
    problem = Problem("all_reduce", 2, 40_000)
    inputs = [np.full(40_000, rank + 1).astype(dtype) for rank in range(2)]
    outputs = [np.full(40_000, 3).astype(dtype) for _ in range(2)]
    assert count_wrong(problem, inputs, outputs) == 0
    outputs[0][0], outputs[1][-1] = 4, 2
    assert count_wrong(problem, inputs, outputs) == 2


def test_the_output_of_one_rank_is_looked_at_alone():
    """As each rank does that has nobody else's."""
    inputs = [np.ones(4), np.ones(4)]
    outputs = [np.full(4, 2.0), np.array([2.0, 2.0, 5.0, 2.0])]
    problem = Problem("all_reduce", 2, 4)
    assert [count_wrong(problem, inputs, outputs, only=rank) for rank in (0, 1)] == [0, 1]
    assert count_wrong(problem, inputs, [None, outputs[1]], only=1) == 1


def test_nan_is_right_only_where_an_input_has_it():
    """A NaN from nowhere is wrong, a lost NaN too."""
    problem = Problem("all_reduce", 2, 2)
    inputs = [np.array([np.nan, 1.0]), np.array([1.0, 1.0])]
    assert count_wrong(problem, inputs, [np.array([np.nan, 2.0])] * 2) == 0
    assert count_wrong(problem, inputs, [np.array([2.0, np.nan])] * 2) == 4


def test_overflow_is_right_only_where_it_can_happen():
    """A sum beyond the dtype may be inf; a small one may not."""
    problem = Problem("all_reduce", 2, 2)
    inputs = [np.array([60000, 1], np.float16)] * 2
    assert count_wrong(problem, inputs, [np.array([np.inf, 2], np.float16)] * 2) == 0
    assert count_wrong(problem, inputs, [np.array([np.inf, np.inf], np.float16)] * 2) == 2


def test_tolerance_knows_dtype_and_op():
    """None for integers, minimum and maximum; more for coarse dtypes and many ranks."""
    assert tolerance(np.int32, "sum", world_size=8, magnitude=100.0) == 0
    assert tolerance(np.float32, "max", world_size=8, magnitude=100.0) == 0
    fine = tolerance(np.float32, "sum", world_size=8, magnitude=1.0)
    coarse = tolerance(ml_dtypes.bfloat16, "sum", world_size=8, magnitude=1.0)
    assert fine < 1e-6 < coarse < 0.05
    assert tolerance(np.float32, "sum", world_size=64, magnitude=1.0) > fine
