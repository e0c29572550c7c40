"""Python's garbage collector while a simulation runs."""

from __future__ import annotations

import atexit
import gc
import sys
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader
from types import ModuleType
from typing import TYPE_CHECKING

from greenlet import getcurrent

from simrank.engine.callsite import attributes_of, is_real

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from greenlet import greenlet

before_looks: list[Callable[[], None]] = []  # Called as the collector begins to look.
_looker: greenlet | None = None
_has_frozen = False
_has_threads = False
_num_modules = 0  # Imported as the first Context was entered.
_is_programs = False  # Whether the program freezes objects itself: it has its own idea of them.
_num_unseen = 0  # Objects that have become old without a look since the last look at all.

_GC_THRESHOLD = 100_000  # objects; assumed: some 10 MB of garbage in cycles does not hurt
_OLD_THRESHOLD = 1_000  # looks at the middle-aged before one at all; assumed, likewise
_MOST_UNSEEN = 200_000  # assumed: a look at all, 0.25 s beside torch, per so many objects made
_MANY_MODULES = 100  # assumed: to look at what they hold takes longer than what ranks left is worth
_OBJECTS_PER_TASK = 200  # assumed: what a rank holds by the time it has made a few tensors


@contextmanager
def calm_collector(num_tasks: int = 0, *, is_calm: bool = True) -> Iterator[None]:
    """Slow down Python's garbage collector within the block.

    With thousands of live ranks its default pace costs more than the simulation (measured: 1.6 s
    against 0.7 s for 10,000 ranks that deadlock), and at any fixed pace it looks at objects that
    live as long as their ranks (measured: a quarter of 10,000 ranks' ten all_reduces).

    Args:
        num_tasks: Tasks that live now.
        is_calm: False where tasks are programs on threads, of which there are few: what is young
            dies there as early as in a process. A logger on one rank that holds its callers' frames
            in a cycle, say, holds what all others have lost; a program that asks whether its groups
            are alive goes on otherwise on that rank. Looks at what is old stay rare (0.1 s each).
    """
    global _has_threads  # noqa: PLW0603 - one collector
    threshold, *older = gc.get_threshold()
    calm = max(threshold, _GC_THRESHOLD, num_tasks * _OBJECTS_PER_TASK)
    if not is_calm:
        _has_threads = True
        gc.set_threshold(threshold, older[0], max(older[1], _OLD_THRESHOLD))
    else:
        gc.set_threshold(calm if threshold else 0, *older)
    try:
        yield
    finally:
        if gc.get_count()[0] > _GC_THRESHOLD:
            _let_grow_old(most_unseen=calm)
        gc.set_threshold(threshold, *older)


def _let_grow_old(most_unseen: int) -> None:
    """Move all live objects to the oldest generation of the collector.

    What thousands of ranks leave is alive: a look takes a tenth as long as their simulation, and
    as the process ends Python takes several (measured: 4.8 s after 16,384 ranks). What is garbage
    would stay forever: after as many objects as the ranks of a run hold there is a look at all.
    """
    global _has_frozen, _num_unseen  # noqa: PLW0603 - likewise
    _num_unseen += gc.get_count()[0]
    atexit.unregister(_end_of_process)
    atexit.register(_end_of_process)
    if _has_frozen or (gc.isenabled() and not gc.get_freeze_count()):
        gc.freeze()
        gc.unfreeze()
        if not _has_frozen and _num_unseen > most_unseen:
            _num_unseen = 0
            gc.collect()
    _has_frozen = False


def _end_of_process() -> None:
    """Freeze all objects at the end of the process, unless a library reports leaks (nanobind)."""
    modules = [each for each in sys.modules.copy().values() if is_real(each, ModuleType)]
    named = (attributes_of(each).values() for each in modules if _is_extension(each))
    if not any(type(value).__module__ == "nanobind" for values in named for value in values):
        gc.freeze()


def _is_extension(module: ModuleType) -> bool:
    spec = attributes_of(module).get("__spec__")  # A program may have made a module by hand.
    return is_real(attributes_of(spec).get("loader"), ExtensionFileLoader)


def begin() -> None:
    """Freeze the objects that exist before the simulation, and watch collections from now on.

    Beside torch a look at all that was there before takes 0.25 s, and finds nothing.
    """
    global _has_frozen, _has_threads, _is_programs, _num_modules, _num_unseen  # noqa: PLW0603 - likewise
    _has_threads = False
    _num_modules = len(sys.modules)
    gc.callbacks.insert(0, _first)
    gc.callbacks.append(_last)
    # To count what is frozen takes milliseconds where a program does it: once is enough.
    _is_programs = _is_programs or gc.get_freeze_count() > 0
    _has_frozen = gc.isenabled() and not _is_programs
    if _has_frozen:
        young, middle_aged, _ = gc.get_count()
        _num_unseen += young + middle_aged * gc.get_threshold()[0]
        if _num_unseen > _MOST_UNSEEN:
            _num_unseen = 0
            gc.collect()
        gc.freeze()


def end() -> None:
    """Collect the garbage of ranks on threads; undo `begin`."""
    global _has_frozen, _has_threads  # noqa: PLW0603 - likewise
    before_looks.clear()
    gc.callbacks[:] = [each for each in gc.callbacks if each not in (_first, _last)]
    if _has_frozen:
        if _has_threads and len(sys.modules) - _num_modules < _MANY_MODULES:
            gc.collect()
        gc.unfreeze()
    _has_frozen = _has_threads = False


def thaw() -> None:
    """Unfreeze all objects, so that a search for referrers sees them."""
    global _has_frozen  # noqa: PLW0603 - likewise
    if _has_frozen:
        gc.unfreeze()
    _has_frozen = False


def look_at_all() -> None:
    """Collect garbage among all objects, frozen ones included."""
    if _has_frozen:
        gc.unfreeze()
    gc.collect()
    if _has_frozen:
        gc.freeze()


def is_looking() -> bool:
    """Return whether the collector called the caller: a finalizer, or one of `gc.callbacks`.

    It looks between any two lines of the engine's own, so what it calls must not yield where
    it is not expected (a library that measures its collector reads the clock, which is a poll).
    """
    return _looker is not None and _looker is getcurrent()


def frame_of_thread(thread_id: int | None) -> FrameType | None:
    """Return the innermost frame of a thread; None if no such thread runs Python.

    `sys._current_frames` makes objects while it holds a lock of the interpreter: if the collector
    began there, what it calls would stop the process, or end it, as other threads go on (Python's
    issue 106883). The collector rests for so long.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread_id or 0)  # noqa: SLF001, TID251 - for debuggers
    finally:
        if is_enabled:
            gc.enable()


def _first(phase: str, _: object) -> None:
    global _looker  # noqa: PLW0603 - one collector
    if phase == "start":
        try:
            _looker = getcurrent()
        except RuntimeError:  # A thread that dies: nothing of it yields any more.
            _looker = None
        if gc.callbacks[-1] is not _last:  # Another one would be called before it is over.
            gc.callbacks.remove(_last)
            gc.callbacks.append(_last)
        for tell in before_looks:
            tell()


def _last(phase: str, _: object) -> None:
    global _looker  # noqa: PLW0603 - likewise
    if phase == "stop":
        _looker = None
