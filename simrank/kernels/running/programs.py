"""Programs that wait or publish: one task each, on free SMs (rules K1, K2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.device.races import checker_of
from simrank.engine import Task, TaskGroup
from simrank.kernels import machine
from simrank.kernels.cost.accesses import AccessCosts
from simrank.kernels.cost.overlap import num_beside
from simrank.kernels.machine import Programs
from simrank.kernels.machine.number_text import waiting_text
from simrank.kernels.races.happens_before import races_of
from simrank.kernels.running.waits import ProgramSync
from simrank.ranks import set_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simrank.device import Operation
    from simrank.device.memory import Storage
    from simrank.engine import CallSite, Engine
    from simrank.kernels.machine import Setting
    from simrank.kernels.machine.arrays import Array
    from simrank.kernels.races.happens_before import ProgramClock
    from simrank.ranks import Program


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
        setting: Setting,
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
        finally:  # Who ran before has gone on, or has ended.
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
