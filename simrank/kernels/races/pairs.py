"""Racing pairs of accesses in a launch whose accesses are all known.

An atomic races with every unordered plain load or store of another program, regardless of values.

Two stores race unless they store the same value. A load and a store race unless the load expects
the stored value anyway: the value of the last store ordered before it, or the value from before the
launch. Stores of the program itself and stores ordered by atomics are before a load. The result
does not depend on the order in which the programs ran here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.device.clocks import join
from simrank.kernels.machine import ALL_PROGRAMS
from simrank.kernels.races.findings import Access, Fence, ProgramRace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from simrank.device.memory import Storage
    from simrank.engine import CallSite
    from simrank.kernels.machine.protocols import Array

    Log = Sequence[Access | Fence]
    IsOrdered = Callable[[Array, Array], Array]

    from simrank.device.clocks import Clock

_MOST_ROWS = 1 << 22  # Per part of the check: about 200 MiB.
_MOST_ATOMICS = 64  # Of one element, compared with each plain access to it.
_MANY_ROWS = 32  # Of one unit; beyond it, similar rows are dropped.


class _Rows(NamedTuple):
    """Accesses by unit of memory, within each unit in the order of the launch.

    Attributes:
        unit: Number of the unit, [n].
        access: Index in the log, [n].
        segment: Segment of the program, [n]; see `Segments`.
        owner: Number of the program, [n].
        stores: Whether the access stores, [n].
        value: The stored value, or the value that a load expects, [n].
        held: The value before a store, [n].
    """

    unit: Array
    access: Array
    segment: Array
    owner: Array
    stores: Array
    value: Array
    held: Array

    def at(self, chosen: Array) -> _Rows:
        """Return the chosen rows."""
        return _Rows(*(column[chosen] for column in self))


def pairs(log: Log, *, orders: bool) -> list[ProgramRace]:
    """Return racing accesses of two programs, one pair for two lines and their kinds of access.

    Args:
        log: Accesses of a launch, in a possible order.
        orders: Whether atomics and fences order programs; if not, only program order counts.
    """
    by_storage: dict[Storage, list[Access]] = {}
    for access in log:
        if isinstance(access, Access) and access.order is None and access.size:
            by_storage.setdefault(access.storage, []).append(access)
    has_clocks = orders and any(isinstance(a, Access) and a.order is not None for a in log)
    found: dict[tuple[CallSite | None, CallSite | None, str, str], ProgramRace] = {}
    for storage, accesses in by_storage.items():
        if all(access.raw is None for access in accesses):
            continue
        unit_bytes = _unit_bytes(accesses)
        units = candidate_units(accesses, unit_bytes)
        for chosen in _parts(units, accesses):
            segments = Segments(has_clocks=has_clocks)
            rows = _rows(log, segments, storage, (chosen, unit_bytes))
            for finding in _races(log, rows, segments):
                first, second = finding.first, finding.second
                found.setdefault((first.site, second.site, first.verb, second.verb), finding)
    return list(found.values())


def races_with_atomics(log: Log) -> list[ProgramRace]:
    """Return races between an atomic and a plain access to one element, one pair for two lines.

    Args:
        log: Accesses of a launch, in a possible order.
    """
    by_storage: dict[Storage, list[Access]] = {}
    for access in log:
        if isinstance(access, Access) and access.size:
            by_storage.setdefault(access.storage, []).append(access)
    found: dict[tuple[CallSite | None, CallSite | None, str, str], ProgramRace] = {}
    for storage, accesses in by_storage.items():
        atomics = [access for access in accesses if access.order is not None and access.writes]
        if atomics and any(access.is_plain for access in accesses):
            for finding in _races_in_storage(log, storage, _bytes_of(accesses, atomics)):
                first, second = finding.first, finding.second
                found.setdefault((first.site, second.site, first.verb, second.verb), finding)
    return list(found.values())


def _bytes_of(accesses: list[Access], atomics: list[Access]) -> Array:
    """Return the bytes that both atomics and plain accesses touch."""
    touched = [access for access in accesses if access.is_plain]
    bytes_of: list[Array] = [
        np.unique(np.concatenate([_all_bytes(access) for access in group]))
        for group in (atomics, touched)
    ]
    result: Array = np.intersect1d(bytes_of[0], bytes_of[1], assume_unique=True)
    return result


def _all_bytes(access: Access) -> Array:
    return (access.first[:, None] + np.arange(access.itemsize)).reshape(-1)


def _races_in_storage(log: Log, storage: Storage, shared: Array) -> Iterator[ProgramRace]:
    """Yield races with atomics at some bytes of a storage."""
    if not len(shared):
        return
    segments = Segments(has_clocks=True)
    plain: list[tuple[Array, ...]] = []
    atomic: list[tuple[Array, ...]] = []
    for number, access in enumerate(log):
        lanes = None
        if not isinstance(access, Access) or access.order is not None:
            lanes = segments.advance(access)
        if not isinstance(access, Access) or access.storage is not storage or not access.size:
            continue
        if lanes is None:
            lanes = AtomicLanes(*_plain_lanes(access), np.zeros(0, np.int64))
            chosen = np.isin(lanes.first, shared)
            of_lanes = segments.of(lanes.owner[chosen])
        else:
            chosen = np.isin(lanes.first, shared)
            of_lanes = lanes.segment[chosen]
        rows = (
            lanes.first[chosen], lanes.owner[chosen], of_lanes,
            np.full(len(of_lanes), number), np.full(len(of_lanes), _changes(access)),
        )  # fmt: skip
        if access.is_plain:
            plain.append(rows)
        if access.order is not None and access.writes:
            atomic.append(rows)
    yield from _unordered_pairs(log, segments, _joined(plain), _joined(atomic))


def _plain_lanes(access: Access) -> tuple[Array, Array]:
    first, owner = access.first, access.owners
    if access.by_all_programs():
        first, owner = np.tile(first, len(access.ids)), np.repeat(access.ids, len(first))
    return first, owner.astype(np.int64)


def _changes(access: Access) -> bool:
    return access.raw is not None or access.writes


class _Lanes(NamedTuple):
    """Lanes of accesses: byte, program, segment, index in the log, and whether they write."""

    first: Array
    owner: Array
    segment: Array
    access: Array
    changes: Array


def _joined(rows: list[tuple[Array, ...]]) -> _Lanes:
    return _Lanes(*(np.concatenate(column) for column in zip(*rows, strict=True)))


def _unordered_pairs(
    log: Log, segments: Segments, plain: _Lanes, atomic: _Lanes
) -> Iterator[ProgramRace]:
    """Yield pairs of a plain access and an atomic to one byte that nothing orders."""
    order = np.argsort(atomic.first, kind="stable")
    atomic = _Lanes(*(column[order] for column in atomic))
    begin = np.searchsorted(atomic.first, plain.first, side="left")
    end = np.searchsorted(atomic.first, plain.first, side="right")
    most = int((end - begin).max(initial=0))
    half = min(most, _MOST_ATOMICS // 2)
    for turn in range(half + (half if most > half else 0)):
        other = begin + turn if turn < half else end - 1 - (turn - half)
        rows = np.flatnonzero((other >= begin) & (other < end))
        other = other[rows]
        keep = plain.owner[rows] != atomic.owner[other]
        rows, other = rows[keep], other[keep]
        if not len(rows):
            continue
        is_late = atomic.access[other] > plain.access[rows]
        before = np.where(is_late, plain.segment[rows], atomic.segment[other])
        after = np.where(is_late, atomic.segment[other], plain.segment[rows])
        free = np.flatnonzero(~segments.are_ordered(before, after))
        for at in free[:_MANY_ROWS].tolist():
            one, two = log[int(plain.access[rows[at]])], log[int(atomic.access[other[at]])]
            assert isinstance(one, Access), "rows are of accesses"
            assert isinstance(two, Access), "rows are of accesses"
            owners = int(plain.owner[rows[at]]), int(atomic.owner[other[at]])
            if is_late[at]:
                yield ProgramRace(one, two, owners)
            else:
                yield ProgramRace(two, one, owners[::-1])


def _unit_bytes(accesses: Iterable[Access]) -> int:
    """Return the largest unit in bytes that divides all elements: usually an element."""
    smallest = min(access.itemsize for access in accesses)
    return smallest if all(access.is_aligned(smallest) for access in accesses) else 1


def _parts(units: Array, accesses: list[Access]) -> Iterator[Array]:
    """Yield the units in parts that fit in memory."""
    if not len(units):
        return
    lanes = sum(
        access.size * (len(access.ids) if access.by_all_programs() else 1) for access in accesses
    )
    num_parts = min(-(-lanes // _MOST_ROWS), len(units))
    yield from np.array_split(units, num_parts)


def _rows(log: Log, segments: Segments, storage: Storage, part: tuple[Array, int]) -> _Rows:
    """Return the accesses to some units, ordered by unit."""
    units, unit_bytes = part
    is_chosen = np.zeros(int(units[-1]) + 1, np.bool_)
    is_chosen[units] = True
    columns: list[tuple[Array, ...]] = []
    for number, access in enumerate(log):
        if not isinstance(access, Access) or access.order is not None:
            segments.advance(access)
        elif access.storage is storage and access.size:
            lanes = _lanes(access, is_chosen, unit_bytes)
            if len(lanes[0]):
                of_lanes = segments.of(lanes[1])
                columns.append((lanes[0], np.full(len(lanes[0]), number), of_lanes, *lanes[1:]))
    joined = [np.concatenate(column) for column in zip(*columns, strict=True)]
    unit, *rest = joined
    order = np.argsort(unit, kind="stable")
    return _with_expected_values(_Rows(unit, *rest).at(order), segments)


def _lanes(access: Access, is_chosen: Array, unit_bytes: int) -> tuple[Array, ...]:
    """Return units, owners, whether they store, and the values after and before of an access."""
    unit = access.units(unit_bytes)
    inside = unit < len(is_chosen)
    inside[inside] = is_chosen[unit[inside]]
    lane, _ = np.nonzero(inside)
    unit, owner = unit[inside], access.owners[lane]
    stores = np.full(len(unit), access.raw is not None)
    value = held = np.zeros(len(unit), np.uint64)
    if access.raw is not None and access.held is not None:
        value, held = (
            array.view(f"u{unit_bytes}")[inside].astype(np.uint64)
            for array in (access.raw, access.held)
        )
    if access.by_all_programs():
        times = len(access.ids)
        owner = np.repeat(access.ids, len(unit))
        unit, stores, value, held = (
            np.tile(column, times) for column in (unit, stores, value, held)
        )
    return unit, owner.astype(np.int64), stores, value, held


def _with_expected_values(rows: _Rows, segments: Segments) -> _Rows:
    """Set the values that loads expect."""
    units = _Units(rows)
    value = np.where(rows.stores, rows.value, rows.held[units.first_store][units.number])
    behind = _ordered_stores(rows, segments) if segments.has_clocks else _last_own_stores(rows)
    for stores, loads in behind:
        value[loads] = rows.value[stores]
    return rows._replace(value=value)


def _last_own_stores(rows: _Rows) -> Iterator[tuple[Array, Array]]:
    """Yield row numbers of the last store by each load's own program, and of the loads."""
    place = np.arange(len(rows.unit))
    order = np.lexsort((place, rows.owner, rows.unit))
    begins = ~_same(order, rows.unit, rows.owner)
    begin = np.maximum.accumulate(np.where(begins, place, 0))
    last = np.maximum.accumulate(np.where(rows.stores[order], place, -1))
    behind = (last >= begin) & ~rows.stores[order]
    yield order[last[behind]], order[behind]


