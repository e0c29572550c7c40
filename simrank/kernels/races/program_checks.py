"""Accesses of one program, checked against unordered accesses of other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.kernels.races.findings import ATOMIC, ProgramRaceError, access_at, created_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simrank.device.clocks import Clock
    from simrank.device.memory import Storage
    from simrank.kernels.machine.protocols import Array
    from simrank.kernels.races.happens_before import ProgramRaces


# ---- loads by programs, which later stores to the same bytes must be ordered after ----

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


# ---- records of programs and memory for race detection between programs ----

IDLE, MIXED = 1, 2


class Shadow:
    """The last store of each byte of a storage: program, epoch, source line and value.

    Attributes:
        writers: 0: not stored yet; > 0: a program; < 0: several programs that stored the same
            value, see `Alike`.
        finest: Size of the smallest elements that were stored; all bytes of one have the same
            record.
        marks: `IDLE` where the store changed nothing, so that it races with stores only; `MIXED`
            where the same program had stored another value in the same epoch.
    """

    __slots__ = ("epochs", "finest", "marks", "sites", "values", "writers")

    def __init__(self, storage: Storage) -> None:
        size = storage.size_bytes
        self.finest = max(size, 1)
        self.writers = np.zeros(size, np.int32)
        self.epochs = np.zeros(size, np.int32)
        self.sites = np.zeros(size, np.int32)
        self.marks = np.zeros(size, np.uint8)
        self.values = storage.array(np.dtype(np.uint8))[:size].copy()


class Stored(NamedTuple):
    """A store: its program, the program's epoch, and the number of its source line."""

    writer: int
    epoch: int
    site: int


class Alike:
    """Unordered stores of the same value, for which `Shadow` has a single slot per byte.

    Sets of stores are numbered -1, -2, ...; equal sets have one number.
    """

    def __init__(self) -> None:
        self._stores: list[tuple[Stored, ...]] = [()]
        self._numbers: dict[tuple[Stored, ...], int] = {}

    def number(self, stores: tuple[Stored, ...]) -> int:
        """Return the number of a set of stores."""
        result = self._numbers.get(stores)
        if result is None:
            result = self._numbers[stores] = -len(self._stores)
            self._stores.append(stores)
        return result

    def __getitem__(self, number: int) -> tuple[Stored, ...]:
        """Return the stores with a number."""
        return self._stores[-number]


def of_rank(rank: int | None) -> str:
    """Return the rank of a program as text; empty for the main program."""
    return "" if rank is None else f" of rank {rank}"


class Name(NamedTuple):
    """Name of a program in reports; `number` is None for an operation of a stream."""

    number: int | None
    kernel: str
    rank: int | None

    def __str__(self) -> str:
        """Return the text for reports."""
        if self.number is None:
            return f"{self.kernel}{of_rank(self.rank)}"
        return f"program {self.number} of kernel '{self.kernel}'{of_rank(self.rank)}"


class Elements(NamedTuple):
    """Elements of a storage: the first byte of each, [n], and the element size in bytes."""

    first: Array
    itemsize: int


class Launched(NamedTuple):
    """Launch state at its start: the events that it is ordered after.

    Attributes:
        number: Number of the launch.
        num_ended: Number of programs that had ended.
        stream: Key of its stream in clocks.
        step: Step of the launch in its stream.
        run: Clock of its operation; the clocks of its programs are joined into it.
    """

    number: int
    num_ended: int
    stream: int
    step: int
    run: Clock

    def clock(self) -> Clock:
        """Return the initial clock of its programs, without this launch, which has not ended."""
        return {**self.run, self.stream: self.step - 1}


# ---- checks of one program's accesses ----

_WRITES, _READS = "writes", "reads"


