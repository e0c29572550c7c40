"""Happens-before race detection between programs of kernels.

Every program has a vector clock. A release joins it into the flag that it writes; an acquire of
that flag joins it into the acquiring program. A fence does both for relaxed signals after it and
relaxed reads before it. Scope gpu orders programs of one device, scope sys those of all devices.
Loads and stores are recorded with program and epoch. An access races if it is not ordered after a
conflicting store of another program; so does a store after another program's load. Programs begin
ordered after everything their launch is ordered after (`device/races.py`); operations that follow
the launch are ordered after them. Within one rank, launches that had ended are ordered too:
`device/races.py` checks the streams of a rank.

Copies, products and collectives on memory that ranks share count as programs.

Atomics race only with plain loads and stores. A store that changes nothing does not race with
loads.
"""

from __future__ import annotations

import operator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, overload
from weakref import WeakKeyDictionary

import numpy as np

from simrank.device.clocks import ALL_DEVICES, join
from simrank.device.watch import end_text
from simrank.engine import user_site
from simrank.kernels.machine.protocols import AtomicEffect
from simrank.kernels.races.findings import ProgramFindingError, access_at, created_at
from simrank.kernels.races.program_checks import Alike, Elements, Launched, Name, Touches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from simrank.device.clocks import Clock
    from simrank.device.memory import Storage
    from simrank.device.races import RaceChecker
    from simrank.device.stream import Operation
    from simrank.engine import CallSite
    from simrank.kernels.machine import Order
    from simrank.kernels.machine.protocols import Array
    from simrank.kernels.races.program_checks import Reads, Shadow


# ---- value history of flags, and the clock that each value carried ----
# When a wait ends, the flag may have ended it earlier: at the first value of the last run of values
# that satisfy the wait. Only what was released to the flag by then is ordered for certain.

_MAX_VALUES = 128  # Per flag; the history before them is dropped.
_ENDS = {
    "Lt": operator.ge, "LtE": operator.gt, "Gt": operator.le, "GtE": operator.lt,
    "NotEq": operator.eq, "Eq": operator.ne,
}  # fmt: skip


class LoopCondition(NamedTuple):
    """The condition of a wait loop: comparison (name of the `ast` operator) and bound."""

    comparison: str
    bound: int

    def is_over(self, value: int) -> bool:
        """Return whether a value ends the wait."""
        return bool(_ENDS[self.comparison](value, self.bound))

    def end_text(self) -> str:
        """Return the values that end the wait, for reports."""
        return end_text(self.comparison, self.bound)


class Look(NamedTuple):
    """A read of a flag by a wait.

    Attributes:
        storage: Memory of the flag.
        first: First byte of the flag.
        values: Known values of the flag.
        before: Clock of the program before the read.
        scopes: Scopes of released clocks that the program acquires.
        is_relaxed: Whether the read orders nothing before the next fence.
    """

    storage: Storage
    first: int
    values: Sequence[_Value]
    before: Clock
    scopes: Sequence[int]
    is_relaxed: bool


class _Value(NamedTuple):
    """A value of a flag, and the clock that it carried in each scope."""

    value: int
    clocks: dict[int, Clock]


class Passed(NamedTuple):
    """A wait that a program has passed.

    Attributes:
        look: The last read of its flag.
        wait: Its condition.
        site: Its source line.
        began: Value of the flag when the launch first touched it; None if unknown.
    """

    look: Look
    wait: LoopCondition
    site: CallSite | None
    began: int | None

    def cure(self, *, has_signalled: bool) -> str | None:
        """Return the cure for a wait that did not order a program after another, or None.

        Args:
            has_signalled: Whether the other program has released its accesses to the flag.
        """
        site = self.look.storage.site()
        made = "" if site is None else f" (allocated at {site.line()})"
        at = "" if self.site is None else f" at {self.site.line()}"
        kind = "flag" if self.wait.comparison in ("NotEq", "Eq") else "counter"
        flag = f"the {kind} at byte {self.look.first} of a buffer{made}"
        if self.began is not None and self.wait.is_over(self.began):
            return (
                f"set back {flag} before the next launch, or wait for a value that grows with "
                f"every launch: it held {self.began} as this launch began, so the wait{at} for "
                f"{self.wait.end_text()} was over before it began"
            )
        if has_signalled and not self.look.is_relaxed:
            return (
                f"let the wait{at} count all signals: it ends at {self.wait.end_text()}, which "
                f"{flag} may hold before the first of the two programs has signalled"
            )
        return None