def _ordered_stores(rows: _Rows, segments: Segments) -> Iterator[tuple[Array, Array]]:
    """Yield row numbers of stores in order, and of the loads that they are ordered before."""
    for stores, others in _Units(rows).meetings():
        later = (others > stores) & ~rows.stores[others]
        before, loads = stores[later], others[later]
        if len(before):
            ordered = segments.are_ordered(rows.segment[before], rows.segment[loads])
            yield before[ordered], loads[ordered]


def _races(log: Log, rows: _Rows, segments: Segments) -> Iterator[ProgramRace]:
    """Yield the pairs of accesses that race, one for each two accesses of the log."""
    rows = rows if segments.has_clocks else _without_similar_rows(log, rows)
    for stores, others in _Units(rows).meetings():
        is_late = others > stores
        differs = rows.value[stores] != rows.value[others]
        differs &= is_late | ~rows.stores[others]  # Each pair of stores once.
        differs &= rows.owner[stores] != rows.owner[others]
        before = np.where(is_late, stores, others)[differs]
        after = np.where(is_late, others, stores)[differs]
        if segments.has_clocks and len(before):
            free = ~segments.are_ordered(rows.segment[before], rows.segment[after])
            before, after = before[free], after[free]
        yield from _findings(log, rows, before, after)


