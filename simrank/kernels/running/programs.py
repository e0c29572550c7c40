"""Programs that wait or publish: one task each, on free SMs, with its waits (rules K1, K2)."""

from __future__ import annotations

import random  # noqa: TID251 - seeded per program
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from simrank.device.races import checker_of
from simrank.device.watch import COMPARE, Poll, Watch, WatchCondition, watchers_of
from simrank.engine import Task, TaskGroup, limits
from simrank.engine.limits import PollReason
from simrank.kernels import machine
from simrank.kernels.cost import ATOMIC_PS, AccessCosts, BusyTimes, num_beside
from simrank.kernels.machine import Programs
from simrank.kernels.machine.running import waiting_text
from simrank.kernels.races.happens_before import races_of
from simrank.kernels.values.block import Block
from simrank.ranks import set_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from simrank.device import Operation
    from simrank.device.device import Device
    from simrank.device.memory import Storage
    from simrank.engine import CallSite, Engine
    from simrank.kernels.machine import Order, RunningLaunch
    from simrank.kernels.machine.protocols import Array, Pointer, Sync, Unmet, Value
    from simrank.kernels.races.happens_before import ProgramClock, ProgramRaces
    from simrank.ranks import Program


# ---- waits and visible effects of one program, at its own clock ----
# A program's accesses move its own clock; it meets the simulation's time where others can see what
# it does: at stores, atomics, fences and polls. A store to another device travels, and becomes
# visible when it arrives: in an order of its own, unless a release or a fence stands between.


class LaunchRun(Protocol):
    """The interface of a launch to its programs."""

    name: str
    device: Device
    engine: Engine
    rank: int | None
    costs: AccessCosts
    num_beside: int
    known_races: ProgramRaces | None

    def clock_of(self, number: int) -> ProgramClock | None:
        """Return a program's clock for race checks; None without them."""

    def waiting_programs(self, storage: Storage) -> str:
        """Return the waiting programs by bytes of a storage, for reports."""


