"""Launches on memory without values (rule D2): a sample of the programs says what all of them cost.

Loads give made-up numbers, the arithmetic of a few programs is done with them, and nothing is
stored. So it must not matter which numbers: the sample runs with zeros and again with others, and a
kernel that then does anything else is refused. What the sample did is scaled to the whole grid.
"""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.errors import SimrankError, UnsupportedError
from simrank.kernels.machine import Statistics
from simrank.kernels.running.batches import Grid

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.device.memory import Storage
    from simrank.device.races import Touched
    from simrank.kernels.machine import Setting
    from simrank.kernels.machine.arrays import Array

# Assumed: per axis of the grid, from the middle of as many equal parts: exact where the work grows
# evenly along it, as below a diagonal.
_POINTS_PER_AXIS = (4, 2, 1)
_FEW_PROGRAMS = 8  # All of them run.


class Forms(NamedTuple):
    """A kernel, ready to run.

    Attributes:
        name: Its name, for messages.
        body: Runs it for the current batch.
        masked: Makes the form in which programs can be masked off.
    """

    name: str
    body: Callable[[], object]
    masked: Callable[[], Callable[[], object]]


def run_sample(setting: Setting, forms: Forms, mode: str, touched: Touched | None) -> int:
    """Count in a launch's statistics what all of its programs do; return how often they split.

    What it writes is unknown from now on: only some of it would have been written.

    Args:
        setting: What the programs share, with the launch's own statistics.
        forms: The kernel.
        mode: How programs run, one of `launch.MODES`.
        touched: What the launch reads and writes.

    Raises:
        UnsupportedError: What the kernel does depends on values that it loads.
    """
    total = math.prod(setting.grid)
    if not total:
        return 0
    chosen = _chosen(setting.grid) if total > _FEW_PROGRAMS else np.arange(total)
    profile = setting.statistics.profile
    lines = None if profile is None else profile.snapshot()
    _check(setting, forms, mode, chosen[len(chosen) // 2 :][:1])
    own, num_splits = _counted(setting, forms, mode, chosen, fill=0)
    written = [] if touched is None else [buffer.storage for buffer in touched.writes]
    reached = {storage for storage, _ in own.views}  # By addresses too.
    for storage in [*written, *(each for each in reached if _may_write(own, each))]:
        storage.lose_values()
    factor = total / len(chosen)
    setting.statistics.add_scaled(own, factor)
    if profile is not None and lines is not None:
        profile.scale_since(lines, factor)
    return num_splits


def _check(setting: Setting, forms: Forms, mode: str, one: Array) -> None:
    """Raise if a program does something else with other numbers."""
    nobody = setting._replace(statistics=Statistics())  # No lines are counted.
    own, _ = _counted(nobody, forms, mode, one, fill=0)
    for fill in (1, 2):
        try:
            other, _ = _counted(nobody, forms, mode, one, fill=fill)
        except SimrankError as error:
            if fill == 1:  # A large number need be no offset: that access is outside of all memory.
                raise _steered(forms.name) from error
        except Exception as error:
            raise _steered(forms.name) from error  # With zeros there was none.
        else:
            if own.shape() != other.shape():
                raise _steered(forms.name)


def _may_write(statistics: Statistics, storage: Storage) -> bool:
    found = statistics.traffic.get(storage.address)
    return statistics.num_atomics > 0 or (found is not None and found.written_bytes > 0)


def _chosen(grid: tuple[int, int, int]) -> Array:
    """Return the ids of some programs, in the middle of equal parts of every axis."""
    axes = []
    for size, points in zip(grid, _POINTS_PER_AXIS, strict=True):
        parts = min(size, points)
        axes.append(sorted({(2 * part + 1) * size // (2 * parts) for part in range(parts)}))
    wide, high, _ = grid
    return np.array([x + wide * (y + high * z) for z, y, x in product(*axes[::-1])])


def _counted(
    setting: Setting, forms: Forms, mode: str, chosen: Array, *, fill: int
) -> tuple[Statistics, int]:
    """Return what some programs do, with zeros or other numbers where there are no values."""
    statistics = Statistics()
    statistics.fill = fill
    statistics.profile = setting.statistics.profile
    grid = Grid(setting._replace(statistics=statistics))
    grid.run(forms.body, mode, masked=forms.masked, chosen=chosen)
    return statistics, grid.num_splits


def _steered(kernel: str) -> UnsupportedError:
    return UnsupportedError(
        f"what kernel '{kernel}' does depends on values that it loads, which tensors above 64 KiB "
        "do not have in a shape-only Context\n  to fix: run it with data=True"
    )