def _findings(log: Log, rows: _Rows, before: Array, after: Array) -> Iterator[ProgramRace]:
    """Yield one finding for each pair of accesses of the log."""
    keys = rows.access[before] * np.int64(len(log)) + rows.access[after]
    for at in np.unique(keys, return_index=True)[1].tolist():
        one, other = int(before[at]), int(after[at])
        first, second = log[int(rows.access[one])], log[int(rows.access[other])]
        assert isinstance(first, Access), "rows are of accesses"
        assert isinstance(second, Access), "rows are of accesses"
        yield ProgramRace(first, second, (int(rows.owner[one]), int(rows.owner[other])))


class _Units:
    """Rows grouped by unit.

    Attributes:
        number: Unit of each row, counted from 0, [n].
        first_store: Row of the first store of each unit.
    """

    def __init__(self, rows: _Rows) -> None:
        begins = np.ones(len(rows.unit), np.bool_)
        begins[1:] = rows.unit[1:] != rows.unit[:-1]
        self.number = np.cumsum(begins) - 1
        self._stores = np.flatnonzero(rows.stores)
        self._num_stores = np.bincount(self.number[self._stores])
        self._begin = np.cumsum(self._num_stores) - self._num_stores
        self.first_store = self._stores[self._begin]

    def meetings(self) -> Iterator[tuple[Array, Array]]:
        """Yield pairs of row numbers: a store, and each other row of its unit."""
        for turn in range(int(self._num_stores.max())):
            has_one = self._num_stores > turn
            rows = np.flatnonzero(has_one[self.number])
            stores = self._stores[(self._begin + turn)[self.number[rows]]]
            is_other = rows != stores
            yield stores[is_other], rows[is_other]


