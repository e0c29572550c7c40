"""Shapes as torch's functions take them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def as_shape(shape: Sequence[Any]) -> tuple[int, ...]:
    """Return a shape given as separate ints or as one sequence."""
    if len(shape) == 1 and not isinstance(shape[0], int):
        return tuple(int(size) for size in shape[0])
    return tuple(int(size) for size in shape)


def resolve(shape: tuple[int, ...], num_elements: int) -> tuple[int, ...]:
    """Replace one -1 by what is left.

    Raises:
        RuntimeError: The sizes do not make up `num_elements`.
    """
    known = prod(size for size in shape if size != -1)
    if shape.count(-1) == 1 and known and num_elements % known == 0:
        return tuple(num_elements // known if size == -1 else size for size in shape)
    if -1 in shape or known != num_elements:
        raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {num_elements}")
    return shape
