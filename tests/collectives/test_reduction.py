"""Reduce operations on single values, against what NCCL and torch define."""

import ml_dtypes
import numpy as np
import pytest

from simrank.collectives.reduction import (
    DTYPES,
    FLOAT8,
    REDUCE_OPS,
    admits,
    divide_towards_zero,
    reduction,
)


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