def _without_similar_rows(log: Log, rows: _Rows) -> _Rows:
    """Drop most similar rows of units with many rows: same line, many programs or values.

    Two programs and up to four values of each line remain. A race of any access is therefore found
    as a race of a remaining one.
    """
    if np.bincount(rows.unit - rows.unit[0]).max() <= _MANY_ROWS:
        return rows
    sites: dict[object, int] = {}
    keys = ((a.site, a.verb) if isinstance(a, Access) else None for a in log)
    of_access = np.array([sites.setdefault(key, len(sites)) for key in keys])
    line = of_access[rows.access]
    order = np.lexsort((rows.owner, rows.value, line, rows.unit))
    same_line = _same(order, rows.unit, line)
    same_value = same_line & _same(order, rows.value)
    kept = np.zeros(len(order), np.bool_)
    kept[order] = _ends(same_value) & _at_ends(same_line, np.cumsum(~same_value))
    by_owner = np.lexsort((rows.owner, line, rows.unit))
    kept[by_owner] |= _ends(_same(by_owner, rows.unit, line))
    return rows.at(np.flatnonzero(kept))


def _same(order: Array, *columns: Array) -> Array:
    """Return whether each row equals the one before it in an order; False for the first."""
    result = np.ones(len(order), np.bool_)
    result[0] = False
    for column in columns:
        result[1:] &= column[order][1:] == column[order][:-1]
    return result


def _ends(same: Array) -> Array:
    """Return the first and the last row of each run of equal rows."""
    result = ~same
    result[:-1] |= ~same[1:]
    result[-1] = True
    return result


def _at_ends(same_line: Array, values: Array) -> Array:
    """Return the rows with one of the first two or the last two values of their line."""
    line = np.cumsum(~same_line) - 1
    starts = np.flatnonzero(~same_line)
    ends = np.append(starts[1:], len(line)) - 1
    result: Array = (values - values[starts][line] < 2) | (values[ends][line] - values < 2)
    return result


# ---- Vector clocks of programs in lockstep ----
# A segment is a stretch of one program in which it neither acquires nor releases.


class AtomicLanes(NamedTuple):
    """Lanes of an atomic: first byte, program and segment of each, [n]."""

    first: Array
    owner: Array
    segment: Array


class _Segment(NamedTuple):
    program: int
    epoch: int
    clock: Clock


class _Program:
    """A program: its clock, the clock of its relaxed signals, and that of its relaxed reads.

    The clock is replaced, never changed: segments hold it.
    """

    def __init__(self, number: int) -> None:
        self.clock: Clock = {number: 1}
        self.fenced: Clock = {}
        self.seen: Clock = {}
        self.segment: int | None = None  # Its current segment; None before the first access in it.


