"""The standard library while a Context is entered: clocks, locks and queues of ranks (rule E7).

`enter` replaces them when the first Context enters, `leave` restores them when the last exits. What
stands in asks who runs, and is the original everywhere but in a task. Names that the program's
modules bound earlier (`from time import sleep`) are replaced and restored too; references kept in
default arguments, classes and closures are not, nor are installed packages' own.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import queue
import signal
import sys
import threading  # noqa: TID251 - replaced here, used nowhere
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrank.engine import interrupts, limits
from simrank.errors import UnsupportedError
from simrank.ranks import clock, debug, locks, private
from simrank.ranks.current import engines, running_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from simrank.engine import Engine, Task

_STANDARD_LIBRARY = str(Path(contextlib.__file__).parent) + "/"
_PACKAGE = str(Path(__file__).parent.parent) + "/"
_own_files: dict[str | None, bool] = {}
_replaced: list[tuple[Any, str, Any]] = []


_entered_by: list[tuple[Engine, Task | None]] = []  # In a rank, or in the main program.


def enter(engine: Engine) -> None:
    """Note that a Context has been entered; the first replaces the clocks and locks."""
    if not engines:
        interrupts.install()  # From here on a signal waits until simrank's own code is done.
        try:
            _replace()
        except BaseException:
            _restore()
            raise
    _entered_by.append((engine, running_task()))
    engines.append(engine)


def leave(engine: Engine) -> None:
    """Note that a Context has exited; the last restores what the first replaced."""
    _entered_by.reverse()
    _entered_by.remove(next(entry for entry in _entered_by if entry[0] is engine))
    _entered_by.reverse()
    # A rank that was killed has left none of its blocks.
    _entered_by[:] = [entry for entry in _entered_by if entry[1] is None or not entry[1].finished]
    engines[:] = [engine for engine, _ in _entered_by]
    if not engines:
        _restore()


@contextlib.contextmanager
def entered(engine: Engine) -> Iterator[None]:
    """Count as entered within the block."""
    if running_task() is not None:  # Then somebody has, who stays in longer than a rank may live.
        yield
        return
    enter(engine)
    try:
        yield
    finally:
        leave(engine)


def _replace() -> None:
    for owner, name, stand_in in _stand_ins():
        _replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, stand_in)
    _rebind({id(old): getattr(owner, name) for owner, name, old in _replaced})


def _restore() -> None:
    """Undo what has been replaced, all of it or the first part."""
    try:
        _rebind({id(getattr(owner, name)): old for owner, name, old in _replaced})
        while _replaced:
            owner, name, original = _replaced[-1]
            setattr(owner, name, original)
            del _replaced[-1]
    finally:
        interrupts.restore()


def _stand_ins() -> list[tuple[Any, str, Any]]:
    """Return what to replace: owner, name and stand-in."""
    replaced: list[tuple[Any, str, Any]] = [
        (time, name, function) for name, function in clock.TIME_FUNCTIONS.items()
    ]
    replaced += [
        (dt, "datetime", clock.Datetime),
        # These two read the clock while they hold a lock, so they must not yield there.
        (threading, "_time", clock.quiet_monotonic),
        (queue, "time", clock.quiet_monotonic),
        (threading, "_allocate_lock", locks.make_waiter),
        (threading, "Lock", locks.make_lock),
        (threading, "RLock", locks.make_reentrant_lock),
        (threading.Thread, "start", _start_thread(threading.Thread.start)),
        (signal, "signal", interrupts.set_handler),
        (signal, "getsignal", interrupts.get_handler),
        (threading.Event, "is_set", _poll_if(threading.Event.is_set, False)),
    ]
    replaced += private.stand_ins() + debug.stand_ins()
    if "asyncio" in sys.modules:
        from simrank.ranks import loops  # noqa: PLC0415 - it imports asyncio

        replaced += loops.stand_ins()
    simple_queue: Any = getattr(queue, "_PySimpleQueue")  # noqa: B009 - it has no public name
    replaced.append((queue, "SimpleQueue", simple_queue))
    for kind in (queue.Queue, simple_queue):
        replaced += [(kind, name, _poll_on_failure(getattr(kind, name))) for name in ("get", "put")]
        replaced.append((kind, "empty", _poll_if(kind.empty, True)))
    replaced.append((queue.Queue, "full", _poll_if(queue.Queue.full, True)))
    for module, kind_name, method in (
        ("multiprocessing.process", "BaseProcess", "start"),
        ("multiprocessing.synchronize", "SemLock", "__init__"),
    ):
        if module in sys.modules:
            owner = getattr(sys.modules[module], kind_name)
            replaced.append((owner, method, _refuse(getattr(owner, method), module)))
    return replaced


def _poll_if(original: Callable[..., bool], answer: bool) -> Callable[..., bool]:
    """Charge a task for an answer after which it will ask again (E8)."""
    what = f"{original.__qualname__}()"

    @functools.wraps(original)
    def ask(self: object) -> bool:
        result = original(self)
        if result is answer:
            task = running_task()
            if task is not None:
                limits.poll(task.engine, what)
                result = original(self)
        return result

    return ask


def _poll_on_failure(original: Callable[..., Any]) -> Callable[..., Any]:
    """Charge a task for a `get` or `put` that did not wait and failed."""
    what = f"{original.__qualname__}()"

    @functools.wraps(original)
    def attempt(self: object, *args: object, **kwargs: object) -> Any:  # noqa: ANN401 - the original's
        try:
            return original(self, *args, **kwargs)
        except (queue.Empty, queue.Full):
            task = running_task()
            if task is not None:
                limits.poll(task.engine, what)
            raise

    return attempt


def _start_thread(original: Callable[..., None]) -> Callable[..., None]:
    refuse = _refuse(original, "threading")

    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        if running_task() is not None:
            refuse(self)
        with locks.native_locks():  # The new thread sets the event that says it runs.
            original(self)

    return start


def _refuse(original: Callable[..., Any], module: str) -> Callable[..., Any]:
    """Stand for something that would wait for real: in a rank it is an error by name."""
    name = f"{module}.{original.__qualname__}".replace(".__init__", "")

    @functools.wraps(original)
    def refuse(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - the original's
        if running_task() is not None:
            raise UnsupportedError(
                f"{name} inside a simulated rank: it would wait for real threads or processes\n"
                "  to fix: use spawn for ranks, and locks and queues of threading and queue"
            )
        return original(*args, **kwargs)

    return refuse


def _rebind(replacements: dict[int, Any]) -> None:
    """Replace names in the program's own modules, by the identity of what they are bound to."""
    for module in list(sys.modules.values()):
        if not is_programs_own(module):
            continue
        names = vars(module)
        for name, value in list(names.items()):
            if id(value) in replacements:
                names[name] = replacements[id(value)]


def is_programs_own(module: ModuleType) -> bool:
    """Whether a module is neither simrank's nor installed nor the standard library's."""
    file = getattr(module, "__file__", None)
    try:
        return _own_files[file]
    except (KeyError, TypeError):
        pass
    if not isinstance(file, str):
        return getattr(module, "__name__", "") == "__main__"
    own = not file.startswith((_STANDARD_LIBRARY, _PACKAGE)) and "/site-packages/" not in file
    _own_files[file] = own
    return own