class FlagValues:
    """Value histories of the flags of one Context."""

    def __init__(self) -> None:
        self._began: dict[tuple[int, int, int], int] = {}
        self._known: WeakKeyDictionary[Storage, dict[int, list[_Value]]] = WeakKeyDictionary()

    def of(self, storage: Storage, first: int) -> Sequence[_Value]:
        """Return the known values of a flag, given its first byte."""
        return tuple(self._known.get(storage, {}).get(first, ()))

    def touched(self, launch: int, storage: Storage, first: int, value: int) -> None:
        """Record the value of a flag at the first access of a launch."""
        self._began.setdefault((launch, storage.address, first), value)

    def began(self, launch: int, storage: Storage, first: int) -> int | None:
        """Return the first value of a flag in a launch, or None if it is unknown."""
        return self._began.get((launch, storage.address, first))

    def launch_ended(self, launch: int) -> None:
        """Drop the first values of a launch that has ended."""
        self._began = {key: value for key, value in self._began.items() if key[0] != launch}

    def forget(self, storage: Storage, low: int, high: int) -> None:
        """Drop the history of flags within bytes that were written without a known order."""
        flags = self._known.get(storage)
        for first in [first for first in flags or () if low <= first < high]:
            del self._known[storage][first]

    def note(
        self, storage: Storage, first: int, value: tuple[int, int], clocks: dict[int, Clock]
    ) -> None:
        """Record a write of a flag: values before and after it, and the carried clocks."""
        values = self._known.setdefault(storage, {}).setdefault(first, [])
        if not values or values[-1].value != value[0]:  # An unrecorded write came between.
            values[:] = [_Value(value[0], _copied(clocks) if values else {})]
        values.append(_Value(value[1], _copied(clocks)))
        if len(values) > _MAX_VALUES:
            del values[:-1]


def sure(look: Look, wait: LoopCondition) -> Clock | None:
    """Return the clock that a flag carried when it first satisfied a wait, or None if unknown."""
    if not look.values or not wait.is_over(look.values[-1].value):
        return None
    clocks: dict[int, Clock] = {}
    for value, carried in reversed(look.values):
        if not wait.is_over(value):
            break
        clocks = carried
    result: Clock = {}
    for scope in look.scopes:
        join(result, clocks.get(scope, {}))
    return result


def _copied(clocks: dict[int, Clock]) -> dict[int, Clock]:
    return {scope: dict(clock) for scope, clock in clocks.items()}


# ---- race detection by vector clocks ----
# Every program has a vector clock. A release joins it into the flag that it writes; an acquire of
# that flag joins it into the acquiring program. A fence does both for relaxed signals after it and
# relaxed reads before it. Scope gpu orders programs of one device, scope sys those of all devices.
# Loads and stores are recorded with program and epoch. An access races if it is not ordered after a
# conflicting store of another program; so does a store after another program's load. Programs begin
# ordered after everything their launch is ordered after (`device/races.py`); operations that follow
# the launch are ordered after them. Within one rank, launches that had ended are ordered too:
# `device/races.py` checks the streams of a rank.
#
# Copies, products and collectives on memory that ranks share count as programs.
#
# Atomics race only with plain loads and stores. A store that changes nothing does not race with
# loads.

_SYS = ALL_DEVICES
_MOST_WAITS = 4  # per program, for the cures of reports
# Steps of its stream; older launches count as ordered, which bounds memory.
_LONG_AGO = 256