class Segments:
    """Segments of all programs of a launch, up to the current place in its log.

    Args:
        has_clocks: Whether atomics order programs; if not, each program is one segment.
    """

    def __init__(self, *, has_clocks: bool) -> None:
        self.has_clocks = has_clocks
        self._all: list[_Segment] = []
        self._programs: dict[int, _Program] = {}
        self._flags: dict[tuple[Storage, int], Clock] = {}

    def of(self, owners: Array) -> Array:
        """Return the current segments of programs."""
        if not self.has_clocks:
            return owners
        programs, inverse = np.unique(owners, return_inverse=True)
        numbers: Array = np.array([self._segment(number) for number in programs.tolist()], np.int64)
        return numbers[inverse]

    def _segment(self, number: int) -> int:
        program = self._program(number)
        if program.segment is None:
            program.segment = len(self._all)
            self._all.append(_Segment(number, program.clock[number], program.clock))
        return program.segment

    def _program(self, number: int) -> _Program:
        if number not in self._programs:
            self._programs[number] = _Program(number)
        return self._programs[number]

    def are_ordered(self, before: Array, after: Array) -> Array:
        """Return a mask of pairs whose first segment is ordered before the second."""
        keys = before * np.int64(len(self._all)) + after
        unique, inverse = np.unique(keys, return_inverse=True)
        ordered: Array = np.array(
            [self._is_ordered(*divmod(key, len(self._all))) for key in unique.tolist()], np.bool_
        )
        return ordered[inverse]

    def _is_ordered(self, before: int, after: int) -> bool:
        program, epoch, _ = self._all[before]
        return self._all[after].clock.get(program, 0) >= epoch

    # ---- Log ----

    def advance(self, done: Access | Fence) -> AtomicLanes | None:
        """Update the clocks for an atomic or a fence.

        Returns:
            The lanes of an atomic; None for a fence, or without clocks.
        """
        if not self.has_clocks:
            return None
        if isinstance(done, Fence):
            self._fence(done.owners)
            return None
        return self._atomic(done)

    def _atomic(self, access: Access) -> AtomicLanes:
        """Acquire and release the flag of each lane of an atomic."""
        order = access.order
        assert order is not None, "it is an atomic"
        first, owners = access.first, access.owners
        if access.by_all_programs():
            first, owners = np.tile(first, len(access.ids)), np.repeat(access.ids, len(first))
        if order.scope == "cta":  # The scope is one program.
            return AtomicLanes(first, owners, self.of(owners))
        numbers = []
        for begin, owner in zip(first.tolist(), owners.tolist(), strict=True):
            program = self._program(owner)
            flag = self._flags.setdefault((access.storage, begin), {})
            carried = dict(flag)
            if access.writes:
                join(flag, program.clock if order.releases else program.fenced)
            if access.takes and order.acquires:
                self._begin_segment(program, carried)
            elif access.takes:
                join(program.seen, carried)
            numbers.append(self._segment(owner))
            if order.releases:
                self._begin_segment(program, {owner: program.clock[owner] + 1})
        return AtomicLanes(first, owners, np.array(numbers, np.int64))

    def _fence(self, owners: Array) -> None:
        """Order later signals of programs after their earlier accesses."""
        for owner in owners.tolist():
            program = self._program(owner)
            self._begin_segment(program, program.seen)
            program.fenced = program.clock
            self._begin_segment(program, {owner: program.clock[owner] + 1})

    @staticmethod
    def _begin_segment(program: _Program, behind: Clock) -> None:
        """Begin a new segment of a program, ordered after one more clock."""
        program.clock = dict(program.clock)
        join(program.clock, behind)
        program.segment = None


# ---- Candidate units: touched by several programs and changed by one ----
# Every access passes here, so each is looked at once and little is stored.

_NOBODY = -1


def candidate_units(accesses: Sequence[Access], unit_bytes: int) -> Array:
    """Return the units on which programs may race.

    Args:
        accesses: All loads and stores of one storage.
        unit_bytes: Unit size; each access covers whole units.
    """
    size = -(-accesses[0].storage.size_bytes // unit_bytes)
    owners = np.full(size, _NOBODY, np.int32)
    several, changed = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
    for access in accesses:
        index = _index(access, unit_bytes)
        if isinstance(index, slice):
            own = access.owners
            if access.itemsize != unit_bytes:
                own = np.repeat(own, access.itemsize // unit_bytes)
            before = owners[index]
            several[index] |= ((before != own) & (before != _NOBODY)) | (own == ALL_PROGRAMS)
            owners[index] = own
            if access.raw is not None:
                changed[index] |= access.differs(unit_bytes).reshape(-1)
            continue
        own = np.broadcast_to(access.owners[:, None], index.shape)
        before = owners[index]
        several[index[((before != own) & (before != _NOBODY)) | (own == ALL_PROGRAMS)]] = True
        owners[index] = own
        several[index[owners[index] != own]] = True  # Two programs in this access.
        if access.raw is not None:
            changed[index[access.differs(unit_bytes)]] = True
    return np.flatnonzero(several & changed)


def _index(access: Access, unit_bytes: int) -> slice | Array:
    """Return the units of an access, [n, itemsize / unit_bytes]; a slice if contiguous."""
    if isinstance(access.places, range):
        return slice(access.places.start // unit_bytes, access.places.stop // unit_bytes)
    return access.units(unit_bytes)
