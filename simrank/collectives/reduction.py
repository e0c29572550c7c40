"""Reduce operations on the dtypes that collectives carry."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

AnyArray = npt.NDArray[Any]

REDUCE_OPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")
NARROW_FLOATS = tuple(
    np.dtype(name)
    for name in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
)
FLOATS = (np.dtype(np.float32), np.dtype(np.float64), *NARROW_FLOATS)
INTEGERS = tuple(np.dtype(name) for name in (np.int8, np.uint8, np.int16, np.int32, np.int64))
DTYPES = (*FLOATS, *INTEGERS, np.dtype(np.bool_))

_UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,  # Like NCCL's and torch's, it propagates NaN; np.fmin would not.
    "max": np.maximum,
    "avg": np.add,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


@dataclass(frozen=True, slots=True)
class Reduction:
    """How two elements become one, and what happens before and after.

    Attributes:
        combine: Takes the operand and the arriving elements, in the storage or the wide dtype.
        scale: Scalar of the storage dtype that multiplies every element read from INPUT, or None.
        divisor: Divides the finished results, or None.
        wide: Dtype in which a schedule with `wide` accumulates.
    """

    combine: np.ufunc
    scale: Any
    divisor: int | None
    wide: np.dtype[Any]


@lru_cache(maxsize=1024)
def reduction(reduce_op: str, dtype: np.dtype[Any], world_size: int) -> Reduction:
    """Return how a reduce op works on a dtype.

    `avg` is NCCL's: floats are multiplied by 1 / n, in their own dtype, before the sum; integers
    are summed and then divided, rounding towards zero. `sum` of bools is their maximum.

    Raises:
        ValueError: The op is unknown, or not defined on the dtype.

    Source:
        NCCL 2.30 `src/enqueue.cc` (hostToDevRedOp), torch `ProcessGroupNCCL.cpp` for bool.
    """
    if reduce_op not in REDUCE_OPS:
        raise ValueError(f"unknown reduce op {reduce_op!r}; choices: {', '.join(REDUCE_OPS)}")
    if not admits(reduce_op, dtype):
        raise ValueError(f"reduce op {reduce_op!r} is not defined on {dtype.name}")
    wide = np.dtype(np.float32) if dtype in NARROW_FLOATS else dtype
    scale, divisor = None, None
    if reduce_op == "avg" and world_size > 1:
        if dtype in FLOATS:
            scale = dtype.type(1.0 / world_size)
        else:
            divisor = world_size
    return Reduction(_UFUNCS[reduce_op], scale, divisor, wide)


def admits(reduce_op: str, dtype: np.dtype[Any]) -> bool:
    """Return whether a reduce op is defined on a dtype."""
    if dtype not in DTYPES:
        return False
    if reduce_op in ("band", "bor", "bxor"):
        return dtype not in FLOATS
    return not (reduce_op == "avg" and dtype == np.bool_)


def divide_towards_zero(values: AnyArray, divisor: int) -> None:
    """Divide integers in place, rounding towards zero.

    Args:
        values: Integers of any width.
        divisor: At least 1; may exceed the range of the dtype.
    """
    if values.dtype.itemsize < 8:
        wide = values.astype(np.int64)
        np.copyto(values, np.sign(wide) * (np.abs(wide) // divisor), casting="unsafe")
        return
    quotient, rest = np.divmod(values, values.dtype.type(divisor))
    np.add(quotient, (values < 0) & (rest != 0), out=values)