class ProgramRaces:
    """Race state of all programs of one Context."""

    def __init__(self, checker: RaceChecker) -> None:
        self.checker = checker
        self.shadows: WeakKeyDictionary[Storage, Shadow] = WeakKeyDictionary()
        self.reads: WeakKeyDictionary[Storage, Reads] = WeakKeyDictionary()
        # Only those that write.
        self.atomics: WeakKeyDictionary[Storage, Reads] = WeakKeyDictionary()
        self.alike = Alike()
        # Per flag: the released clock, for each device that sees it, and for all devices.
        self.flags = checker.order.flags
        self.names = [Name(0, "", None)]  # By program; 0 means none.
        self.ends: list[int] = [0]  # By program: its place in the order of ends; 0 while it runs.
        self.launches = [Launched(0, 0, 0, 0, {})]  # By program.
        self._steps: dict[int, int] = {}  # By stream: step of its last launch.
        self._ranks: set[int | None] = set()  # Ranks of all programs so far.
        self.where: Callable[[], CallSite | None] = user_site
        self.num_ended = 0
        self._num_launches = 0
        self.signals = Signals()
        self.values = FlagValues()
        # Programs up to this end are ordered before all current and later ones.
        self._forgotten = 0
        self._num_flags = 0  # Number of flags left at the last cleanup.
        self._flags_at = 0  # Value of `_forgotten` at the last cleanup.
        self._live: list[int] = []  # `num_ended` at the start of each running launch.
        self.sites: list[CallSite | None] = []
        self._site_numbers: dict[CallSite | None, int] = {}

    def launched(self, operation: Operation) -> Launched:
        """Record the start of a launch, and return the state that its programs begin from."""
        agent = operation.stream.race_agent
        assert agent is not None, "it was issued"
        run = {} if operation.run is None else operation.run
        return self.launched_at(operation.rank, agent.key, run)

    def launched_at(self, rank: int | None, stream: int, run: Clock) -> Launched:
        """Record the start of an operation of a rank's stream by its clock; as `launched`."""
        self._ranks.add(rank)  # Accesses of other ranks are kept from now on.
        step = self._steps[stream] = run.get(stream, 0)
        oldest = self._live[0] if self._live else self.num_ended
        if oldest > self._forgotten:
            self._forgotten = oldest
            for kept in (*self.reads.values(), *self.atomics.values()):
                kept.forget(self._is_behind_all)
            self._forget_signals()
        self._live.append(self.num_ended)
        self._num_launches += 1
        return Launched(self._num_launches, self.num_ended, stream, step, run)

    def is_long_ago(self, number: int) -> bool:
        """Return whether a program's launch is old enough to count as ordered before all others."""
        launch = self.launches[number]
        return self._steps.get(launch.stream, 0) - launch.step > _LONG_AGO

    def _is_behind_all(self, number: int) -> bool:
        if not 0 < self.ends[number] <= self._forgotten:
            return False
        return len(self._ranks) < 2 or self.is_long_ago(number)

    def _forget_signals(self) -> None:
        """Drop programs from flags if all current and later programs are ordered after them.

        A cleanup runs only after as many programs have ended as there are flags to visit.
        """
        if self._forgotten - self._flags_at < self._num_flags:
            return
        self._flags_at, self._num_flags = self._forgotten, 0
        for storage, by_offset in self.flags.items():
            kept = {}
            for offset, by_scope in by_offset.items():
                left = {scope: self._still_needed(clock) for scope, clock in by_scope.items()}
                if any(left.values()):
                    kept[offset] = left
            self.flags[storage] = kept
            self._num_flags += len(kept)

    def _still_needed(self, clock: Clock) -> Clock:
        """Return a clock without ended programs that order nothing; streams stay."""
        return {n: e for n, e in clock.items() if n < 0 or not self._is_behind_all(n)}

    def over(self, behind: Launched) -> None:
        """Record the end of a launch."""
        self._live.remove(behind.num_ended)
        self.values.launch_ended(behind.number)

    def start(
        self, kernel: str, number: int | None, rank: int | None, device: int, behind: Launched
    ) -> ProgramClock:
        """Return the clock of a new program.

        Args:
            kernel: The kernel's name.
            number: The program's id; None for an operation of a stream.
            rank: Rank of the launch.
            device: Index of the device.
            behind: State of its launch at the start.
        """
        self.names.append(Name(number, kernel, rank))
        self.ends.append(0)
        self.launches.append(behind)
        self._ranks.add(rank)
        return ProgramClock(self, len(self.ends) - 1, device, behind)

    def program_ended(self, number: int, clock: Clock) -> None:
        """Record the end of a program, and join its clock into that of its launch."""
        self.num_ended += 1
        self.ends[number] = self.num_ended
        launch = self.launches[number]
        join(launch.run, {n: e for n, e in clock.items() if not self._is_implied(n, launch)})
        # Only the identity of the launch is still read.
        self.launches[number] = launch._replace(run={})

    def _is_implied(self, number: int, launch: Launched) -> bool:
        """Return whether the operations after a launch are ordered after a clock's entry anyway."""
        if number < 0:
            return number == launch.stream
        other = self.launches[number]
        # Includes programs of its own launch.
        is_known = launch.run.get(other.stream, 0) >= other.step
        return is_known or self.is_long_ago(number)

    @contextmanager
    def at(self, site: CallSite | None) -> Iterator[None]:
        """Set the source line of accesses within the block."""
        self.where = lambda: site
        try:
            yield
        finally:
            self.where = user_site

    def site_number(self) -> int:
        """Return the number of the running program's source line."""
        site = self.where()
        result = self._site_numbers.get(site)
        if result is None:
            result = self._site_numbers[site] = len(self.sites)
            self.sites.append(site)
        return result


