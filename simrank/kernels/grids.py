"""Grids: how many programs a launch has along each axis."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

GridSize = int | Sequence[int] | Callable[[dict[str, Any]], int | Sequence[int]]
# Source: CUDA C++ Programming Guide, technical specifications per compute capability.
_MAX_GRID = (2**31 - 1, 65535, 65535)


def grid_sizes(grid: GridSize, meta: dict[str, Any]) -> tuple[int, int, int]:
    """Return a grid as three numbers.

    Raises:
        TypeError: A size is no whole number.
        ValueError: It has more than three axes, or a size that no device takes.
    """
    size = grid(meta) if callable(grid) else grid
    sizes = tuple(size) if isinstance(size, tuple | list) else (size,)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"a grid has one to three axes, got {size!r}")
    try:
        numbers = [operator.index(number) for number in sizes] + [1] * (3 - len(sizes))
    except TypeError:
        raise TypeError(
            f"a grid has whole numbers, got {size!r}\n  to fix: divide with triton.cdiv"
        ) from None
    if min(numbers) < 0:
        raise ValueError(f"a grid has no negative size, got {size!r}")
    if any(number > most for number, most in zip(numbers, _MAX_GRID, strict=True)):
        raise ValueError(
            f"a grid has at most {', '.join(map(str, _MAX_GRID))} programs along its axes, "
            f"got {size!r}\n  to fix: use the first axis for what is long"
        )
    return numbers[0], numbers[1], numbers[2]
