"""Programs that wait or publish: one task each, on the SMs that are free (rules K1, K2).

A program's accesses move its own clock; it meets the simulation's time where others can see what
it does: at stores, atomics, fences and polls. A store to another device travels, and becomes
visible when it arrives: in an order of its own, unless a release or a fence stands between.
"""

from __future__ import annotations

import random  # noqa: TID251 - seeded per program
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.device.watch import Watch, watchers_of
from simrank.engine import Task, TaskGroup, limits
from simrank.engine.limits import PollReason
from simrank.kernels import machine
from simrank.kernels.machine import Programs
from simrank.kernels.races.happens import races_of
from simrank.kernels.running.listing import waiting_text
from simrank.ranks import set_program
from simrank.units import ceil_ps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from simrank.device.device import Device
    from simrank.device.memory import Storage
    from simrank.engine import CallSite, Engine
    from simrank.kernels.machine import Options, Order, Statistics
    from simrank.kernels.machine.protocols import Unmet
    from simrank.kernels.races.happens import Agent
    from simrank.ranks import Program

Array = np.ndarray[Any, Any]

# Assumed: what one program waits for a load from its own device's memory, half of the some 600 ns
# of a miss hidden by what it does meanwhile; of an L2 round trip by an atomic or a poll; and what
# issuing a store costs it (H100 latencies: Luo et al., "Benchmarking and Dissecting the Nvidia
# Hopper GPU Architecture via Microbenchmarking", 2024).
LOAD_PS = 300_000
ATOMIC_PS = 300_000
STORE_PS = 50_000
# Assumed: half of the SMs saturate memory and links, so one program gets no more than this part.
_SATURATING_PART = 0.5


class ProgramRun:
    """The programs of one launch as tasks: as many as fit on the device, then the next.

    Args:
        name: The kernel's name.
        grid: Programs along each axis.
        ids: Which of them run.
        device: Where they run.
        rank: Whose launch it is.
        slots: How many programs the device holds at once.
        is_assumed: Whether that number rests on an assumed occupancy.
        statistics: Where what they do is counted.
        body: Runs the kernel once, for the program that runs now.
        owner: The rank's program that launched it.

    Attributes:
        group: Its tasks; complete when all programs have ended, or one has failed.
        num_ended: Programs that have ended.
        sharing: How many programs share the bandwidth of memory and links.
    """

    is_collective = None  # For the deadlock report.

    def __init__(
        self,
        name: str,
        grid: tuple[int, int, int],
        ids: Array,
        device: Device,
        rank: int | None,
        slots: int,
        statistics: Statistics,
        body: Callable[[], Any],
        *,
        owner: Program | None,
        is_assumed: bool,
        options: Options,
    ) -> None:
        self.name = name
        self.device = device
        self.rank = rank
        self.slots = slots
        self.is_assumed = is_assumed
        self.engine: Engine = device.engine
        self.group = TaskGroup(self.engine, f"kernel '{name}'", [])
        self.num_ended = 0
        self.total = len(ids)
        self._ids = ids
        self.num_resident = min(slots, self.total)
        saturating = max(device.spec.num_sms * _SATURATING_PART, 1.0)
        self.sharing = min(max(self.num_resident, 1), saturating)
        self._grid = grid
        self._statistics = statistics
        self._body = body
        self._options = options
        self.known_races = races_of(device.races)
        self.behind = None if self.known_races is None else self.known_races.launched()
        self._next = 0
        self._live: dict[int, ProgramSync] = {}
        self.routes: dict[int, tuple[int, float]] = {}  # Latency and bandwidth to peers, once.
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
        programs = Programs(
            self._grid,
            np.array([number]),
            self.device,
            self._statistics,
            self.name,
            sync=sync,
            options=self._options,
        )
        sync.programs = programs
        self._live[number] = sync
        machine.run(programs, self._body)
        machine.set_running(None)  # Who ran before has gone on, or has ended.
        sync.finish()
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
        """Let go of the arguments, and note for race checks that nothing of it runs any more."""
        self._body = _nothing  # Its arguments are memory, which shall not stay.
        if self.known_races is not None:
            assert self.behind is not None, "it was asked for with the races"
            self.known_races.over(self.behind)

    def stop(self) -> None:
        """End every program: the rank was aborted."""
        self.engine.pending.pop(self, None)
        self.group.abort()

    # ---- reports ----

    def waiting_programs(self, storage: Storage) -> str:
        """Return which programs wait for which bytes of the same storage, for reports."""
        waiting = {
            number: sync
            for number, sync in sorted(self._live.items())
            if sync.watch is not None and sync.watch.polls[0][0] is storage
        }
        lows = {number: sync.watch.polls[0][1] for number, sync in waiting.items() if sync.watch}
        changes = dict.fromkeys(
            f"{s.unmet.found} to {s.unmet.wanted}" for s in waiting.values() if s.unmet
        )
        return waiting_text(lows, list(changes))

    def pending_ranks(self) -> Iterator[tuple[int | None, str, CallSite | None]]:
        """Yield that some programs do not fit beside the others, for the deadlock report."""
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
    """Stand for the body of a launch that is over."""