class ProgramClock(Touches):
    """Accesses and vector clock of one program."""

    __slots__ = (
        "_before", "_device", "_fenced", "_launch", "_look", "_seen", "_wait", "looks", "signal",
        "waits",
    )  # fmt: skip

    def __init__(self, known: ProgramRaces, number: int, device: int, behind: Launched) -> None:
        self.waits: list[Passed] = []  # The last ones, for cures in reports.
        # Memory order of a store that is a signal, during that store.
        self.signal: Order | None = None
        self.looks = False  # Whether the current load is volatile: a relaxed read of a signal.
        self._device = device
        self._launch = behind.number
        # Clock at the last fence, which relaxed signals release; a launch begins with a fence.
        self._fenced = behind.clock()
        super().__init__(known, number, {**self._fenced, number: 1}, behind.num_ended)
        self._before: Clock | None = None  # Clock before the last read of a wait.
        self._look: Look | None = None  # The last read of a single flag.
        self._wait: LoopCondition | None = None  # Condition of the current wait loop.
        self._seen: Clock = {}  # Clocks of relaxed reads, which the next fence acquires.

    def end(self) -> None:
        """Record the end of the program, which acts as a fence."""
        join(self._clock, self._seen)
        self._known.program_ended(self._number, self._clock)

    def took(self, storage: Storage, low: int, high: int) -> None:
        """Record a completed wait for a flag, and report a stale signal."""
        known, name = self._known, self._known.names[self._number]
        waiter = Waiter(self._launch, name.kernel, str(name), user_site())
        storage = storage.history_key
        before = known.signals.take(storage, (low, high), waiter, self._was_behind)
        if before is not None:
            error = stale(known.checker.now_ps, name.rank, (before, waiter), storage)
            alike = ("stale signal", waiter.kernel, waiter.site)
            known.checker.note(error, alike, is_proved=False)

    def _was_behind(self, number: int, epoch: int) -> bool:
        """Return whether an epoch was ordered before the last read of the program's wait."""
        before = self._clock if self._before is None else self._before
        if before.get(number, 0) >= epoch:
            return True
        launch = self._known.launches[max(number, 0)]
        return number > 0 and before.get(launch.stream, 0) >= launch.step

    def cure(self, storage: Storage, other: int, epoch: int) -> str | None:
        """Return the cure for a race with another program, if one of the last waits explains it."""
        for passed in reversed(self.waits):
            look = passed.look
            by_scope = self._known.flags.get(look.storage, {}).get(look.first, {})
            has_signalled = any(clock.get(other, 0) >= epoch for clock in by_scope.values())
            found = passed.cure(has_signalled=has_signalled)
            if found is not None and look.storage is not storage:
                return found
        return None

    # ---- Order ----

    def fence(self) -> None:
        """Order later signals after earlier accesses, and later accesses after earlier reads."""
        join(self._clock, self._seen)
        self._seen.clear()
        self._fenced = dict(self._clock)
        self._clock[self._number] += 1

    def atomic(self, storage: Storage, index: Array, itemsize: int, asked: AtomicEffect) -> None:
        """Acquire and release the flags of an atomic; check and record its writes.

        Args:
            storage: Memory of the flags.
            index: Indices of the elements.
            itemsize: Size of an element in bytes.
            asked: Memory order of the atomic, and what it does.

        Raises:
            RaceError: A plain access is not ordered before the atomic, and races are errors.
        """
        order, hands, takes = asked
        storage = storage.history_key
        written = Elements(np.unique(index) * itemsize, itemsize)
        if order is not None and order.scope == "cta":  # The scope is one program.
            if hands:
                self.updated(storage, written, is_alone=True)
            return
        releases = order is not None and order.releases
        acquires = order is not None and order.acquires
        is_wide = order is None or order.scope == "sys"
        scopes = (self._device, _SYS) if is_wide else (self._device,)
        target = self._clock if acquires else self._seen
        target = target if takes else {}
        carried: Clock = {}
        elements = np.unique(index).tolist()
        if len(elements) == 1:
            first = elements[0] * itemsize
            values = self._known.values.of(storage, first)
            self._look = Look(storage, first, values, dict(target), scopes, not acquires)
        for element in elements:
            by_scope = self._known.flags.setdefault(storage, {}).setdefault(element * itemsize, {})
            for scope in scopes:
                clock = by_scope.setdefault(scope, {})
                join(carried, clock)
                if hands:
                    join(clock, self._clock if releases else self._fenced)
            self._known.checker.order.take_put(storage, element * itemsize, carried)
        join(target, carried)
        if hands:
            self.updated(storage, written)
        if releases:
            self._clock[self._number] += 1

    def _note_value(self, storage: Storage, first: int, itemsize: int) -> None:
        """Record the value of a flag at the first access of the launch."""
        raw = storage.array(np.dtype(np.uint8))[first : first + itemsize]
        value = int.from_bytes(raw.tobytes(), "little", signed=True)
        self._known.values.touched(self._launch, storage, first, value)

    def set_flag(self, storage: Storage, first: int, before: int, after: int) -> None:
        """Record the value of a flag after an atomic."""
        storage = storage.history_key
        self._known.values.touched(self._launch, storage, first, before)
        by_scope = self._known.flags.get(storage, {}).get(first, {})
        self._known.values.note(storage, first, (before, after), by_scope)

    def tested(self, comparison: str, bound: int) -> None:
        """Record the condition of a wait loop before its next iteration."""
        self._wait = LoopCondition(comparison, bound)

    def passed(self) -> None:
        """Record the end of a wait loop, and reset the clock to the certain part of its flag."""
        look, wait, self._look, self._wait = self._look, self._wait, None, None
        self._before = None if look is None else look.before
        if look is not None and wait is not None:
            began = self._known.values.began(self._launch, look.storage, look.first)
            self.waits.append(Passed(look, wait, self._known.where(), began))
            del self.waits[:-_MOST_WAITS]
        carried = None if look is None or wait is None else sure(look, wait)
        if carried is None or look is None:
            return
        clock = dict(look.before)
        join(clock, carried)
        if look.is_relaxed:
            self._seen = clock
        else:
            clock[self._number] = self._clock[self._number]
            self._clock = clock

    def rewrites(self, storage: Storage, index: Array, itemsize: int) -> None:
        """Record writes of flags; a write of the same value is a new signal too."""
        storage = storage.history_key
        if storage in self._known.signals:
            for first in (np.unique(index) * itemsize).tolist():
                rewrite = self._number, self._clock[self._number]
                self._known.signals.rewrote(storage, first, first + itemsize, rewrite)

    def meet(self, clock: Clock) -> None:
        """Join clocks with a barrier of programs of all ranks, in both directions."""
        join(self._clock, clock)
        join(clock, self._clock)
        self._clock[self._number] += 1

    # ---- Accesses ----

    def loads(self, storage: Storage, index: Array, itemsize: int) -> None:
        """Check a load against stores of other programs, and record it.

        Raises:
            RaceError: A store is not ordered before the load, and races are errors.
        """
        storage = storage.history_key
        if self.looks:
            if index.size == 1 and storage.has_values:
                self._note_value(storage, int(index.reshape(-1)[0]) * itemsize, itemsize)
            self.atomic(storage, index, itemsize, AtomicEffect(None, hands=False))
        elif index.size:
            self.loaded(storage, Elements(index.reshape(-1) * itemsize, itemsize))

    def stores(self, storage: Storage, index: Array, values: Array) -> None:
        """Check a store against accesses of other programs, and record it.

        Raises:
            RaceError: A conflicting access is not ordered before the store, and races are errors.
        """
        itemsize, storage = values.dtype.itemsize, storage.history_key
        self.rewrites(storage, index, itemsize)
        if index.size:
            low, high = (int(end) * itemsize for end in (index.min(), index.max() + 1))
            self._known.values.forget(storage, low, high)
        if self.signal is not None:
            self.atomic(
                storage, index, itemsize, AtomicEffect(self.signal, hands=True, takes=False)
            )
            return
        flat = np.ascontiguousarray(np.broadcast_to(values, index.shape)).reshape(-1)
        elements = Elements(index.reshape(-1) * itemsize, itemsize)
        self.stored(storage, elements, flat.view(np.uint8).reshape(-1, itemsize))

    def overwrites(self, storage: Storage, index: Array, itemsize: int) -> None:
        """Check a store of values that are not known yet, and record it.

        Raises:
            RaceError: Another access is not ordered before the store, and races are errors.
        """
        if index.size:
            self.overwritten(storage.history_key, Elements(index.reshape(-1) * itemsize, itemsize))


