"""Number formats without an element type in kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from simrank.kernels.machine.arrays import Value


_DROPPED_BITS = 13  # Of the 23 of float32's mantissa, tf32 keeps 10.


def to_tf32(values: Value, *, truncates: bool = False) -> Value:
    """Round float32 values to tf32, ties away from zero, or truncate them as tensor cores do.

    Source: PTX ISA, `cvt.rna.tf32.f32`; the docstring of `tl.dot` for the truncation.
    """
    bits = np.asarray(values, np.float32).view(np.uint32)
    half = np.uint32(0 if truncates else 1 << (_DROPPED_BITS - 1))
    kept = np.uint32(0xFFFF_FFFF << _DROPPED_BITS & 0xFFFF_FFFF)
    rounded = ((bits + half) & kept).view(np.float32)
    result: Value = np.where(np.isfinite(values), rounded, values)[()]
    return result


def bytes_of_both(first: Value, second: Value, selector: Value) -> Value:
    """Select four of the eight bytes of two words by the nibbles of a selector, as uint32.

    A nibble with its highest bit set repeats the sign of its byte.

    Source: PTX ISA, `prmt`.
    """
    chosen = (np.asarray(selector)[..., None] >> np.arange(0, 16, 4)) & 0xF
    low, high = (values.astype(np.uint32).astype(np.uint64) for values in (first, second))
    both = np.asarray(low | (high << np.uint64(32)))[..., None]
    found = (both >> (8 * (chosen & 7)).astype(np.uint64)) & np.uint64(0xFF)
    found = np.where(chosen & 8, np.where(found & np.uint64(0x80), 0xFF, 0), found)
    result: Value = np.ascontiguousarray(found.astype(np.uint8)).view(np.uint32)[..., 0]
    return result
