"""Broadcasting of shapes and arrays; the program axis stays in front."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import triton.language as tl

if TYPE_CHECKING:
    from simrank.kernels.machine.arrays import Value
    from simrank.kernels.values.block import Block

_ndarray = np.ndarray
MAX_NUMEL: int = tl.TRITON_MAX_TENSOR_NUMEL


def aligned(first: Value, second: Value) -> tuple[Any, Any]:
    """Return two blocks' values with equal numbers of axes, ready to broadcast in numpy.

    Axes are inserted behind the program axis, since Triton broadcasts shapes from the right.
    """
    if type(first) is _ndarray and type(second) is _ndarray:
        if first.ndim > second.ndim:
            second = with_axes(second, first.ndim)
        elif first.ndim < second.ndim:
            first = with_axes(first, second.ndim)
    return first, second


def check_broadcast(first: Block, second: Block) -> None:
    """Raise, with Triton's text, if two shapes cannot be broadcast."""
    common_shape(first.shape, second.shape)


@lru_cache(maxsize=1024)
def common_shape(ours: tuple[int, ...], theirs: tuple[int, ...]) -> tuple[int, ...]:
    """Return the common shape of two shapes.

    Raises:
        ValueError: The shapes are incompatible, or the result has too many elements.
    """
    if not ours or not theirs:
        return ours or theirs
    num_dims = max(len(ours), len(theirs))
    result, numel = [], 1
    for dim in range(-num_dims, 0):
        one = ours[dim] if -dim <= len(ours) else 1
        other = theirs[dim] if -dim <= len(theirs) else 1
        if one != other and 1 not in (one, other):
            raise ValueError(
                "Cannot make_shape_compatible: incompatible dimensions at index "
                f"{num_dims + dim}: {one} and {other}"
            )
        result.append(max(one, other))
        numel *= result[-1]
    if numel > MAX_NUMEL:
        raise ValueError(f"numel ({numel}) exceeds triton maximum tensor numel ({MAX_NUMEL})")
    return tuple(result)


def with_axes(values: Value, num_axes: int) -> Value:
    """Insert axes behind the program axis of an array; scalars need none."""
    if type(values) is not _ndarray or values.ndim == num_axes:
        return values
    missing = (1,) * (num_axes - values.ndim)
    return values.reshape(values.shape[:1] + missing + values.shape[1:])
