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
_FEW_HOLES = 8  # Assumed: with less than one lane in so many masked off, sectors are as without.


def sector_waste(index: Value, itemsize: int) -> float:
    """Return the bytes that are moved for each byte of an access.

    Args:
        index: [1 or P, *shape] the elements touched; what the first program touches stands for all.
        itemsize: Bytes of an element.
    """
    if type(index) is not np.ndarray or index.ndim == 1 or itemsize >= SECTOR_BYTES:
        return 1.0
    at, step = index.item, 1
    for size in reversed(index.shape[1:]):
        if size > 1 and size * itemsize % SECTOR_BYTES == 0:
            first = at(0)
            if at(step) - first == 1 and at((size - 1) * step) - first == size - 1:
                return 1.0
        step *= size
    return _least_waste(index[0], itemsize)


def _least_waste(own: Value, itemsize: int) -> float:
    """Return the waste along the densest dim."""
    if own.size == 1:
        return 1.0
    found = [
        _waste_along(
            own[tuple(slice(None) if dim == each else 0 for dim in range(own.ndim))], itemsize
        )
        for each, size in enumerate(own.shape)
        if size > 1
    ]
    return min(found)


def _waste_along(line: Value, itemsize: int) -> float:
    """Return what lanes along a line of elements make the memory move, for each of its bytes."""
    num_sectors = len(np.unique(line * itemsize // SECTOR_BYTES))
    return max(num_sectors * SECTOR_BYTES / (len(line) * itemsize), 1.0)


def masked_waste(index: Value, active: Value, itemsize: int) -> float:
    """Return the waste of an access of which some lanes are masked off.

    Args:
        index: As in `sector_waste`.
        active: Which lanes are not; of the same shape.
        itemsize: Bytes of an element.
    """
    if type(index) is not np.ndarray or type(active) is not np.ndarray or index.ndim == 1:
        return 1.0
    if np.count_nonzero(active) * _FEW_HOLES > active.size * (_FEW_HOLES - 1):
        return sector_waste(index, itemsize)
    spread = np.broadcast_to(active, index.shape)
    row = int(spread.reshape(len(spread), -1).any(axis=1).argmax())
    return _waste_along(index[row][spread[row]].reshape(-1), itemsize)
