"""Reduce operations on the dtypes that collectives carry."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

AnyArray: TypeAlias = npt.NDArray[Any]
Combine: TypeAlias = Callable[..., AnyArray]

REDUCE_OPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")
NARROW_FLOATS = tuple(
    np.dtype(name)
    for name in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
)
FLOAT8 = NARROW_FLOATS[2:]
FLOATS = (np.dtype(np.float32), np.dtype(np.float64), *NARROW_FLOATS)
INTEGERS = tuple(np.dtype(name) for name in (np.int8, np.uint8, np.int16, np.int32, np.int64))
DTYPES = (*FLOATS, *INTEGERS, np.dtype(np.bool_))

TABLE_BLOCK = 64 * 1024  # Keeps the indices of a look-up, 8 bytes each, in the cache.

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
    """The combination of two elements, with the steps before and after.

    Attributes:
        combine: Takes operand, arriving elements and `out`, all of the storage dtype.
        combine_wide: The same for a schedule with `wide`, in the dtype `wide`.
        wide: Dtype in which such a schedule accumulates.
        scale: Takes elements read from INPUT and returns them scaled, or None.
        divisor: Divides the finished results, or None.
    """

    combine: Combine
    combine_wide: np.ufunc
    wide: np.dtype[Any]
    scale: Callable[[AnyArray], AnyArray] | None
    divisor: int | None


@lru_cache(maxsize=1024)
def reduction(reduce_op: str, dtype: np.dtype[Any], world_size: int) -> Reduction:
    """Return the reduction of an op on a dtype.

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
    ufunc = _UFUNCS[reduce_op]
    is_average = reduce_op == "avg" and world_size > 1
    return Reduction(
        combine=_combine_by_table(ufunc, dtype) if dtype in FLOAT8 else ufunc,
        combine_wide=ufunc,
        wide=np.dtype(np.float32) if dtype in NARROW_FLOATS else dtype,
        scale=_scale(dtype, world_size) if is_average and dtype in FLOATS else None,
        divisor=world_size if is_average and dtype not in FLOATS else None,
    )


def _combine_by_table(ufunc: np.ufunc, dtype: np.dtype[Any]) -> Combine:
    """Return a ufunc of two one-byte floats as a look-up of both bytes: 6 times as fast."""
    codes = np.arange(256, dtype=np.uint8).view(dtype)
    with np.errstate(all="ignore"):
        table = ufunc(codes[:, None], codes[None, :]).view(np.uint8).ravel()

    def combine(held: AnyArray, values: AnyArray, *, out: AnyArray) -> AnyArray:
        index = held.view(np.uint8).astype(np.uint16)
        index <<= 8
        index |= values.view(np.uint8)
        out.view(np.uint8)[...] = table[index]
        return out

    return combine


def _scale(dtype: np.dtype[Any], world_size: int) -> Callable[[AnyArray], AnyArray]:
    """Return the multiplication by 1 / n in a float dtype."""
    factor = dtype.type(1.0 / world_size)
    if dtype not in FLOAT8:
        return lambda values: np.multiply(values, factor)
    table = np.multiply(np.arange(256, dtype=np.uint8).view(dtype), factor)
    return lambda values: table[values.view(np.uint8)]


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
    if values.dtype.itemsize <= 2:
        bits = np.dtype(f"u{values.dtype.itemsize}")
        codes = np.arange(1 << (8 * bits.itemsize)).astype(bits).view(values.dtype)
        numbers = codes.astype(np.int64)
        table = (np.sign(numbers) * (np.abs(numbers) // divisor)).astype(values.dtype)
        for block in np.array_split(values, 1 + len(values) // TABLE_BLOCK):
            block[...] = table[block.view(bits)]
        return
    quotient, rest = np.divmod(values, values.dtype.type(divisor))
    np.add(quotient, (values < 0) & (rest != 0), out=values)
