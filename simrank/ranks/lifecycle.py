"""The lifecycle of Contexts and ranks: extensions, process ids, and immediate ends."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from simrank.engine import Handle, collector, interrupts, limits
from simrank.ranks.current import engines, running_task
from simrank.ranks.extensions import extensions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.engine import EngineInterface, Task, TaskGroup
    from simrank.ranks.current import Program

_entered_by: list[tuple[EngineInterface, Task | None]] = []  # In a rank, or in the main program.


def enter(engine: EngineInterface) -> None:
    """Note that a Context has been entered; the first installs the extensions."""
    entry = engine, running_task()
    if engines:
        _entered_by.append(entry)
        engines.append(engine)
        return
    try:
        _entered_by.append(entry)
        engines.append(engine)
        interrupts.install()  # From here on a signal waits until simrank's own code is done.
        collector.begin()
        for extension in extensions("install"):
            extension.install()
    except BaseException:
        _entered_by.clear()
        engines.clear()
        _remove()
        raise


def leave(engine: EngineInterface) -> None:
    """Note that a Context has exited; the last removes the extensions."""
    _entered_by.reverse()
    _entered_by.remove(next(entry for entry in _entered_by if entry[0] is engine))
    _entered_by.reverse()
    # A rank that was killed has left none of its blocks.
    _entered_by[:] = [entry for entry in _entered_by if entry[1] is None or not entry[1].finished]
    engines[:] = [engine for engine, _ in _entered_by]
    if engine not in engines:
        for extension in extensions("forget_engine"):
            extension.forget_engine(engine)
    if not engines:
        _remove()


@contextlib.contextmanager
def entered(engine: EngineInterface) -> Iterator[None]:
    """Count as entered within the block."""
    # A Context that is the current one is entered already, as a rank's is for longer than it lives.
    if engines[-1:] == [engine] or running_task() is not None:
        yield
        return
    enter(engine)
    try:
        yield
    finally:
        leave(engine)


def _remove() -> None:
    """Remove the extensions, the last first, even if one of them fails."""
    with contextlib.ExitStack() as stack:
        stack.callback(interrupts.restore)
        stack.callback(collector.end)
        for extension in extensions("remove"):
            stack.callback(extension.remove)


# ---- immediate end of a rank: by a signal, or by `os._exit`; none of its code runs on ----

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
    for extension in extensions("stop_rank"):
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


# ---- simulated process ids of ranks: the same in every run, and higher than any real one ----

_FIRST_PID = 5_000_000  # Assumed: Linux gives at most 2**22, other systems less.
_next: WeakKeyDictionary[EngineInterface, int] = WeakKeyDictionary()
_first: WeakKeyDictionary[TaskGroup, int] = WeakKeyDictionary()
_tasks: WeakKeyDictionary[EngineInterface, WeakValueDictionary[int, Task]] = WeakKeyDictionary()


def first_pid(group: TaskGroup) -> int:
    """Return the process id of the first rank of a spawn; the next ranks have the next ids."""
    if group not in _first:
        first = _first[group] = _next.get(group.engine, _FIRST_PID)
        _next[group.engine] = first + len(group.tasks)
        by_pid = _tasks.setdefault(group.engine, WeakValueDictionary())
        by_pid.update({first + index: task for index, task in enumerate(group.tasks)})
    return _first[group]


def start_process(program: Program) -> int:
    """Give an id to a process that a rank starts, and return it."""
    engine, task = program.engine, program.task
    assert task is not None, "it has started"
    number = program.local["os.getpid"] = _next.get(engine, _FIRST_PID)
    _next[engine] = number + 1
    _tasks.setdefault(engine, WeakValueDictionary())[number] = task
    return number


def pid_of(program: Program) -> int:
    """Return the id of a rank, or of the process for the main program."""
    if program.process_of is not None:
        return int(program.local["os.getpid"])
    task = program.task
    if program.rank is None or task is None or task.group is None:
        return _getpid()
    return first_pid(task.group) + task.group.tasks.index(task)


def rank_with(pid: int, engine: EngineInterface) -> Task | None:
    """Return the rank that has an id, or None."""
    by_pid = _tasks.get(engine)
    return None if by_pid is None else by_pid.get(pid)


_getpid = os.getpid  # While a Context is entered, `os.getpid` asks here.
