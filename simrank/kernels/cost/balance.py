"""How evenly a launch's work lies on the SMs: the one with the most of it ends last (rule K4)."""

from __future__ import annotations

from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from simrank.kernels.machine.arrays import Array
    from simrank.kernels.machine.statistics import Load

_UNSEEN = 0.01  # Assumed: of the mean; a largest program of less than that is not worth a look.


def busiest_share(loads: list[Load], grid: tuple[int, int, int], num_sms: int) -> float:
    """Return the work of the SM that has the most, over the mean of all SMs.

    Programs start in the order of their ids, each where least is left to do.

    Args:
        loads: What programs do, of a sample or of all.
        grid: Programs along each axis.
        num_sms: SMs of the device.
    """
    total = int(np.prod(grid))
    if len({load.work for load in loads}) < 2:  # All alike.
        return -(-total // num_sms) * num_sms / total
    works = _works(loads, grid)
    mean = float(works.sum()) / num_sms
    if works.max() <= _UNSEEN * mean:
        return 1.0
    left = [0.0] * num_sms
    heapify(left)
    for work in works.tolist():
        heapreplace(left, left[0] + work)
    return max(left) / mean


def _works(loads: list[Load], grid: tuple[int, int, int]) -> Array:
    """Return the work of every program; between those of a sample it goes evenly along axis 0."""
    wide, rest = grid[0], grid[1] * grid[2]
    sums, counts = np.zeros(wide), np.zeros(wide)
    works = np.full(wide * rest, np.nan)
    for load in loads:
        works[load.ids] = load.work
        np.add.at(sums, load.ids % wide, load.work)
        np.add.at(counts, load.ids % wide, 1)
    known = np.flatnonzero(counts)
    between = np.interp(np.arange(wide), known, sums[known] / counts[known])
    return np.where(np.isnan(works), np.tile(between, rest), works)
