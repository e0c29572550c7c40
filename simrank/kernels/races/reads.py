"""Loads by programs, which later stores to the same bytes must be ordered after."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simrank.kernels.machine.arrays import Array

_FIRST_ROWS = 64
_COLUMNS = ("_low", "_high", "_reader", "_epoch", "_site", "_own")


class Read(NamedTuple):
    """A recorded load.

    Attributes:
        reader: Number of the program.
        epoch: The program's epoch; of repeated equal loads, that of the last.
        site: Number of the source line.
        is_own: Whether the last store there was by the program itself.
    """

    reader: int
    epoch: int
    site: int
    is_own: bool


class Reads:
    """Loads of one storage: a row for each source line, program and byte range.

    A row covers every byte of its range; a load with gaps has a list of its elements as well.
    """

    def __init__(self) -> None:
        self._num_rows = 0
        self._low = np.zeros(_FIRST_ROWS, np.int64)
        self._high = np.zeros(_FIRST_ROWS, np.int64)
        self._reader = np.zeros(_FIRST_ROWS, np.int64)
        self._epoch = np.zeros(_FIRST_ROWS, np.int64)
        self._site = np.zeros(_FIRST_ROWS, np.int64)
        self._own = np.zeros(_FIRST_ROWS, np.int64)
        # Rows with gaps: the sorted first byte of each element, and the element size.
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
        """Record a load.

        Args:
            first: First byte of each element, [n].
            itemsize: Size of an element in bytes.
            reader: Number of the program.
            epoch: The program's epoch.
            site: Number of the source line.
            is_own: Whether the last store there was by the program itself.
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
        """Yield the recorded loads of bytes that a store is about to change."""
        low, high = int(first.min()), int(first.max()) + itemsize
        rows = slice(0, self._num_rows)
        hits = np.flatnonzero((self._low[rows] < high) & (self._high[rows] > low))
        for row in hits.tolist():
            if self._meets(row, first, itemsize):
                reader, epoch = int(self._reader[row]), int(self._epoch[row])
                yield Read(reader, epoch, int(self._site[row]), bool(self._own[row]))

    def _meets(self, row: int, first: Array, itemsize: int) -> bool:
        """Return whether elements share a byte with a row, whose element size may differ."""
        scattered = self._bytes.get(row)
        if scattered is None:
            inside = (first + itemsize > self._low[row]) & (first < self._high[row])
            return bool(inside.any())
        starts, size = scattered
        num_before = np.searchsorted(starts, first + itemsize)
        return bool((num_before > np.searchsorted(starts, first - size, side="right")).any())

    def forget(self, is_over: Callable[[int], bool]) -> None:
        """Drop the loads of programs that all later programs are ordered after."""
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