class ProgramSync:
    """The clock, waits and visible effects of one program.

    Attributes:
        programs: The program as the emulation sees it.
        watch: What it waits for now, or None.
        unmet: A value that it has found, and the one that it waits for instead; None where it
            waits for no value.
        races: Its clock, where races are looked for.
        num_effects: How often it changed memory.
        work: What it does since it last met others.
        is_free: Whether accesses are part of one that is paid for.
    """

    def __init__(self, run: LaunchRun, task: Task, number: int) -> None:
        self.programs: Programs | None = None
        self.watch: Watch | None = None
        self.num_effects = 0
        self.is_free = False
        self._run = run
        self._task = task
        self._number = number
        self._engine = run.engine
        self._device = run.device
        self._watchers = watchers_of(run.device.memory.space)
        self.work = BusyTimes(run.num_beside)
        self._seen: set[int] = set()  # Addresses of what it has loaded from.
        self._num_spins = 0
        self._polls: list[Poll] = []
        self._test: WatchCondition | None = None  # Of the only thing that it has looked at.
        self._woken: WatchCondition | None = (
            None  # What others wait for that it was woken by alone.
        )
        self._arrived_ps = 0  # When all that it stored to other devices has arrived.
        seed = run.engine.seed
        self._random = random.Random(f"{seed}:{run.rank}:{number}") if seed else None
        self._costs = run.costs
        self.unmet: Unmet | None = None
        self.races = run.clock_of(number)
        if run.known_races is not None:
            self._watchers.listener = run.known_races.signals.wrote

    # ---- time ----

    @property
    def clock_ps(self) -> int:
        """The program's own clock."""
        return self._task.clock_ps

    def charge(self, cost_ps: int) -> None:
        """Advance the program's clock, without a switch."""
        task, now_ps = self._task, self._engine.now_ps
        task.host_ps = max(now_ps, task.host_ps) + cost_ps

    def catch_up(self) -> None:
        """Advance the simulation to the program's clock, before visible effects."""
        if self.work.charged_ps:  # A program at a meeting has ended its work.
            self.work = BusyTimes(self._run.num_beside)
        if self._task.host_ps > self._engine.now_ps:
            self._engine.sleep(0)
            machine.set_running(self.programs)

    def charge_access(
        self, storage: Storage, size_bytes: int, new_bytes: int, *, writes: bool
    ) -> None:
        """Charge a load or store: its latency, and its share of the bandwidth."""
        if self.is_free:
            return
        cost_ps, work = 0, self.work
        if writes or storage.address not in self._seen:
            cost_ps = self._costs.first_ps(storage, writes=writes)
            if not writes:
                self._seen.add(storage.address)
        work.memory_ps += self._costs.moved_ps(storage, size_bytes, new_bytes)
        taken_ps = work.taken_ps()
        cost_ps += taken_ps - work.charged_ps
        if cost_ps:
            self.charge(cost_ps)
            work.charged_ps = taken_ps

    def charge_work(self) -> None:
        """Charge the work since the last synchronization."""
        taken_ps = self.work.taken_ps()
        self.charge(taken_ps - self.work.charged_ps)
        self.work.charged_ps = taken_ps

    # ---- loads and stores ----

    def before_load(self, pointer: Pointer, *, volatile: bool) -> None:
        """Synchronize with simulated time before a load that may see other programs' writes."""
        if self._arrived_ps > self.clock_ps:
            storage = getattr(pointer, "storage", None)  # What is no pointer is refused later.
            if storage is None or self._is_remote(storage):
                self.drain()  # It sees its own stores.
        if volatile or self._num_spins:
            self.catch_up()
        if self.races is not None:
            self.races.looks = volatile

    def after_look(self) -> None:
        """Record the end of a volatile load."""
        if self.races is not None:
            self.races.looks = False

    def loaded(
        self, storage: Storage, low: int, high: int, index: Value | int, itemsize: int
    ) -> None:
        """Record the bytes that a program has read.

        Args:
            storage: Where.
            low: The first byte.
            high: The byte behind the last.
            index: Which elements.
            itemsize: Their size.
        """
        if self.races is not None:
            self.races.loads(storage, np.atleast_1d(index), itemsize)
        if self._num_spins:
            self._polls.append(Poll(storage, low, high, self._watchers.version(storage)))

    def _is_remote(self, storage: Storage) -> bool:
        return storage.device is not None and storage.device is not self._device

    def writes(self, storage: Storage) -> bool:
        """Synchronize with simulated time before a store; return whether it goes over a link."""
        self.catch_up()
        return self._is_remote(storage)

    def wrote(self, storage: Storage, low: int, high: int) -> None:
        """Notify waiting programs that bytes `low` to `high` (exclusive) were written."""
        self.num_effects += 1
        self._polls.clear()
        self._watchers.wrote(self._engine, storage, low, high)

    def put(
        self,
        storage: Storage,
        view: Array,
        index: Value | int,
        values: Value,
        extent: tuple[int, int],
    ) -> None:
        """Send a store to another device; it is visible there at its arrival."""
        self.num_effects += 1
        self._polls.clear()
        arrives_ps = self.clock_ps + self._costs.latency_ps(storage)
        if self._random is not None:  # Without a fence stores may overtake one another.
            arrives_ps += ceil(self._random.random() * self._costs.latency_ps(storage))
        self._arrived_ps = max(self._arrived_ps, arrives_ps)
        kept = np.array(values)
        low, high = extent

        def arrive() -> None:
            view[index] = kept
            self._watchers.wrote(self._engine, storage, low, high)

        self._engine.call_at(arrives_ps, arrive)

    def fence(self) -> None:
        """Order later accesses after all earlier ones: wait until all stores are visible."""
        self.drain()
        if self.races is not None:
            self.races.fence()

    def finish(self) -> None:
        """End the program: wait until all stores are visible."""
        self._pass_on()
        self.drain()
        if self.races is not None:
            self.races.end()

    def drain(self) -> None:
        """Wait until all stores are visible."""
        missing_ps = self._arrived_ps - self.clock_ps
        if missing_ps > 0:
            self._note_wait(missing_ps)
            self.charge(missing_ps)
        self.catch_up()

    # ---- atomics ----

    def before_atomic(self, storages: Sequence[Storage], order: Order) -> None:
        """Charge the way to an atomic's memory; a release waits for earlier stores.

        Lanes that go to several devices go at the same time, and all take effect with the last.
        """
        if order.releases:
            self.drain()
        self.charge(self._costs.atomic_ps(storages))
        self.catch_up()

    def applied(self, storage: Storage, low: int, high: int, *, changed: bool) -> None:
        """Notify waiting programs of an atomic's change; without a change it is a poll."""
        if changed:
            self.wrote(storage, low, high)
        else:
            self._polls.append(Poll(storage, low, high, self._watchers.version(storage)))

    def after_atomic(self, storages: Sequence[Storage]) -> None:
        """Charge the way back from an atomic's memory."""
        self.charge(self._costs.atomic_ps(storages))

    def before_signal(self, order: Order) -> None:
        """Begin a store that other programs wait for; a release waits for earlier stores."""
        if order.releases:
            self.drain()
        if self.races is not None:
            self.races.signal = order

    def after_signal(self) -> None:
        """End a store that other programs wait for."""
        if self.races is not None:
            self.races.signal = None

    # ---- waits ----

    def enter_spin(self) -> None:
        """Record the begin of a loop that may wait; enclosing loops have progressed."""
        self._num_spins += 1
        self.num_effects += 1
        self._polls.clear()

    def leave_spin(self, *, for_value: bool = False) -> None:
        """Record the end of a loop; `for_value`: it ended as a value was read."""
        self._num_spins -= 1
        self.end_wait(for_value=for_value)

    def end_wait(self, *, for_value: bool) -> None:
        """Record the end of a wait, and its signals if it was for a value."""
        self.unmet = self._test = None
        self._pass_on()
        if self.races is not None:
            self.races.passed()
        polls, self._polls = self._polls, []
        if for_value and self.races is not None:
            for poll in polls:
                self.races.took(poll.storage, poll.low, poll.high)

    def next_round(self, effects_before: int, *, is_pure: bool) -> None:
        """Wait after a round without changes, until the bytes that were read change."""
        if self.num_effects != effects_before or not self._polls:
            self._polls.clear()
            return
        if is_pure:
            self.park()
        else:
            self.poll_again()

    def tests(self, comparison: str, bound: int, dtype: np.dtype[Any], *, changes: bool) -> None:
        """Record the comparison of a loop with an integer that it has read."""
        self._test = None
        if len(self._polls) == 1:
            storage, low, high, _ = self._polls[0]
            if high - low == dtype.itemsize:
                self._test = WatchCondition(storage, low, dtype, comparison, bound, changes)

    def _pass_on(self) -> None:
        """Wake another program that waits for the same bytes."""
        test, self._woken = self._woken, None
        if test is not None:
            high = test.low + test.dtype.itemsize
            self._watchers.passed_on(self._engine, test.storage, test.low, high)

    def poll_again(self) -> None:
        """Continue a loop that counts or reads the clock, some time later."""
        limits.poll(self._engine, f"a loop of kernel '{self._run.name}'")
        machine.set_running(self.programs)
        self._polls.clear()

    @property
    def has_polls(self) -> bool:
        """Whether the program has read memory since its last change."""
        return bool(self._polls)

    def park(self) -> None:
        """Wait for a change of the bytes that were read; of an integer, for one that may end it."""
        self.catch_up()
        polls, self._polls = self._polls, []
        test, self._test = self._test, None
        self._pass_on()
        if test is not None:
            if test.may_end():
                return
        elif any(self._watchers.version(poll.storage) != poll.version for poll in polls):
            return
        self.watch = Watch(polls, self._run, self._number, test)
        self._watchers.add(self.watch)
        start_ps = self._engine.now_ps
        try:
            self._engine.wait(self.watch)
        except BaseException:
            self._woken = test
            self._pass_on()
            raise
        finally:
            self._watchers.remove(self.watch)
            self.watch = None
            machine.set_running(self.programs)
        self._woken = test if test is not None and test.is_exclusive else None
        self._note_wait(self._engine.now_ps - start_ps)

    def _note_wait(self, time_ps: int) -> None:
        """Count waiting time at the current line, for reports."""
        profile = self.programs.statistics.profile if self.programs is not None else None
        if profile is not None:
            profile.here().parked_ps += time_ps

    def wait_until(
        self, holds: Callable[[], Array], budget_ps: int | None, *, for_value: bool
    ) -> Array:
        """Wait until all conditions hold, or for the time limit."""
        self._polls.clear()
        result = holds()
        deadline_ps = None if budget_ps is None else self.clock_ps + budget_ps
        while not np.all(result):
            if deadline_ps is not None:
                if self.clock_ps >= deadline_ps:
                    self.unmet = None
                    return result
                self._polls.clear()
                self._nap(min(ATOMIC_PS, deadline_ps - self.clock_ps))
            else:
                self.park()
            result = holds()
        self.end_wait(for_value=for_value)
        return result

    def _nap(self, delay_ps: int) -> None:
        reason = PollReason(f"atomic_poll with a time limit in kernel '{self._run.name}'")
        limits.sleep_weakly(self._engine, self._task, self.clock_ps + delay_ps, reason)
        machine.set_running(self.programs)