_KEY = "programs of kernels"


@overload
def races_of(checker: RaceChecker) -> ProgramRaces: ...


@overload
def races_of(checker: None) -> None: ...


def races_of(checker: RaceChecker | None) -> ProgramRaces | None:
    """Return the race state of a Context; None without a race checker."""
    if checker is None:
        return None
    result: ProgramRaces | None = checker.local.get(_KEY)
    if result is None:
        result = checker.local[_KEY] = ProgramRaces(checker)
    return result


# ---- Stale signals ----


class StaleSignalError(ProgramFindingError):
    """A wait ended at once on the flag value that an earlier launch had waited for.

    Suspected, since a program may set a flag once for all launches; reported, never raised.

    Attributes:
        time_ps: Simulated time of the second wait.
        rank: Rank of the waiting program.
        first, second: The waits; `name` gives program and rank.
        created_at: Where the flag was allocated, as `file.py:line`, or None.
    """

    def _head(self, time: str) -> str:
        return (
            f"stale signal (suspected) at t={time}: a signal that an earlier launch had taken "
            "ended a wait"
        )

    def _advice(self) -> str:
        return "set the flag back after the wait, or wait for a value that grows with every launch"


class Waiter(NamedTuple):
    """A program that has waited.

    Attributes:
        launch: Number of its launch.
        kernel: The kernel's name.
        name: Program and rank, for reports.
        site: Source line of the wait.
    """

    launch: int
    kernel: str
    name: str
    site: CallSite | None


