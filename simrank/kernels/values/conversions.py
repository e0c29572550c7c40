"""Conversions between element types; each rounds once, as a single instruction does.

Source: PTX ISA 8.8, `cvt`; the instructions of `tl.cast` in Triton 3.9 for sm_90.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from simrank.kernels.machine.arrays import Value
    from simrank.kernels.values.types import ElementType

_ndarray = np.ndarray
_EXACT_IN_FLOAT32 = 24  # bits
_EXACT_IN_FLOAT64 = 53


def converted(
    values: Value, own: ElementType, target: ElementType, *, toward_zero: bool = False
) -> Value:
    """Convert values between types that are not pointers."""
    if target.kind == "b":
        truth: Value = values != 0
        return truth
    if own.kind == "f" and target.kind in "iu":
        return to_integer(values, target)
    if target.round is None:
        return values.astype(target.compute)
    if own.kind == "f" and own.bits <= target.bits and not _is_mixed(own, target):
        return values
    single = to_float32(values)
    return _toward_zero(single, target) if toward_zero else target.round(single)


def _is_mixed(own: ElementType, target: ElementType) -> bool:
    """Return whether two floating types have equal width, or the target is fp8."""
    return target.bits in {own.bits, 8}


def to_float32(values: Value) -> Value:
    """Convert values to float32 so that further rounding gives the correctly rounded result.

    Excess bits are truncated, and the last bit is set (rounding to odd). The result stays between
    the same two narrower numbers, and is their midpoint only if the original value was.

    Source: Boldo and Melquiond, "When double rounding is odd", 2005.
    """
    if values.dtype.kind in "iu":
        if values.dtype.itemsize * 8 <= _EXACT_IN_FLOAT32:
            return values.astype(np.float32)
        if values.dtype.itemsize == 8:
            values = _odd_integers(values)
        values = values.astype(np.float64)
    if values.dtype != np.float64:
        return values.astype(np.float32)
    near = np.asarray(values.astype(np.float32))
    inexact = near.astype(np.float64) != values
    inexact = inexact & np.isfinite(values)
    away = np.abs(near) > np.abs(values)
    cut = np.where(away, np.nextafter(near, np.float32(0)), near)
    bits = cut.view(np.uint32) | inexact.astype(np.uint32)
    return np.where(inexact, bits.view(np.float32), near)[()]


def odd_sum(first: Value, second: Value) -> Value:
    """Compute a sum in float64, rounded to odd as in `to_float32`.

    Source: Knuth, "The Art of Computer Programming" 2, 4.2.2, for the rounding error of a sum.
    """
    total = np.asarray(first + second)
    back = total - first
    lost = (first - (total - back)) + (second - back)
    bits = total.view(np.int64)
    inexact = np.isfinite(total) & np.isfinite(lost) & (lost != 0) & (bits & 1 == 0)
    towards = np.where(lost > 0, np.inf, -np.inf)
    return np.where(inexact, np.nextafter(total, towards), total)


def _odd_integers(values: Value) -> Value:
    """Round 64-bit integers to odd, to values that float64 represents."""
    drop = 64 - _EXACT_IN_FLOAT64
    low = values.dtype.type((1 << drop) - 1)
    cut = values & ~low  # Negative numbers round toward minus infinity, which is as good.
    odd = cut | values.dtype.type(1 << drop)
    is_large = np.abs(values.astype(np.float64)) >= float(1 << _EXACT_IN_FLOAT64)
    return np.where(is_large & ((values & low) != 0), odd, values)[()]


def to_integer(values: Value, target: ElementType) -> Value:
    """Convert floats toward zero, saturated, as hardware does; to 8 bits by way of 16 bits.

    NaN gives zero; from fp64 and to 64-bit types it gives 2**(bits - 1).
    """
    wide = np.asarray(values, np.float64)
    through = max(target.bits, 16)
    low, high = (-(1 << through - 1), (1 << through - 1) - 1)
    if target.kind == "u":
        low, high = 0, (1 << through) - 1
    inside = np.clip(np.nan_to_num(wide, nan=0.0, posinf=high, neginf=low), low, high)
    register = np.dtype(f"{target.kind}{through // 8}")
    whole = inside.astype(register)
    if through == 64:  # The largest float below 2**63 is far below the largest integer.
        whole = np.where(wide >= float(high), register.type(high), whole)
    if through == 64 or values.dtype == np.float64:
        nothing = np.array(1 << through - 1, f"u{through // 8}").view(register)
        whole = np.where(np.isnan(wide), nothing, whole)
    whole = whole.astype(target.compute)
    return whole if type(values) is _ndarray else whole[()]


def _toward_zero(values: Value, target: ElementType) -> Value:
    """Round to a narrower type toward zero."""
    assert target.round is not None, "only narrow types are rounded"
    nearest = target.round(values)
    too_large = np.abs(nearest) > np.abs(values)
    narrow = np.asarray(nearest).astype(target.memory)
    smaller = np.nextafter(narrow, target.memory.type(0)).astype(np.float32)
    result: Value = np.where(too_large, smaller, nearest)[()]
    return result
