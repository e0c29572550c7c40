"""Bare greenlets that wait, and tasks that drive greenlets by hand (rule E2).

A bare greenlet that waits becomes a task: its parent is the hub from then on. Its caller is still
in the switch and goes on at the same simulated time. The caller is the task that the hub resumed
last, or a bare greenlet between the two; greenlet does not report the switching greenlet, so the
latter is known only as the parent of the greenlet that waits.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from greenlet import getcurrent

from simrank.engine.lockstep import hub_of, main_greenlet
from simrank.engine.task import AdoptedTask
from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from greenlet import greenlet

    from simrank.engine.interface import EngineInterface
    from simrank.engine.task import Task


driving: list[EngineInterface] = []  # Those whose loops the hub is in, innermost last.


def hub_here() -> greenlet:
    """Return the hub of a new engine: the main greenlet, or the running rank within a rank.

    A program that has a Context of its own runs under another one, too: each rank is then the main
    program of a simulation, as each process would be.
    """
    me = getcurrent()
    return me if driving and driving[-1].running is not None else hub_of(me)


class Adoption:
    """The bare greenlets that one engine has adopted as tasks, and the tasks that drive them."""

    def __init__(self, engine: EngineInterface) -> None:
        self._engine = engine
        self.adopted: dict[AdoptedTask, None] = {}
        self._lets_go_on = False  # Whether the greenlet that drives the last one is queued.

    def task_of(self, stack: greenlet) -> Task | None:
        """Return the task of a stack that the engine does not know; None if it has none.

        On a greenlet's thread it is adopted. On a thread of its own it is part of the task that
        runs there.

        Raises:
            UnsupportedError: Another engine runs it, and this one would never be driven.
        """
        engine = self._engine
        if hub_of(stack) is not engine.hub:  # A thread that has nothing to do with ranks.
            return None
        if driving and driving[-1] is not engine:
            raise UnsupportedError(
                "a wait on one Context inside a rank of another\n"
                "  to fix: run the inner Context in the main program, or use the rank's own"
            )
        if main_greenlet(stack) is not engine.hub:
            return engine.running
        return self._adopt(stack)

    def _adopt(self, bare: greenlet) -> AdoptedTask:
        """Make a task of a greenlet; it belongs to the task that drives it."""
        engine, driver = self._engine, self._engine.running
        between = bare.parent
        task = AdoptedTask(engine, bare, driver)
        self.adopted[task] = None
        if driver is not None:
            task.host_ps = driver.clock_ps
            if driver.group is not None and not driver.group.complete:
                driver.group.add_guest(task)
        engine.enrol(task)
        if between is not None and between is not engine.hub and self._is_bare(between):
            engine.call_at(engine.now_ps, partial(self._go_on, between, driver))
            self._lets_go_on = True
        return task

    def _is_bare(self, origin: greenlet) -> bool:
        """Return whether a greenlet is inside a switch of its own, unknown to the engine."""
        return bool(origin) and self._engine.task_on(origin) is None

    def _go_on(self, origin: greenlet, driver: Task | None) -> None:
        """Resume a bare greenlet in its switch, on behalf of the task that drives it."""
        if not self._is_bare(origin):
            return  # It was driven on by hand meanwhile.
        engine = self._engine
        engine.act_for(driver, origin.switch)
        if driver is None or driver.waiting is not None or driver.finished:
            return
        if self._is_bare(origin):  # It drives another one that went to the hub.
            engine.call_at(engine.now_ps, partial(self._go_on, origin, driver))
        else:
            self.take_back(driver)

    def take_back(self, task: Task) -> None:
        """Deal with a task that came back to the hub although it neither waits nor has ended.

        It switched by hand into something that waits or ended there: let it go on at this time.
        (An adopted greenlet that hands out control by hand is its owner's to drive.)
        """
        self.retire_dead()
        is_seen_to, self._lets_go_on = self._lets_go_on, False
        if not is_seen_to and not task.finished and not isinstance(task, AdoptedTask):
            self._engine.call_at(self._engine.now_ps, partial(self._engine.resume, task))

    def retire_dead(self) -> None:
        """Mark adopted greenlets that have ended as finished."""
        for task in list(self.adopted):
            task.retire_if_dead()
            if task.finished:
                del self.adopted[task]