class _Taken(NamedTuple):
    value: bytes
    waiter: Waiter


class Signals:
    """Flags of one Context whose signals ended a wait, until their values change."""

    def __init__(self) -> None:
        self._taken: WeakKeyDictionary[Storage, dict[tuple[int, int], _Taken]] = WeakKeyDictionary()
        # The last program and epoch that wrote a flag since, even the same value.
        self._rewritten: WeakKeyDictionary[Storage, dict[tuple[int, int], tuple[int, int]]] = (
            WeakKeyDictionary()
        )

    def __contains__(self, storage: Storage) -> bool:
        """Return whether a signal in some memory has ended a wait."""
        return bool(self._taken.get(storage))

    def take(
        self,
        storage: Storage,
        extent: tuple[int, int],
        waiter: Waiter,
        was_behind: Callable[[int, int], bool],
    ) -> Waiter | None:
        """Record that a wait for a flag has ended.

        Args:
            storage: Memory of the flag.
            extent: The first byte, and the one past the last.
            waiter: The program that waited.
            was_behind: Returns whether the waiter was ordered after a program or stream at an
                epoch.

        Returns:
            The waiter of an earlier launch of the kernel that used the same signal at the same
            line.
        """
        flags = self._taken.setdefault(storage, {})
        before, again = flags.get(extent), self._rewritten.get(storage, {}).pop(extent, None)
        flags[extent] = _Taken(_bytes(storage, *extent), waiter)
        if before is None or before.waiter.launch == waiter.launch:
            return None
        if again is not None and was_behind(*again):
            return None
        is_same = (before.waiter.kernel, before.waiter.site) == (waiter.kernel, waiter.site)
        return before.waiter if is_same else None

    def wrote(self, storage: Storage, low: int, high: int) -> None:
        """Drop signals among the bytes `low` to `high` whose values have changed."""
        storage = storage.history_key
        flags = self._taken.get(storage)
        if not flags:
            return
        for first, last in [key for key in flags if key[0] < high and key[1] > low]:
            if _bytes(storage, first, last) != flags[first, last].value:
                del flags[first, last]

    def rewrote(self, storage: Storage, low: int, high: int, by: tuple[int, int]) -> None:
        """Record a write of flags, changed or not, with its program and epoch."""
        flags, rewritten = self._taken.get(storage), self._rewritten.setdefault(storage, {})
        for key in flags or ():
            if low <= key[0] and key[1] <= high:
                rewritten[key] = by


def stale(
    time_ps: int, rank: int | None, waiters: tuple[Waiter, Waiter], storage: Storage
) -> StaleSignalError:
    """Return the finding that two waits used one signal."""
    before, after = waiters
    first = access_at(before.name, "waited", before.site)
    second = access_at(after.name, "waits", after.site)
    return StaleSignalError(time_ps, rank, first, second, created_at(storage))


def _bytes(storage: Storage, low: int, high: int) -> bytes:
    raw: Any = storage.array(np.dtype(np.uint8))
    result: bytes = raw[low:high].tobytes()
    return result
