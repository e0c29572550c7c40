"""Accesses of one program, checked against unordered accesses of other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simrank.kernels.races.accesses import ATOMIC
from simrank.kernels.races.findings import ProgramRaceError, access_at, created_at
from simrank.kernels.races.reads import Reads
from simrank.kernels.races.shadow_memory import IDLE, MIXED, Elements, Shadow, Stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.device.memory import Storage
    from simrank.device.races import Clock
    from simrank.kernels.machine.arrays import Array
    from simrank.kernels.races.happens_before import ProgramRaces

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
