"""Number formats that have no type of their own in a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from simrank.kernels.machine.arrays import Value


_DROPPED_BITS = 13  # Of the 23 of float32's mantissa, tf32 keeps 10.


def to_tf32(values: Value, *, truncates: bool = False) -> Value:
    """Return float32 values as tf32: rounded, ties away from zero, or truncated as tensor cores do.

    Source: PTX ISA, `cvt.rna.tf32.f32`; the docstring of `tl.dot` for the truncation.
    """
    bits = np.asarray(values, np.float32).view(np.uint32)
    half = np.uint32(0 if truncates else 1 << (_DROPPED_BITS - 1))
    kept = np.uint32(0xFFFF_FFFF << _DROPPED_BITS & 0xFFFF_FFFF)
    rounded = ((bits + half) & kept).view(np.float32)
    result: Value = np.where(np.isfinite(values), rounded, values)[()]
    return result
