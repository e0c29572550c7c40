"""Process ids of ranks: `os.getpid()` and `os.getppid()` are those that processes would have.

Programs name files by them and seed from them. A rank's number is its own, the same in every run,
and higher than any that the system gives, so that a signal for it reaches nobody else. The standard
library and packages that ranks share, which tell by it whether they were forked, and psutil, which
looks for the process, find the real one.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from simrank.ranks.current import of_process, rank_program

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from simrank.engine import Engine, Task, TaskGroup
    from simrank.ranks.current import Program

_FIRST_PID = 5_000_000  # Assumed: Linux gives at most 2**22, other systems less.
_FINDS_REAL = frozenset({
    "multiprocessing", "subprocess", "asyncio", "concurrent", "tempfile", "random", "psutil",
    "simrank", "filelock", "fsspec", "multiprocess",
})  # fmt: skip
_next: WeakKeyDictionary[Engine, int] = WeakKeyDictionary()
_first: WeakKeyDictionary[TaskGroup, int] = WeakKeyDictionary()
_tasks: WeakKeyDictionary[Engine, WeakValueDictionary[int, Task]] = WeakKeyDictionary()


def first_pid(group: TaskGroup) -> int:
    """Return the id of the first rank of a spawn; those of the others follow."""
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


def rank_with(pid: int, engine: Engine) -> Task | None:
    """Return the rank that has an id, or None."""
    by_pid = _tasks.get(engine)
    return None if by_pid is None else by_pid.get(pid)


_getpid = os.getpid


def stand_ins() -> list[tuple[Any, str, Any]]:
    """Return what to replace while a Context is entered: owner, name and stand-in."""
    return [
        (os, "getpid", _numbered(os.getpid, pid_of)),
        (os, "getppid", _numbered(os.getppid, _parents)),
    ]


def of_psutil(module: ModuleType) -> list[tuple[Any, str, Any]]:
    """Return what lets a rank look at itself, under its own number: it finds the real process."""
    kind: Any = module.__dict__["Process"]
    original = kind.__init__

    @functools.wraps(original)
    def init(self: object, pid: int | None = None) -> None:
        program = rank_program()
        if program is not None and pid == pid_of(program):
            pid = None
        original(self, pid)

    return [(kind, "__init__", init)]


def _parents(program: Program) -> int:
    return _getpid() if program.parent is None else pid_of(program.parent)


def _numbered(original: Callable[[], int], ask: Callable[[Program], int]) -> Callable[[], int]:
    key = of_process(f"os.{original.__name__}")

    @functools.wraps(original)
    def number() -> int:
        program = rank_program()
        if program is None or _asks_for_real(sys._getframe(1).f_globals.get("__name__")):  # noqa: SLF001 - the documented way
            return original()
        if key not in program.local:
            program.local[key] = ask(program)
        found: int = program.local[key]
        return found

    return number


def _asks_for_real(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _FINDS_REAL
