"""Sectors: memory moves 32 bytes at a time, whatever part of them was asked for (rule K4).

Lanes are dealt to the elements of a block along the dim in which these lie side by side, as
Triton's coalescing does. So it is the stride of the densest dim that decides, and how many
elements there are before it jumps.

Source: CUDA C++ Best Practices Guide 13.0, "Coalesced Access to Global Memory"; the same size is
assumed for AMD.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from simrank.kernels.machine.arrays import Value

SECTOR_BYTES = 32
_FEW = 2  # Elements of a dim whose stride says nothing.


def sector_waste(index: Value, itemsize: int) -> float:
    """Return the bytes that are moved for each byte of an access.

    Args:
        index: [1 or P, *shape] the elements touched; what the first program touches stands for all.
        itemsize: Bytes of an element.
    """
    if type(index) is not np.ndarray or index.ndim == 1 or itemsize >= SECTOR_BYTES:
        return 1.0
    own = index[0]
    best = SECTOR_BYTES / itemsize
    for axis, size in enumerate(own.shape):
        if size == 1:
            continue
        line = own[tuple(slice(None) if each == axis else 0 for each in range(own.ndim))]
        best = min(best, _waste_along(line, itemsize))
        if best == 1.0:
            break
    return best if own.size > 1 else 1.0


def _waste_along(line: Value, itemsize: int) -> float:
    """Return what lanes along a line of elements make the memory move, for each of its bytes."""
    first, last, size = int(line[0]), int(line[-1]), len(line)
    if last - first == size - 1 and size > _FEW:  # Mostly: all of them, side by side.
        num_sectors = -(-size * itemsize // SECTOR_BYTES)
    else:
        num_sectors = len(np.unique(line * itemsize // SECTOR_BYTES))
    distinct = size if first != last else 1
    return max(num_sectors * SECTOR_BYTES / (distinct * itemsize), 1.0)
