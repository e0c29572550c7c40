"""Immediate end of a rank: by a signal, or by `os._exit`; none of its code runs on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

from simrank.engine import Handle, limits
from simrank.ranks.extensions import extensions

if TYPE_CHECKING:
    from simrank.engine import Task

stopped: WeakSet[Task] = WeakSet()  # Ranks that another rank or the main program has ended.


def end_at_once(task: Task, status: int) -> None:
    """End a rank here: none of its code runs on, not even its `finally`.

    Args:
        task: The rank, or a thread of it.
        status: Its exit status; minus a signal's number if that ends it.
    """
    engine, task = task.engine, task.main
    if task.finished:
        return
    running = engine.current_task()
    if running is not None and running.main is task:  # From the hub; the wait never returns.
        engine.call_at(engine.now_ps, partial(end_at_once, task, status))
        while True:
            engine.wait(Handle())
    for extension in extensions():
        extension.stop_rank(task)
    for group in task.children or ():
        group.abort()
    task.exit_with(status)
    if task.started:
        engine.park(task)
    else:
        task.finished = True
        task.carrier.drop()
        engine.retire(task)
    limits.give_up(task)
    task.note_exit()
