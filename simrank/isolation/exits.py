"""Ends of ranks as of processes: by a signal, or at once by `os._exit`."""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakKeyDictionary

from simrank.engine import interrupts
from simrank.errors import UnsupportedError
from simrank.isolation import threads
from simrank.ranks.current import current_program, running_task
from simrank.ranks.lifecycle import end_at_once, pid_of, rank_with, stopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.engine import Task

_TIMERS = tuple(getattr(signal, name, None) for name in ("SIGALRM", "SIGVTALRM", "SIGPROF"))
_HARMLESS = ("SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU")


def patches() -> list[tuple[Any, str, Any]]:
    """Return the patches of this module: owner, name and replacement."""
    return [
        (signal, "signal", _set_handler),
        (signal, "getsignal", _get_handler),
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
        task, program = running_task(), current_program()
        if task is None or program is None:
            original(pid, number)
            return
        if pid == os.getpid():
            pid = pid_of(program)
        target = rank_with(pid, task.engine)
        if target is None:
            original(pid, number)
        elif target is not task.main:
            _send(target, number)
        elif not _deliver(task, number):
            original(os.getpid(), number)

    return kill


def _send(target: Task, number: int) -> None:
    """Do to another rank what a signal does to a process that does not handle it.

    Raises:
        ProcessLookupError: The rank has ended.
        UnsupportedError: It handles the signal: it could not do that before its next turn.
    """
    if target.finished:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    own = _handlers.get(target, {}).get(number, signal.SIG_DFL)
    if own is signal.SIG_IGN:
        return
    if own is not signal.SIG_DFL:
        raise UnsupportedError(
            f"signal {number} for {target.name}, which handles it, from another rank\n"
            "  to fix: tell it by a message, or by an Event of simrank.multiprocessing"
        )
    if number and number not in _harmless():
        stopped.add(target)
        end_at_once(target, -number)


def _raise_signal(original: Callable[[int], None]) -> Callable[[int], None]:
    @functools.wraps(original)
    def raise_signal(number: int) -> None:
        task = running_task()
        if task is None or not _deliver(task, number):
            original(number)

    return raise_signal


# ---- handlers: each rank has its own, as each process would ----

_handlers: WeakKeyDictionary[Task, dict[int, Any]] = WeakKeyDictionary()


def _own_handlers(number: int) -> dict[int, Any] | None:
    """Return the running rank's handlers; None if the process's are meant.

    Signals of timers are the process's, which has only one of each timer.
    """
    program, task = current_program(), running_task()
    if program is None or task is None or number in _TIMERS:
        return None
    return _handlers.setdefault(program.task or task, {})


def _set_handler(number: int, handler: Any) -> Any:  # noqa: ANN401 - as signal.signal
    """Replace `signal.signal`."""
    own = _own_handlers(number)
    if own is None:
        task = running_task()
        set_ = partial(interrupts.set_handler, number, handler, is_ranks=task is not None)
        # Python lets its main thread alone set it, and that is the hub's.
        on_thread = task is not None and task.carrier.thread_id is not None
        return threads.on_hub(task, set_) if task is not None and on_thread else set_()
    if not callable(handler) and handler not in {signal.SIG_DFL, signal.SIG_IGN}:
        raise TypeError(
            "signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object"
        )
    before = _get_handler(number)
    own[number] = handler
    return before


def _get_handler(number: int) -> Any:  # noqa: ANN401 - as signal.getsignal
    """Replace `signal.getsignal`."""
    own = _own_handlers(number)
    return own[number] if own and number in own else interrupts.get_handler(number)


def _deliver(task: Task, number: int) -> bool:
    """Do what a signal does to the rank that sends it itself; return whether that is all."""
    own = (_own_handlers(number) or {}).get(number) if number else None
    if callable(own) and own not in {signal.SIG_DFL, signal.SIG_IGN}:
        own(number, sys._getframe(2))  # noqa: SLF001 - the documented way to a frame
    elif own is None and not _ends(number):
        return False
    elif own is not signal.SIG_IGN and number not in _harmless():
        end_at_once(task, -number)
    return True


def _harmless() -> set[int | None]:
    return {getattr(signal, name, None) for name in _HARMLESS}


def _ends(number: int) -> bool:
    """Return whether a signal would end the process: it has no handler."""
    if number == 0 or number in _harmless():
        return False
    return interrupts.get_handler(number) is signal.SIG_DFL
