"""Simulated process ids of ranks: the same in every run, and higher than any real one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakValueDictionary

if TYPE_CHECKING:
    from simrank.engine import EngineInterface, Task, TaskGroup
    from simrank.ranks.current import Program

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
