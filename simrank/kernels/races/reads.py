"""Loaded bytes of programs with times, against which later stores are checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simrank.kernels.machine.arrays import Array

_FIRST_ROWS = 64
_COLUMNS = ("_low", "_high", "_reader", "_epoch", "_site", "_own")


class Read(NamedTuple):
    """A load.

    Attributes:
        reader: Which program's.
        epoch: When, on the program's own clock: the last one of those that are alike.
        site: Number of the line of the source.
        is_own: Whether the program itself had stored there last.
    """

    reader: int
    epoch: int
    site: int
    is_own: bool


class Reads:
    """Loads of one storage, a row for each line of the source, program and range of bytes.

    A row counts for every byte of its range unless the load left some out; then it has a list.
    """

    def __init__(self) -> None:
        self._num_rows = 0
        self._low = np.zeros(_FIRST_ROWS, np.int64)
        self._high = np.zeros(_FIRST_ROWS, np.int64)
        self._reader = np.zeros(_FIRST_ROWS, np.int64)
        self._epoch = np.zeros(_FIRST_ROWS, np.int64)
        self._site = np.zeros(_FIRST_ROWS, np.int64)
        self._own = np.zeros(_FIRST_ROWS, np.int64)
        # By row, if scattered: the first byte of each element, in order, and its size.
        self._bytes: dict[int, tuple[Array, int]] = {}
        self._rows: dict[tuple[int, int, int, int, int, bool], int] = {}

    def add(
        self,
        first: Array,
        itemsize: int,
        reader: int,
        epoch: int,
        site: int,
        *,
        is_own: bool = False,
    ) -> None:
        """Remember a load.

        Args:
            first: [n] first byte of each element.
            itemsize: Bytes of an element.
            reader: The program.
            epoch: When, on the program's own clock.
            site: Number of the line of the source.
            is_own: Whether the program itself had stored there last.
        """
        low, high = int(first.min()), int(first.max()) + itemsize
        is_dense = high - low == first.size * itemsize
        key = (reader, site, low, high, 0 if is_dense else hash(first.tobytes()), is_own)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = self._new_row()
            self._low[row], self._high[row] = low, high
            self._reader[row], self._site[row], self._own[row] = reader, site, is_own
            if not is_dense:
                self._bytes[row] = np.unique(first), itemsize
        self._epoch[row] = epoch

    def _new_row(self) -> int:
        row = self._num_rows
        if row == len(self._low):
            for name in _COLUMNS:
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        self._num_rows += 1
        return row

    def touched_by(self, first: Array, itemsize: int) -> Iterator[Read]:
        """Yield the loads of bytes that a store is about to change."""
        low, high = int(first.min()), int(first.max()) + itemsize
        rows = slice(0, self._num_rows)
        hits = np.flatnonzero((self._low[rows] < high) & (self._high[rows] > low))
        for row in hits.tolist():
            if self._meets(row, first, itemsize):
                reader, epoch = int(self._reader[row]), int(self._epoch[row])
                yield Read(reader, epoch, int(self._site[row]), bool(self._own[row]))

    def _meets(self, row: int, first: Array, itemsize: int) -> bool:
        """Return whether elements share a byte with loaded elements of any size."""
        scattered = self._bytes.get(row)
        if scattered is None:
            inside = (first + itemsize > self._low[row]) & (first < self._high[row])
            return bool(inside.any())
        starts, size = scattered
        num_before = np.searchsorted(starts, first + itemsize)
        return bool((num_before > np.searchsorted(starts, first - size, side="right")).any())

    def forget(self, is_over: Callable[[int], bool]) -> None:
        """Drop the loads of programs that nothing that runs can race with any more."""
        readers = self._reader[: self._num_rows]
        over = {reader for reader in np.unique(readers).tolist() if is_over(reader)}
        if not over:
            return
        kept = [(key, row) for key, row in self._rows.items() if key[0] not in over]
        order = np.array([row for _, row in kept], np.int64)
        for name in _COLUMNS:
            column = getattr(self, name)
            fresh = np.zeros(max(_FIRST_ROWS, len(order)), np.int64)
            fresh[: len(order)] = column[order]
            setattr(self, name, fresh)
        self._rows = {key: index for index, (key, _) in enumerate(kept)}
        self._bytes = {
            index: self._bytes[row] for index, (_, row) in enumerate(kept) if row in self._bytes
        }
        self._num_rows = len(kept)