# ---- one task per program, on free SMs ----


class Occupancy(NamedTuple):
    """The number of programs that a device holds at once, and whether it is assumed."""

    slots: int
    is_assumed: bool


class ProgramRun:
    """The programs of one launch as tasks, as many at a time as fit the device.

    Args:
        setting: What they share.
        ids: Which of them run.
        operation: The launch, on its stream.
        occupancy: How many programs the device holds at once.
        body: Runs the kernel once, for the program that runs now.
        owner: The rank's program that launched it.

    Attributes:
        group: Its tasks; complete when all programs have ended, or one has failed.
        num_ended: Programs that have ended.
        costs: What accesses cost its programs.
    """

    is_collective = None  # For the deadlock report.

    def __init__(
        self,
        setting: RunningLaunch,
        ids: Array,
        operation: Operation,
        occupancy: Occupancy,
        body: Callable[[], Any],
        *,
        owner: Program | None,
    ) -> None:
        device = setting.device
        self._setting = setting
        self.name = setting.kernel
        self.device = device
        self.rank = operation.rank
        self.slots, self.is_assumed = occupancy
        self.engine: Engine = device.engine
        self.group = TaskGroup(self.engine, f"kernel '{self.name}'", [])
        self.num_ended = 0
        self.total = len(ids)
        self._ids = ids
        self.num_resident = min(self.slots, self.total)
        self.costs = AccessCosts(device, self.num_resident)
        num_warps = setting.options.num_warps
        self.num_beside = num_beside(device.spec, self.num_resident, num_warps)
        self._body = body
        self.known_races = races_of(checker_of(device))
        self.behind = None if self.known_races is None else self.known_races.launched(operation)
        self._next = 0
        self._live: dict[int, ProgramSync] = {}
        self._owner = owner

    def start(self) -> None:
        """Start the first programs."""
        if not self.total:
            self._forget()
            self.group.finish(self.engine)
            return
        if self.total > self.slots:
            self.engine.pending[self] = None
        tasks = [self._make_next() for _ in range(self.num_resident)]
        for task in tasks:
            self.engine.enrol(task)
        self.engine.wake(tasks)

    def _make_next(self) -> Task:
        number = int(self._ids[self._next])
        self._next += 1
        task = Task(self.engine, f"program {number} of kernel '{self.name}'", self.rank)
        self.group.add_guest(task)
        task.carry(lambda: self._run_one(number, task))
        return task

    def _run_one(self, number: int, task: Task) -> None:
        set_program(self._owner)
        sync = ProgramSync(self, task, number)
        programs = Programs(self._setting, np.array([number]), sync=sync)
        sync.programs = programs
        self._live[number] = sync
        try:
            machine.run(programs, self._body)
            sync.finish()
        finally:  # The previous program has gone on, or has ended.
            machine.set_running(None)
        del self._live[number]
        self.num_ended += 1
        if self._next < self.total and not self.group.failed:
            following = self._make_next()
            following.host_ps = task.clock_ps
            self.engine.enrol(following)
            self.engine.wake([following])
        if self._next >= self.total:
            self.engine.pending.pop(self, None)
        if self.num_ended == self.total:
            self._forget()

    def _forget(self) -> None:
        """Release the arguments, and report the end to race checks."""
        self._body = _nothing  # Its arguments are memory, which shall not stay.
        if self.known_races is not None:
            assert self.behind is not None, "it was asked for with the races"
            self.known_races.over(self.behind)

    def stop(self) -> None:
        """End every program: the rank was aborted."""
        self.engine.pending.pop(self, None)
        self.group.abort()

    def clock_of(self, number: int) -> ProgramClock | None:
        """Return a program's clock for race checks; None without them."""
        if self.known_races is None or self.behind is None:
            return None
        return self.known_races.start(self.name, number, self.rank, self.device.index, self.behind)

    # ---- reports ----

    def waiting_programs(self, storage: Storage) -> str:
        """Return the waiting programs by bytes of a storage, for reports."""
        waiting = {
            number: sync
            for number, sync in sorted(self._live.items())
            if sync.watch is not None and sync.watch.polls[0].storage is storage
        }
        lows = {number: sync.watch.polls[0].low for number, sync in waiting.items() if sync.watch}
        changes = dict.fromkeys(
            f"{s.unmet.value} to {s.unmet.wanted}" for s in waiting.values() if s.unmet
        )
        tests = [s.watch.test for s in waiting.values() if s.watch and s.watch.test]
        changes |= dict.fromkeys(test.change_text() for test in tests)
        return waiting_text(lows, list(changes))

    def pending_ranks(self) -> Iterator[tuple[int | None, str, CallSite | None]]:
        """Yield a finding if some programs do not fit the device, for the deadlock report."""
        left = self.total - self._next
        assumed = ", an assumed occupancy" if self.is_assumed else ""
        yield None, (
            f"kernel '{self.name}' of rank {self.rank}: {left} of {self.total} programs have not "
            f"started: the device holds {self.slots} at once{assumed}"
        ), None  # fmt: skip

    def absent_ranks(self) -> Iterator[tuple[int, str]]:
        """Yield nothing: it waits for no rank."""
        return iter(())