class Touches:
    """Loads, stores and atomics of one program.

    Args:
        known: Race state of all programs.
        number: Number of the program.
        clock: Its vector clock.
        since: Number of programs that had ended when its launch began.
    """

    __slots__ = ("_clock", "_known", "_number", "_since")

    def __init__(self, known: ProgramRaces, number: int, clock: Clock, since: int) -> None:
        self._known = known
        self._number = number
        self._clock = clock
        self._since = since

    def loaded(self, storage: Storage, elements: Elements) -> None:
        """Check and record a load, and whether it is of the program's own store."""
        first, itemsize = elements
        self._check_atomics(storage, elements, _READS)
        known, is_own = self._known, None
        shadow = known.shadows.get(storage)
        if shadow is not None:
            self._check(storage, shadow, elements, _READS)
            if shadow.finest < itemsize:  # Single bytes of an element may be the program's own.
                first, itemsize = (first[:, None] + np.arange(itemsize)).reshape(-1), 1
            is_own = self._are_own(shadow.writers[first])
        reads = known.reads.get(storage)
        if reads is None:
            reads = known.reads[storage] = Reads()
        at = self._number, self._clock[self._number], known.site_number()
        if is_own is None or not is_own.any():
            reads.add(first, itemsize, *at)
            return
        reads.add(first[is_own], itemsize, *at, is_own=True)
        if not is_own.all():
            reads.add(first[~is_own], itemsize, *at)

    def stored(self, storage: Storage, elements: Elements, new: Array) -> None:
        """Check and record a store of known bytes, given as [n, itemsize]."""
        first, itemsize = elements
        self._check_atomics(storage, elements, _WRITES)
        shadow = self._shadow(storage)
        if shadow.finest < itemsize:  # Single bytes of an element may change.
            first = (first[:, None] + np.arange(itemsize)).reshape(-1)
            itemsize, new = 1, new.reshape(-1, 1)
        byte = first[:, None] + np.arange(itemsize)
        writers = shadow.writers[byte]
        is_past = self._is_past(writers)
        held = shadow.values[byte]
        held[is_past] = storage.array(np.dtype(np.uint8))[byte[is_past]]
        differs = (held != new).any(axis=1)
        if differs.any():
            changed = Elements(first[differs], itemsize)
            self._check(storage, shadow, changed, _WRITES)
            self._check_reads(storage, changed)
        again = ~(differs | is_past.all(axis=1))
        if again.any():
            self._check_alike(storage, shadow, Elements(first[again], itemsize))
        marks = self._marks(shadow, first, writers[:, 0], differs)
        marks[is_past.all(axis=1) & ~differs] = IDLE
        epochs = shadow.epochs[byte] if again.any() else writers
        self._note(shadow, byte, itemsize)
        shadow.values[byte] = new
        shadow.marks[byte] = marks[:, None]
        if again.any():
            self._join_alike(shadow, byte[again], writers[again], epochs[again])

    def overwritten(self, storage: Storage, elements: Elements) -> None:
        """Check and record a store whose bytes are not known yet."""
        shadow = self._shadow(storage)
        self._check_atomics(storage, elements, _WRITES)
        self._check(storage, shadow, elements, _WRITES)
        self._check_reads(storage, elements)
        byte = elements.first[:, None] + np.arange(elements.itemsize)
        self._note(shadow, byte, elements.itemsize)
        shadow.marks[byte] = 0

    def updated(self, storage: Storage, elements: Elements, *, is_alone: bool = False) -> None:
        """Check and record elements that an atomic changes.

        Args:
            storage: The memory.
            elements: The elements.
            is_alone: Whether the atomic is atomic only among the threads of its program (scope
                "cta").
        """
        known = self._known
        shadow = known.shadows.get(storage)
        if shadow is not None:
            self._check(storage, shadow, elements, ATOMIC)
            byte = (elements.first[:, None] + np.arange(elements.itemsize)).reshape(-1)
            shadow.values[byte] = storage.array(np.dtype(np.uint8))[byte]
        self._check_reads(storage, elements, ATOMIC)
        if is_alone:
            self._check_atomics(storage, elements, ATOMIC)
        if storage not in known.atomics:
            known.atomics[storage] = Reads()
        at = self._number, self._clock[self._number], known.site_number()
        known.atomics[storage].add(*elements, *at)

    def _shadow(self, storage: Storage) -> Shadow:
        shadow = self._known.shadows.get(storage)
        if shadow is None:
            shadow = self._known.shadows[storage] = Shadow(storage)
        return shadow

    def _note(self, shadow: Shadow, byte: Array, itemsize: int) -> None:
        """Record this program's store of bytes."""
        shadow.finest = min(shadow.finest, itemsize)
        shadow.writers[byte] = self._number
        shadow.epochs[byte] = self._clock[self._number]
        shadow.sites[byte] = self._known.site_number()

    def _marks(self, shadow: Shadow, first: Array, writers: Array, differs: Array) -> Array:
        """Return the marks of stored elements, given the programs that stored them before."""
        marks = shadow.marks[first]
        is_own = (writers == self._number) & (shadow.epochs[first] == self._clock[self._number])
        kept = np.where(differs, 0, marks & IDLE) | np.where(is_own, marks & MIXED, 0)
        result: Array = np.where(is_own & differs, MIXED, kept)
        return result.astype(np.uint8)

    def cure(self, storage: Storage, other: int, epoch: int) -> str | None:
        """Return the cure for a race with another program, or None if unknown."""
        del storage, other, epoch
        return None

    # ---- Order ----

    def _is_ordered(self, writer: int, epoch: int) -> bool:
        known = self._known
        if writer in (0, self._number) or self._clock.get(writer, 0) >= epoch:
            return True
        launch = known.launches[writer]
        if self._clock.get(launch.stream, 0) >= launch.step:
            return True
        is_one_rank = known.names[writer].rank == known.names[self._number].rank
        if is_one_rank and 0 < known.ends[writer] <= self._since:
            return True
        return known.is_long_ago(writer)

    def _is_past(self, writers: Array) -> Array:
        """Return the bytes that were never stored, or stored before this program's launch.

        Memory then holds their values: those stores have completed, and the host may have
        overwritten them. Storing the same value again is invisible to loads.
        """
        first = int(writers.flat[0])
        is_one = bool((writers == first).all())
        result = np.zeros(writers.shape, bool)
        for writer in [first] if is_one else np.unique(writers).tolist():
            if self._has_ended_before(writer):
                result |= writers == writer
        return result

    def _has_ended_before(self, writer: int) -> bool:
        if writer < 0:
            return all(self._has_ended_before(store.writer) for store in self._known.alike[writer])
        return writer == 0 or 0 < self._known.ends[writer] <= self._since

    def _are_own(self, writers: Array) -> Array:
        """Return the bytes whose last store is by this program, alone or beside equal stores."""
        result: Array = writers == self._number
        if len(writers) and writers.min() < 0:
            for writer in np.unique(writers[writers < 0]).tolist():
                if any(store.writer == self._number for store in self._known.alike[writer]):
                    result |= writers == writer
        return result

    # ---- Checks ----

    def _check(self, storage: Storage, shadow: Shadow, elements: Elements, verb: str) -> None:
        """Check elements against unordered stores of other programs."""
        first, itemsize = elements
        if shadow.finest < itemsize:
            first = (first[:, None] + np.arange(0, itemsize, shadow.finest)).reshape(-1)
        if verb == _READS:
            first = first[shadow.marks[first] & IDLE == 0]
        for store in self._stores(shadow, first, loads=verb == _READS):
            if not self._is_ordered(store.writer, store.epoch):
                self._report(storage, store.writer, store.site, (_WRITES, verb), store.epoch)

    def _stores(self, shadow: Shadow, first: Array, *, loads: bool) -> Iterator[Stored]:
        """Yield the last store of each other program to some bytes.

        A load skips stores of the value that this program stored as well.
        """
        writers = shadow.writers[first]
        for writer in np.unique(writers).tolist():
            if writer < 0:
                stores = self._known.alike[writer]
                if not loads or all(store.writer != self._number for store in stores):
                    yield from stores
            elif writer not in (0, self._number):
                own = first[writers == writer]
                worst = int(own[int(shadow.epochs[own].argmax())])
                yield Stored(writer, int(shadow.epochs[worst]), int(shadow.sites[worst]))

    def _check_atomics(self, storage: Storage, elements: Elements, verb: str) -> None:
        """Check elements against atomics of other programs."""
        atomics = self._known.atomics.get(storage)
        if atomics is None or not elements.first.size:
            return
        for atomic in atomics.touched_by(*elements):
            if not self._is_ordered(atomic.reader, atomic.epoch):
                self._report(storage, atomic.reader, atomic.site, (ATOMIC, verb), atomic.epoch)

    def _check_reads(self, storage: Storage, elements: Elements, verb: str = _WRITES) -> None:
        """Check elements that a store changes against loads of other programs."""
        reads = self._known.reads.get(storage)
        if reads is None:
            return
        for read in reads.touched_by(*elements):
            if not self._is_ordered(read.reader, read.epoch):
                self._report(storage, read.reader, read.site, (_READS, verb))

    def _check_alike(self, storage: Storage, shadow: Shadow, elements: Elements) -> None:
        """Check a store of another program's value against that program's earlier accesses.

        Its earlier accesses are stores of other values there, and loads.
        """
        first = elements.first
        others = set()
        for store in self._stores(shadow, first, loads=False):
            if not self._is_ordered(store.writer, store.epoch):
                others.add(store.writer)
        marks = shadow.marks[first]
        for store in self._stores(shadow, first[marks & MIXED != 0], loads=False):
            if store.writer in others:
                self._report(storage, store.writer, store.site, (_WRITES, _WRITES))
        reads = self._known.reads.get(storage)
        if reads is None or not others:
            return
        changed = first[marks == 0]  # Other elements held this value before.
        for read in reads.touched_by(changed, elements.itemsize) if len(changed) else ():
            if read.reader in others and not (read.is_own or self._is_ordered(*read[:2])):
                self._report(storage, read.reader, read.site, (_READS, _WRITES))

    def _join_alike(self, shadow: Shadow, byte: Array, before: Array, epochs: Array) -> None:
        """Record this program beside unordered programs that stored the same value."""
        own = Stored(self._number, self._clock[self._number], self._known.site_number())
        for writer in np.unique(before).tolist():
            if writer in (0, self._number):
                continue
            there = before == writer
            for epoch in np.unique(epochs[there]).tolist() if writer > 0 else [0]:
                alike = self._known.alike
                stores = (Stored(writer, epoch, own.site),) if writer > 0 else alike[writer]
                left = [store for store in stores if not self._is_ordered(*store[:2])]
                if left:
                    same = there & (epochs == epoch) if writer > 0 else there
                    shadow.writers[byte[same]] = alike.number((*left, own))

    def _report(
        self,
        storage: Storage,
        other: int,
        site_number: int,
        verbs: tuple[str, str],
        epoch: int | None = None,
    ) -> None:
        """Report a race of this program with an earlier access of another, at its epoch."""
        known, (before, verb) = self._known, verbs
        names = known.names[other], known.names[self._number]
        sites = known.sites[site_number], known.where()
        error = ProgramRaceError(
            known.checker.now_ps,
            names[1].rank,
            access_at(str(names[0]), before, sites[0]),
            access_at(str(names[1]), verb, sites[1]),
            created_at(storage),
            None if epoch is None else self.cure(storage, other, epoch),
        )
        # One report for all programs of the two kernels.
        known.checker.note(error, (*(name.kernel for name in names), *sites, *verbs))
