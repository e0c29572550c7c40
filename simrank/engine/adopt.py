"""Bare greenlets that wait, and tasks that drive greenlets by hand (rule E2).

A bare greenlet that waits becomes a task: its parent is the hub from then on. Whoever switched
into it still sits in that call and goes on at the same simulated time. That is the task that the
hub resumed last, or a bare greenlet between the two; greenlet does not say who switched, so the
latter is known only as the parent of the greenlet that waits.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from simrank.engine.task import AdoptedTask
from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from greenlet import greenlet

    from simrank.engine.loop import Engine
    from simrank.engine.task import Task


driving: list[Engine] = []  # Those whose loops the hub is in, innermost last.


def adopt(engine: Engine, bare: greenlet) -> AdoptedTask:
    """Make a task of a greenlet that somebody else made; it belongs to the task that drives it.

    Raises:
        UnsupportedError: Another engine runs it: who would drive this one?
    """
    if driving and driving[-1] is not engine:
        raise UnsupportedError(
            "a wait on one Context inside a rank of another\n"
            "  to fix: run the inner Context in the main program, or use the rank's own"
        )
    driver = engine._current  # noqa: SLF001 - one mechanism in two files
    between = bare.parent
    task = AdoptedTask(engine, bare, driver)
    if driver is not None:
        task.host_ps = driver.clock_ps
        if driver.group is not None and not driver.group.complete:
            driver.group.add_guest(task)
    engine.enrol(task)
    if between is not None and between is not engine.hub and _is_bare(engine, between):
        engine.call_at(engine.now_ps, partial(_go_on, engine, between, driver))
        engine._let_go_on = True  # noqa: SLF001
    return task


def _is_bare(engine: Engine, origin: greenlet) -> bool:
    """Whether a greenlet is in the midst of a switch of its own, unknown to the engine."""
    return bool(origin) and origin not in engine._by_greenlet  # noqa: SLF001


def _go_on(engine: Engine, origin: greenlet, driver: Task | None) -> None:
    """Let a bare greenlet go on in its switch, on behalf of the task that drives it."""
    if not _is_bare(engine, origin):
        return  # It was driven on by hand meanwhile.
    engine._current = driver  # noqa: SLF001
    origin.switch()
    engine._current = None  # noqa: SLF001
    if driver is None or driver.waiting is not None or driver.finished:
        return
    if _is_bare(engine, origin):  # It drives another one that went to the hub.
        engine.call_at(engine.now_ps, partial(_go_on, engine, origin, driver))
    else:
        take_back(engine, driver)


def take_back(engine: Engine, task: Task) -> None:
    """Deal with a task that came back to the hub although it neither waits nor has ended.

    It switched by hand into something that waits or ended there: let it go on at this time. (An
    adopted greenlet that hands out control by hand is its owner's to drive.)
    """
    retire_dead(engine)
    is_seen_to, engine._let_go_on = engine._let_go_on, False  # noqa: SLF001
    if not is_seen_to and not task.finished and not isinstance(task, AdoptedTask):
        engine.call_at(engine.now_ps, partial(engine.resume, task))


def retire_dead(engine: Engine) -> None:
    """Note the ends of adopted greenlets that ended while somebody drove them by hand."""
    for task in [task for task in engine.tasks if isinstance(task, AdoptedTask)]:
        task.retire_if_dead()