class ProgramSync:
    """What one waiting program does with time, and with memory that others see.

    Attributes:
        programs: The program as the emulation sees it.
        watch: What it waits for now, or None.
        unmet: A value that it has found, and the one that it waits for instead; None where it
            waits for no value.
        races: Its clock, where races are looked for.
        num_effects: How often it changed memory.
        is_free: Whether accesses are part of one that is paid for.
    """

    def __init__(self, run: ProgramRun, task: Task, number: int) -> None:
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
        self._num_spins = 0
        self._polls: list[tuple[Storage, int, int, int]] = []
        self._arrived_ps = 0  # When all that it stored to other devices has arrived.
        seed = run.engine.seed
        self._random = random.Random(f"{seed}:{run.rank}:{number}") if seed else None
        self._routes = run.routes
        self._own_rate: float = run.device.spec.memory_bandwidth_bytes_per_s
        self._sharing = run.sharing
        self.unmet: Unmet | None = None
        self.races: Agent | None = None
        if run.known_races is not None:
            self._watchers.listener = run.known_races.signals.wrote
        if run.known_races is not None and run.behind is not None:
            self.races = run.known_races.start(
                run.name, number, run.rank, run.device.index, run.behind
            )

    # ---- time ----

    @property
    def clock_ps(self) -> int:
        """The program's own clock."""
        return self._task.clock_ps

    def charge(self, cost_ps: int) -> None:
        """Let the program's clock go on, without a switch."""
        task, now_ps = self._task, self._engine.now_ps
        task.host_ps = max(now_ps, task.host_ps) + cost_ps

    def catch_up(self) -> None:
        """Let the simulation reach the program's clock: others see what it does next."""
        if self._task.host_ps > self._engine.now_ps:
            self._engine.sleep(0)
            machine.set_running(self.programs)

    def charge_access(self, storage: Storage, size_bytes: int, *, writes: bool) -> None:
        """Charge a load or store: its latency, and its part of the bandwidth."""
        if self.is_free:
            return
        device = storage.device
        route_ps, rate = 0, self._own_rate
        if device is not self._device and device is not None:
            route_ps, rate = self._route(device)
        latency_ps = STORE_PS if writes else LOAD_PS + 2 * route_ps
        self.charge(latency_ps + ceil_ps(size_bytes * self._sharing / rate))

    def _route(self, peer: Device) -> tuple[int, float]:
        """Return latency and bandwidth of the route to another device."""
        found = self._routes.get(peer.index)
        if found is None:
            network, own = self._device.network, self._device.index
            latency_ps = int(network.cluster.paths([own], [peer.index]).latency_ps[0])
            rate = network.route_bandwidth_bytes_per_s(own, peer.index)
            found = self._routes[peer.index] = latency_ps, rate
        return found

    def _latency_ps(self, storage: Storage) -> int:
        """Return how long it takes until something reaches a storage."""
        device = storage.device
        return 0 if device is None or device is self._device else self._route(device)[0]

    # ---- loads and stores ----

    def before_load(self, base: Storage | None, *, volatile: bool) -> None:
        """Meet the simulation's time before a load that others' writes may decide."""
        if self._arrived_ps > self.clock_ps and (base is None or self._is_remote(base)):
            self.drain()  # It sees its own stores.
        if volatile or self._num_spins:
            self.catch_up()
        if self.races is not None:
            self.races.looks = volatile

    def after_look(self) -> None:
        """Note that a volatile load is done: what comes next is none."""
        if self.races is not None:
            self.races.looks = False

    def loaded(self, storage: Storage, low: int, high: int, index: Array, itemsize: int) -> None:
        """Note what a program has looked at.

        Args:
            storage: Where.
            low: The first byte.
            high: The byte behind the last.
            index: Which elements.
            itemsize: Their size.
        """
        if self.races is not None:
            self.races.loads(storage, index, itemsize)
        if self._num_spins:
            self._polls.append((storage, low, high, self._watchers.version(storage)))

    def _is_remote(self, storage: Storage) -> bool:
        return storage.device is not None and storage.device is not self._device

    def writes(self, storage: Storage) -> bool:
        """Meet the simulation's time before a store; return whether it travels."""
        self.catch_up()
        return self._is_remote(storage)

    def wrote(self, storage: Storage, low: int, high: int) -> None:
        """Tell whoever watches that bytes from `low` to `high`, exclusive, were written."""
        self.num_effects += 1
        self._polls.clear()
        self._watchers.wrote(self._engine, storage, low, high)

    def put(
        self, storage: Storage, view: Array, places: Any, values: Any, extent: tuple[int, int]
    ) -> None:
        """Send a store to another device: it is visible there when it has arrived."""
        self.num_effects += 1
        self._polls.clear()
        arrives_ps = self.clock_ps + self._latency_ps(storage)
        if self._random is not None:  # Without a fence stores may overtake one another.
            arrives_ps += ceil(self._random.random() * self._latency_ps(storage))
        self._arrived_ps = max(self._arrived_ps, arrives_ps)
        kept = np.array(values)
        low, high = extent

        def arrive() -> None:
            view[places] = kept
            self._watchers.wrote(self._engine, storage, low, high)

        self._engine.call_at(arrives_ps, arrive)

    def fence(self) -> None:
        """Order what comes behind all before it: everything it stored is visible."""
        self.drain()
        if self.races is not None:
            self.races.fence()

    def finish(self) -> None:
        """End: everything it stored is visible."""
        self.drain()
        if self.races is not None:
            self.races.end()

    def drain(self) -> None:
        """Wait until everything it stored is visible."""
        if self._arrived_ps > self.clock_ps:
            self.charge(self._arrived_ps - self.clock_ps)
        self.catch_up()

    # ---- atomics ----

    def before_atomic(self, storages: Sequence[Storage], order: Order) -> None:
        """Travel to the memory that an atomic is about; a release waits for earlier stores.

        Lanes that go to several devices go at the same time, and all take effect with the last.
        """
        if order.releases:
            self.drain()
        self.charge(ATOMIC_PS // 2 + self._longest_ps(storages))
        self.catch_up()

    def applied(self, storage: Storage, low: int, high: int, *, changed: bool) -> None:
        """Tell what an atomic changed, of bytes `low` to `high`; what it did not was a poll."""
        if changed:
            self.wrote(storage, low, high)
        else:
            self._polls.append((storage, low, high, self._watchers.version(storage)))

    def after_atomic(self, storages: Sequence[Storage]) -> None:
        """Travel back."""
        self.charge(ATOMIC_PS // 2 + self._longest_ps(storages))

    def _longest_ps(self, storages: Sequence[Storage]) -> int:
        if len(storages) == 1:
            return self._latency_ps(storages[0])
        return max((self._latency_ps(storage) for storage in storages), default=0)

    def before_signal(self, order: Order) -> None:
        """Let a store that others wait for be one: a release waits for earlier stores."""
        if order.releases:
            self.drain()
        if self.races is not None:
            self.races.signal = order

    def after_signal(self) -> None:
        """Note that such a store is done."""
        if self.races is not None:
            self.races.signal = None

    # ---- waits ----

    def enter_spin(self) -> None:
        """Note that a loop begins that may wait; what is around it has gone on."""
        self._num_spins += 1
        self.num_effects += 1
        self._polls.clear()

    def leave_spin(self, *, for_value: bool = False) -> None:
        """Note that it has ended; `for_value`: because what it looked at had a value."""
        self._num_spins -= 1
        self.end_wait(for_value=for_value)

    def end_wait(self, *, for_value: bool) -> None:
        """Note that a wait is over, and of which signals if it was for a value."""
        self.unmet = None
        polls, self._polls = self._polls, []
        if for_value and self.races is not None:
            for storage, low, high, _ in polls:
                self.races.took(storage, low, high)

    def next_round(self, effects_before: int, *, is_pure: bool) -> None:
        """Wait after a round that has changed nothing: for a change of what it looked at."""
        if self.num_effects != effects_before or not self._polls:
            self._polls.clear()
            return
        if is_pure:
            self.park()
        else:
            self.poll_again()

    def poll_again(self) -> None:
        """Go on with a loop that counts or looks at the clock, some time later."""
        limits.poll(self._engine, f"a loop of kernel '{self._run.name}'")
        machine.set_running(self.programs)
        self._polls.clear()

    @property
    def has_polls(self) -> bool:
        """Whether it has looked at memory since it last changed any."""
        return bool(self._polls)

    def park(self) -> None:
        """Wait for a change of what it looked at."""
        self.catch_up()
        polls, self._polls = self._polls, []
        if any(self._watchers.version(storage) != then for storage, _, _, then in polls):
            return
        self.watch = Watch(polls, self._run, self._number)
        self._watchers.add(self.watch)
        start_ps = self._engine.now_ps
        try:
            self._engine.wait(self.watch)
        finally:
            self._watchers.remove(self.watch)
            self.watch = None
            machine.set_running(self.programs)
        profile = self.programs.statistics.profile if self.programs is not None else None
        if profile is not None:
            profile.here().parked_ps += self._engine.now_ps - start_ps

    def wait_until(
        self, holds: Callable[[], Array], budget_ps: int | None, *, for_value: bool
    ) -> Array:
        """Look at each change until all hold, or the time is over."""
        self._polls.clear()
        found = holds()
        deadline_ps = None if budget_ps is None else self.clock_ps + budget_ps
        while not np.all(found):
            if deadline_ps is not None:
                if self.clock_ps >= deadline_ps:
                    self.unmet = None
                    return found
                self._polls.clear()
                self._nap(min(ATOMIC_PS, deadline_ps - self.clock_ps))
            else:
                self.park()
            found = holds()
        self.end_wait(for_value=for_value)
        return found

    def _nap(self, delay_ps: int) -> None:
        reason = PollReason(f"atomic_poll with a time limit in kernel '{self._run.name}'")
        self._engine.sleep_weakly(self._task, self.clock_ps + delay_ps, reason)
        machine.set_running(self.programs)
