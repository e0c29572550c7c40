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


def wrap_dim(dim: int, num_dims: int) -> int:
    """Return a dim counted from the front.

    Raises:
        IndexError: The tensor has no such dim; torch's words.
    """
    bound = max(num_dims, 1)
    if not -bound <= dim < bound:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-bound}, {bound - 1}], "
            f"but got {dim})"
        )
    return dim % bound


def wrap_dims(dim: int | Sequence[int] | None, num_dims: int) -> tuple[int, ...]:
    """Return the dims that a reduction is over, in order; None and () stand for all."""
    if dim is None or (not isinstance(dim, int) and not dim):
        return tuple(range(num_dims))
    dims = [wrap_dim(d, num_dims) for d in ((dim,) if isinstance(dim, int) else dim)]
    if len(set(dims)) != len(dims):
        raise RuntimeError(f"dim {dims} appears multiple times in the list of dims")
    return tuple(sorted(d for d in dims if num_dims))


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that all are broadcast to.

    Raises:
        RuntimeError: They do not fit; torch's words.
    """
    width = max(map(len, shapes))
    result = [1] * width
    for shape in shapes:
        for position, size in enumerate(shape, width - len(shape)):
            if result[position] == 1:
                result[position] = size
            elif size not in (1, result[position]):
                raise RuntimeError(
                    f"The size of tensor a ({result[position]}) must match the size of tensor b "
                    f"({size}) at non-singleton dimension {position}"
                )
    return tuple(result)
