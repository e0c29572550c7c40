"""Launches on memory without values (rule D2), with costs from a sample of programs.

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

    from simrank.device.memory import Storage, Touched
    from simrank.kernels.machine import RunningLaunch
    from simrank.kernels.machine.protocols import Array
    from simrank.kernels.machine.statistics import Traffic

# Assumed: between the first and the last program along an axis, which are in the sample, from the
# middle of as many equal parts: exact where the work grows evenly along it, as below a diagonal.
_POINTS_PER_AXIS = (4, 2, 1)
_FEW_PROGRAMS = 16  # All of them run.


class _Alike(NamedTuple):
    """Programs of the sample.

    Attributes:
        ids: Which.
        factor: The number of programs that each of them represents.
    """

    ids: Array
    factor: float


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


class SampleKey(NamedTuple):
    """All that decides the counts of a launch on memory without values.

    Attributes:
        jit: The kernel.
        words: Grid, options and arguments, with storages by their numbers.
        storages: Of the arguments, by their numbers.
    """

    jit: object
    words: tuple[object, ...]
    storages: list[Storage]


class _Known(NamedTuple):
    """The counts of a form.

    Attributes:
        jit: The kernel, whose identity is part of the key: held.
        counts: Without traffic.
        traffic: For each part of a storage that was touched: the storage's number, the offset of
            the part (None: of no part), and the counts.
        num_splits: As `run_sample` returns it.
    """

    jit: object
    counts: Statistics
    traffic: list[tuple[int, int | None, Traffic]]
    num_splits: int


_known: dict[tuple[object, ...], _Known] = {}
_MOST_KNOWN = 10_000  # Assumed: more forms than a program has.


def sampled(
    setting: RunningLaunch, forms: Forms, mode: str, touched: Touched | None, form: SampleKey | None
) -> int:
    """Count a launch as `run_sample` does; a form that is known is not run again.

    Args:
        setting: What the programs share, with the launch's own statistics.
        forms: The kernel.
        mode: How programs run, one of `operation.MODES`.
        touched: What the launch reads and writes.
        form: All that decides the counts; None: it is not known what does.

    Raises:
        UnsupportedError: What the kernel does depends on values that it loads.
    """
    statistics = setting.statistics
    if form is None or statistics.profile is not None:
        return run_sample(setting, forms, mode, touched)
    key = (id(form.jit), *form.words)
    known = _known.get(key)
    if known is None:
        num_splits = run_sample(setting, forms, mode, touched)
        traffic = _by_number(statistics, form.storages)
        if traffic is not None and len(_known) < _MOST_KNOWN:
            _known[key] = _Known(form.jit, statistics.without_traffic(), traffic, num_splits)
        return num_splits
    statistics.take(known.counts)
    for number, offset, counted in known.traffic:
        storage = form.storages[number]
        place = ~storage.address if offset is None else storage.address + offset
        statistics.traffic[place] = counted.moved_to(storage)
    for buffer in () if touched is None else touched.writes:
        buffer.storage.lose_values()
    return known.num_splits


def _by_number(
    statistics: Statistics, storages: list[Storage]
) -> list[tuple[int, int | None, Traffic]] | None:
    """Return the traffic by numbers of storages; None if another storage was touched."""
    numbers = {storage.address: number for number, storage in enumerate(storages)}
    found: list[tuple[int, int | None, Traffic]] = []
    for place, counted in statistics.traffic.items():
        if counted.address not in numbers:
            return None
        offset = None if place < 0 else place - counted.address
        found.append((numbers[counted.address], offset, counted))
    return found


def run_sample(setting: RunningLaunch, forms: Forms, mode: str, touched: Touched | None) -> int:
    """Count all programs of a launch from a sample; return the number of splits.

    What it writes is unknown from now on: only some of it would have been written.

    Args:
        setting: What the programs share, with the launch's own statistics.
        forms: The kernel.
        mode: How programs run, one of `operation.MODES`.
        touched: What the launch reads and writes.

    Raises:
        UnsupportedError: What the kernel does depends on values that it loads.
    """
    total = math.prod(setting.grid)
    if not total:
        return 0
    groups = _chosen(setting.grid) if total > _FEW_PROGRAMS else [_Alike(np.arange(total), 1.0)]
    profile, num_splits = setting.statistics.profile, 0
    middle = groups[-1].ids[len(groups[-1].ids) // 2]
    _check(setting, forms, mode, np.unique([0, middle, total - 1]))
    for ids, factor in groups:
        lines = None if profile is None else profile.snapshot()
        own, splits = _counted(setting, forms, mode, ids, fill=0)
        setting.statistics.add_scaled(own, factor)
        if profile is not None and lines is not None:
            profile.scale_since(lines, factor)
        num_splits += splits
        _forget_values(own, touched)
    return num_splits


def _forget_values(statistics: Statistics, touched: Touched | None) -> None:
    """Mark written memory as unknown."""
    written = [] if touched is None else [buffer.storage for buffer in touched.writes]
    reached = {storage for storage, _ in statistics.views}  # By addresses too.
    for storage in [*written, *(each for each in reached if _may_write(statistics, each))]:
        storage.lose_values()


def _check(setting: RunningLaunch, forms: Forms, mode: str, some: Array) -> None:
    """Raise if the counts of programs depend on values."""
    uncounted = setting._replace(statistics=Statistics())  # No lines are counted.
    own, _ = _counted(uncounted, forms, mode, some, fill=0)
    for fill in (1, 2):
        try:
            other, _ = _counted(uncounted, forms, mode, some, fill=fill)
        except SimrankError as error:
            if fill == 1:  # A large number need be no offset: that access is outside of all memory.
                raise _steered(forms.name) from error
        except Exception as error:
            raise _steered(forms.name) from error  # With zeros there was none.
        else:
            if own.shape() != other.shape():
                raise _steered(forms.name)


def _may_write(statistics: Statistics, storage: Storage) -> bool:
    traffic = (t for t in statistics.traffic.values() if t.address == storage.address)
    return statistics.num_atomics > 0 or any(found.written_bytes > 0 for found in traffic)


def _chosen(grid: tuple[int, int, int]) -> list[_Alike]:
    """Return a sample of programs: all edges of the grid, then some between."""
    wide, high, _ = grid
    axes = [
        (sorted({0, size - 1}), _middles(size - 2, points), max(size - 2, 0))
        for size, points in zip(grid, _POINTS_PER_AXIS, strict=True)
    ]
    most = sum(1 for *_, between in axes if between)
    groups = []
    for inside in product((False, True), repeat=3):
        places, factor = [], 1.0
        for is_inside, (edges, middles, between) in zip(inside, axes, strict=True):
            points = edges
            if is_inside:  # Many points only where nothing else is at an edge.
                points = middles if sum(inside) == most else middles[len(middles) // 2 :][:1]
                factor *= between / max(len(points), 1)
            places.append(points)
        ids = [x + wide * (y + high * z) for z, y, x in product(*places[::-1])]
        if ids:
            groups.append(_Alike(np.array(ids), factor))
    return sorted(groups, key=lambda group: group.factor)


def _middles(between: int, points: int) -> list[int]:
    """Return the middles of equal parts between the edges of an axis."""
    parts = min(max(between, 0), points)
    return sorted({1 + (2 * part + 1) * between // (2 * parts) for part in range(parts)})


def _counted(
    setting: RunningLaunch, forms: Forms, mode: str, chosen: Array, *, fill: int
) -> tuple[Statistics, int]:
    """Return the counts of some programs, with zeros or other numbers as values."""
    statistics = Statistics()
    statistics.fill = fill
    statistics.parts = setting.statistics.parts
    statistics.profile = setting.statistics.profile
    # Programs run several times here, at addresses that may be made up: lanes seem to race.
    grid = Grid(setting._replace(statistics=statistics, lanes=None))
    grid.run(forms.body, mode, masked=forms.masked, chosen=chosen)
    return statistics, grid.num_splits


def _steered(kernel: str) -> UnsupportedError:
    return UnsupportedError(
        f"what kernel '{kernel}' does depends on values that it loads, which tensors above 64 KiB "
        "do not have in a shape-only Context\n  to fix: run it with data=True"
    )