def _nothing() -> None:
    """Replace the body of a launch that is over."""


# ---- guards of loops in kernels that may wait, called before every round ----


class Spin:
    """The guard of a loop that may wait, called before every round."""

    __slots__ = ("_effects", "_for_value", "_is_pure", "_sync")

    def __init__(self, *, is_pure: bool, for_value: bool) -> None:
        self._is_pure = is_pure
        self._for_value = for_value
        self._sync: Sync | None = machine.now().sync
        self._effects = 0
        if self._sync is not None:
            self._sync.enter_spin()
            self._effects = self._sync.num_effects

    def again(self) -> bool:
        """Return True; wait first if the last round has changed nothing.

        It is asked after the loop's own test: what was read last may have ended the loop.
        """
        sync = self._sync
        if sync is not None:
            sync.next_round(self._effects, is_pure=self._is_pure)
            self._effects = sync.num_effects
        return True

    def over(self) -> None:
        """Record the end of the loop."""
        if self._sync is not None:
            self._sync.leave_spin(for_value=self._for_value)


def waiting(comparison: str, left: object, right: object, kind: str) -> object:
    """Return the result of a loop's comparison, and record its operands.

    Args:
        comparison: By the name of Python's tree.
        left: What the loop looked at.
        right: What it is compared with.
        kind: "look" or "change" where `left` is what one read, or one atomic that may change it,
            has found, and `right` stays the same; else "".
    """
    sync = machine.now().sync
    if sync is not None:
        bound: object = right.values if type(right) is Block else right
        if isinstance(bound, int | np.integer | np.bool_):
            if sync.races is not None:
                sync.races.tested(comparison, int(bound))
            if kind and type(left) is Block and left.element.kind in "iu":
                sync.tests(comparison, int(bound), left.element.memory, changes=kind == "change")
    result: object = COMPARE[comparison](left, right)
    return result


def spin(is_pure: bool, for_value: bool) -> Spin:
    """Return the guard of a loop.

    Args:
        is_pure: It only looks; it neither counts nor backs off.
        for_value: It ends when what it looks at has a value, not when it is past one.
    """
    return Spin(is_pure=is_pure, for_value=for_value)
