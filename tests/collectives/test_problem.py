"""A problem refuses what no collective can mean."""

import ml_dtypes
import numpy as np
import pytest

from simrank.collectives import Problem
from simrank.collectives.problem import (
    DTYPES,
    FLOAT8,
    REDUCE_OPS,
    admits,
    divide_towards_zero,
    node_size_of,
    reduction,
    runs_of,
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"collective": "all_sum"}, "unknown collective 'all_sum'; choices: all_reduce"),
        ({"world_size": 0}, "at least 1"),
        ({"count": -1}, "got 4, 4 and -1"),
        ({"root": 4}, "root 4 is not one of 4 ranks"),
        ({"splits": (1, 2, 3, 4)}, "all_reduce takes no splits"),
        ({"node_size": 3}, "4 ranks cannot stand on nodes of 3 each"),
        ({"node_size": -4}, "nodes of -4"),
        ({"collective": "all_gather", "splits": (1, 2)}, "needs 4 splits"),
        ({"collective": "all_to_all", "splits": (-1,) * 16}, "minimum -1"),
    ],
)
def test_bad_problem_is_refused(arguments, message):
    """The message says what was expected and what came."""
    fields = {"collective": "all_reduce", "world_size": 4, "count": 8} | arguments
    with pytest.raises(ValueError, match=message):
        Problem(**fields)


def test_equal_problems_are_one_key():
    """Problems are frozen values, so they can be looked up."""
    assert {Problem("reduce", 2, 3), Problem("reduce", 2, 3)} == {Problem("reduce", 2, 3)}


@pytest.mark.parametrize(
    ("nodes", "size"),
    [
        ([0], 1),
        ([5, 5, 5], 3),
        ([0, 0, 1, 1, 3, 3], 2),
        ([2, 0, 1], 1),
        ([0, 0, 1], 0),
        ([0, 1, 1, 2], 0),
        ([0, 0, 1, 1, 0, 0], 0),
        ([0, 1, 0, 1], 0),
    ],
)
def test_node_size_needs_equal_runs_of_different_nodes(nodes, size):
    """Whatever the order of the nodes; a node that comes back is no run."""
    assert node_size_of(np.array(nodes)) == size


def test_nodes_are_counted_where_they_are_known():
    """Without a node size, the ranks might all be on one."""
    assert Problem("all_reduce", 8, 1).num_nodes == 1
    assert Problem("all_reduce", 8, 1, node_size=2).num_nodes == 4


def test_runs_are_told_in_the_order_of_ranks():
    """A node that comes back is another run."""
    assert runs_of(np.array([0, 0, 1, 0, 2, 2, 2])) == [2, 1, 1, 3]
    assert runs_of(np.array([5])) == [1]


# ---- reduce operations on single values, against what NCCL and torch define ----


def combine(reduce_op, left, right, dtype):
    """Return one combination as a Python number."""
    how = reduction(reduce_op, np.dtype(dtype), 2)
    held, values = np.array([left], dtype), np.array([right], dtype)
    return how.combine(held, values, out=np.empty_like(held))[0].item()


def test_min_and_max_propagate_nan():
    """As in NCCL; a NaN on one rank must not vanish."""
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16, *FLOAT8):
        with np.errstate(invalid="ignore"):
            found = combine("min", 1.0, np.nan, dtype), combine("max", np.nan, 1.0, dtype)
        assert np.isnan(found).all()


def test_narrow_floats_round_to_nearest_even():
    """256 + 1 and 256 + 3 lie half-way between bfloat16 numbers two apart."""
    assert combine("sum", 256.0, 1.0, ml_dtypes.bfloat16) == 256.0
    assert combine("sum", 256.0, 3.0, ml_dtypes.bfloat16) == 260.0
    assert combine("sum", 16.0, 1.0, ml_dtypes.float8_e4m3fn) == 16.0
    assert combine("sum", 16.0, 3.0, ml_dtypes.float8_e4m3fn) == 20.0


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("reduce_op", ["sum", "prod", "min", "max"])
def test_look_up_equals_the_ufunc(dtype, reduce_op):
    """All pairs of bytes give the bits that ml_dtypes computes."""
    codes = np.arange(256, dtype=np.uint8).view(dtype)
    left, right = np.repeat(codes, 256), np.tile(codes, 256)
    how = reduction(reduce_op, dtype, 2)
    with np.errstate(all="ignore"):
        expected = how.combine_wide(left, right)
    found = how.combine(left, right, out=np.empty_like(left))
    assert found.tobytes() == expected.tobytes()


def test_bool_sum_is_or_and_avg_is_refused():
    """As torch maps them for NCCL."""
    assert combine("sum", True, True, np.bool_) is True
    assert not admits("avg", np.dtype(np.bool_))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64])
def test_integer_average_rounds_towards_zero(dtype):
    """NCCL divides the sum as C does."""
    values = np.array([7, 8, 0], dtype)
    divide_towards_zero(values, 4)
    assert values.tolist() == [1, 2, 0]
    if np.dtype(dtype).kind == "i":
        values = np.array([-7, -8, -1], dtype)
        divide_towards_zero(values, 4)
        assert values.tolist() == [-1, -2, 0]


def test_float_average_scales_before_the_sum():
    """Large numbers whose sum would overflow have an average."""
    how = reduction("avg", np.dtype(np.float16), 4)
    assert how.scale(np.array([60000.0], np.float16)).tolist() == [15000.0]
    assert how.divisor is None


def test_every_unknown_pair_is_refused():
    """Bit operations need integers; anything else is unknown."""
    for dtype in DTYPES:
        for reduce_op in REDUCE_OPS:
            if not admits(reduce_op, dtype):
                with pytest.raises(ValueError, match="is not defined on"):
                    reduction(reduce_op, dtype, 2)
    with pytest.raises(ValueError, match="choices: sum, prod"):
        reduction("mean", np.dtype(np.float32), 2)
    assert not admits("sum", np.dtype(np.complex64))
