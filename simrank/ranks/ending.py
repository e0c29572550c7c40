"""How a rank ends as a process does: by a signal, or at once without a word (`os._exit`)."""

from __future__ import annotations

import functools
import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from simrank.engine import Handle, interrupts
from simrank.ranks.current import running_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.engine import Task

_HARMLESS = ("SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU")


def end_at_once(task: Task, status: int) -> None:
    """End a rank here: none of its code runs on, not even its `finally`.

    Args:
        task: The rank.
        status: Its exit status; minus a signal's number if that ends it.
    """
    engine = task.engine
    if task.finished:
        return
    if engine.current_task() is task:  # It ends itself: from the hub, and it never comes back.
        engine.call_at(engine.now_ps, partial(end_at_once, task, status))
        while True:
            engine.wait(Handle())
    for group in task.children or ():
        group.abort()
    task.error = SystemExit(status) if status else None
    if task.started:
        engine.park(task)
    else:
        task.finished = True
        engine.retire(task)
    engine.unqueue(task)


def stand_ins() -> list[tuple[Any, str, Any]]:
    """Return what to replace while a Context is entered: owner, name and stand-in."""
    return [
        (os, "_exit", _exit(os._exit)),
        (os, "abort", _abort(os.abort)),
        (os, "kill", _kill(os.kill)),
        (signal, "raise_signal", _raise_signal(signal.raise_signal)),
    ]


def _exit(original: Callable[[int], NoReturn]) -> Callable[[int], None]:
    @functools.wraps(original)
    def exit_(status: int) -> None:
        task = running_task()
        if task is None:
            original(status)
        else:
            end_at_once(task, status & 0xFF)

    return exit_


def _abort(original: Callable[[], NoReturn]) -> Callable[[], None]:
    @functools.wraps(original)
    def abort() -> None:
        task = running_task()
        if task is None:
            original()
        else:
            end_at_once(task, -signal.SIGABRT)

    return abort


def _kill(original: Callable[[int, int], None]) -> Callable[[int, int], None]:
    @functools.wraps(original)
    def kill(pid: int, number: int) -> None:
        task = running_task()
        if task is not None and pid == os.getpid() and _ends(number):
            end_at_once(task, -number)
        else:
            original(pid, number)

    interrupts.may_be_left(kill)
    return kill


def _raise_signal(original: Callable[[int], None]) -> Callable[[int], None]:
    @functools.wraps(original)
    def raise_signal(number: int) -> None:
        task = running_task()
        if task is not None and _ends(number):
            end_at_once(task, -number)
        else:
            original(number)

    interrupts.may_be_left(raise_signal)
    return raise_signal


def _ends(number: int) -> bool:
    """Whether a signal would end the process: nobody handles it."""
    if number == 0 or number in {getattr(signal, name, None) for name in _HARMLESS}:
        return False
    return interrupts.get_handler(number) is signal.SIG_DFL
