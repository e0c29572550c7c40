"""Waits and visible effects of one program, at its own clock (rule K2).

A program's accesses move its own clock; it meets the simulation's time where others can see what
it does: at stores, atomics, fences and polls. A store to another device travels, and becomes
visible when it arrives: in an order of its own, unless a release or a fence stands between.
"""

from __future__ import annotations

import random  # noqa: TID251 - seeded per program
from math import ceil
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from simrank.device.watch import Condition, Poll, Watch, watchers_of
from simrank.engine import limits
from simrank.engine.limits import PollReason
from simrank.kernels import machine
from simrank.kernels.cost.accesses import ATOMIC_PS
from simrank.kernels.cost.overlap import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.device.device import Device
    from simrank.device.memory import Storage
    from simrank.engine import Engine, Task
    from simrank.kernels.cost.accesses import AccessCosts
    from simrank.kernels.machine import Order, Programs
    from simrank.kernels.machine.arrays import Array, Value
    from simrank.kernels.machine.protocols import Pointer, Unmet
    from simrank.kernels.races.happens_before import ProgramClock, ProgramRaces


class Run(Protocol):
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
        ...

    def waiting_programs(self, storage: Storage) -> str:
        """Return the waiting programs by bytes of a storage, for reports."""
        ...


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

    def __init__(self, run: Run, task: Task, number: int) -> None:
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
        self.work = Work(run.num_beside)
        self._seen: set[int] = set()  # Addresses of what it has loaded from.
        self._num_spins = 0
        self._polls: list[Poll] = []
        self._test: Condition | None = None  # Of the only thing that it has looked at.
        self._woken: Condition | None = None  # What others wait for that it was woken by alone.
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
        if self.work.charged_ps:  # Whoever meets others has ended what it was at.
            self.work = Work(self._run.num_beside)
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
                self._test = Condition(storage, low, dtype, comparison, bound, changes)

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
