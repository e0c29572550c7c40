"""Patches of the standard library while a Context is entered (rule E7).

`install` replaces them for the first Context, `remove` restores them after the last one. What a
patch finds the running rank, and is the original everywhere but in a task. Names that the program's
modules bound earlier (`from time import sleep`) are replaced and restored too; references kept in
default arguments, classes and closures are not, nor are installed packages' own.
"""

from __future__ import annotations

import _thread
import datetime as dt
import functools
import os
import queue
import signal
import sys
import threading  # noqa: TID251 - replaced here, used nowhere
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any

from simrank.engine import limits
from simrank.engine.callsite import attributes_of, is_real
from simrank.engine.choices import Act
from simrank.isolation import (
    blocking_calls,
    clock,
    diagnostics,
    exits,
    finalizers,
    libraries,
    locks,
    mock_patches,
    output,
    process_state,
    threads,
)
from simrank.isolation.diagnostics import OwnName
from simrank.isolation.ledger import ABSENT, Ledger, plain
from simrank.isolation.libraries import ImportWatcher
from simrank.isolation.private_modules import FINDER
from simrank.ranks.current import running_task
from simrank.ranks.program_modules import own_modules

if TYPE_CHECKING:
    from collections.abc import Callable

    Patches = list[tuple[Any, str, Any]]

# Modules whose attributes a rank sets for its own turns. `sys`, `warnings` and `threading` are of
# such a class anyway.
_FOR_TURNS = (
    "builtins", "locale", "logging", "multiprocessing", "os", "random", "signal", "tempfile",
    "time",
)  # fmt: skip


def _of(module: ModuleType) -> Patches:
    found: Patches = []
    if type(module) is ModuleType:
        found.append((module, "__class__", mock_patches.SharedModule))
    more = _MORE.get(module.__name__)
    return found if more is None else [*found, *more(module)]


def _of_logging(module: ModuleType) -> Patches:
    return [
        mock_patches.own_global(module, "setLoggerClass", "_loggerClass"),
        mock_patches.own_global(module, "setLogRecordFactory", "_logRecordFactory"),
    ]


def _of_multiprocessing(module: ModuleType) -> Patches:
    context = vars(module)["context"]
    kind = type(context._default_context)  # noqa: SLF001 - likewise
    return [(kind, "_actual_context", OwnName("_actual_context"))]


def _of_threading(module: ModuleType) -> Patches:
    return [
        mock_patches.own_global(module, "settrace", "_trace_hook"),
        mock_patches.own_global(module, "setprofile", "_profile_hook"),
    ]


_MORE: dict[str, Callable[[ModuleType], Patches]] = {
    "logging": _of_logging,
    "multiprocessing": _of_multiprocessing,
    "threading": _of_threading,
}


# ---- patches of the standard library while a Context is entered (rule E7) ----


NAMES = Ledger(__name__)
# Another name of these is no name of what was replaced: every False is the same one.
_HAS_NO_IDENTITY = (ModuleType, bool, int, float, str, bytes, tuple, type(None))
_BARE_LOCKS = frozenset(locks.BARE)


def install() -> None:
    """Replace what ranks may not share; `remove` restores it."""
    output.install(NAMES)
    diagnostics.install(NAMES)
    clock.install(NAMES)
    NAMES.replace_all(_patches(), __name__)
    _late.watch(libraries.patched_modules())
    sys.meta_path.insert(0, FINDER)
    own = own_modules()
    # A module in another's names (hypothesis reads `threading`'s current thread) is not handled
    # here.
    patches = {id(original): patch for original, patch in _named()}
    _rebind(own, patches)
    _rebind_names(patches)
    _replace_locks(own)
    if len(sys.modules) != len(_known):
        _known.clear()
        _known.update(sys.modules)


def _named() -> list[tuple[Any, Any]]:
    """Return originals and patches that other names may have been bound to."""
    static, absent, common = staticmethod, ABSENT, _HAS_NO_IDENTITY
    return [
        (
            held.__func__ if type(held) is static else held,
            value.__func__ if type(value) is static else value,
        )
        for _, _, value, held, _, _, _ in NAMES.entries
        if held is not absent and not isinstance(held, common)
    ]


def _put_late(module: ModuleType, is_late: bool) -> None:
    """Replace parts of a module; a module that is imported late has found patches to bind."""
    first = len(NAMES.entries)
    name = module.__name__
    if name in _LATE:
        NAMES.replace_all(_LATE[name](module), __name__)
    if name in _FOR_TURNS or name in _MORE:
        NAMES.replace_all(_of(module), __name__)
    if name in libraries.patched_modules():
        NAMES.replace_all(libraries.patches(module), libraries.home_of(name))
    if not is_late:
        return
    for index in range(first, len(NAMES.entries)):
        late = NAMES.entries[index]
        original = _original(plain(late.held))
        if original is not plain(late.held):  # The module bound a patch as it was imported.
            held = staticmethod(original) if type(late.held) is staticmethod else original
            NAMES.entries[index] = late._replace(held=held)


def _original(value: Any) -> Any:  # noqa: ANN401 - anything that is replaced
    """Return the original of a replaced value, for modules that are imported late."""
    if isinstance(value, tuple):
        return tuple(map(_original, value))
    return next((plain(e.held) for e in NAMES.entries if plain(e.value) is value), value)


def _replace_locks(modules: list[ModuleType]) -> None:
    """Replace the locks that the program's own modules made at their top."""
    patches: dict[int, Any] = {}
    for module in modules:
        if _BARE_LOCKS.isdisjoint(map(type, vars(module).values())):
            continue
        found = [(n, v) for n, v in vars(module).items() if type(v) in locks.BARE]
        for name, value in found:
            if id(value) not in patches:
                patches[id(value)] = locks.of_globals(value)
            if patches[id(value)] is not None:
                NAMES.replace(module, name, patches[id(value)], home=locks.__name__)


def remove() -> None:
    """Undo what has been replaced, all of it or the first part."""
    try:
        stood_for = {id(patch): original for original, patch in _named()}
        _rebind(own_modules(), stood_for)
        if len(sys.modules) != len(_known):
            _find_bound(stood_for)
        _rebind_names(stood_for)
    finally:
        locks.restore()
        _late.stop()
        if FINDER in sys.meta_path:
            sys.meta_path.remove(FINDER)
        NAMES.restore()


def _patches() -> list[tuple[Any, str, Any]]:
    """Return the patches: owner, name and replacement."""
    replaced: list[tuple[Any, str, Any]] = [
        (time, name, function) for name, function in clock.TIME_FUNCTIONS.items()
    ]
    replaced += exits.patches()
    replaced += [
        (dt, "datetime", clock.Datetime),
        (dt, "date", clock.Date),
        # These two read the clock while they hold a lock, so they must not yield there.
        (threading, "_time", clock.quiet_monotonic),
        (queue, "time", clock.quiet_monotonic),
        (threading, "_allocate_lock", locks.make_waiter),
        (_thread, "allocate_lock", locks.make_low_lock),  # The same object, so this comes first.
        (threading, "Lock", locks.make_lock),
        (threading, "RLock", locks.make_reentrant_lock),
        (functools, "RLock", locks.make_property_lock),
        (os, "system", blocking_calls.system_of(os.system)),
        *_refused(os, ("fork", "forkpty"), _USE_SPAWN),
        *_refused(signal, ("pause", "sigwait", "sigwaitinfo"), "wait for a queue or an Event"),
        (threading.Semaphore, "acquire", _poll_after(threading.Semaphore.acquire)),
        (threading.Event, "is_set", _poll_if(threading.Event.is_set, False)),
    ]
    for module in (threads, process_state, finalizers, diagnostics):
        replaced += module.patches()
    replaced += blocking_calls.of_select() + blocking_calls.of_fcntl()
    simple_queue: Any = getattr(queue, "_PySimpleQueue")  # noqa: B009 - it has no public name
    replaced.append((queue, "SimpleQueue", simple_queue))
    for kind in (queue.Queue, simple_queue):
        replaced += [(kind, name, _poll_on_failure(getattr(kind, name))) for name in ("get", "put")]
        replaced.append((kind, "empty", _poll_if(kind.empty, True)))
    replaced.append((queue.Queue, "full", _poll_if(queue.Queue.full, True)))
    return replaced


_USE_SPAWN = "use spawn for ranks, and locks and queues of threading and queue"


def _refused(module: Any, names: tuple[str, ...], to_fix: str) -> list[tuple[Any, str, Any]]:  # noqa: ANN401
    """Return patches for functions that a rank may not call, where this system has them."""
    refuse, home = blocking_calls.refuse, module.__name__
    found = [name for name in names if hasattr(module, name)]
    return [(module, n, refuse(getattr(module, n), f"{home}.{n}", to_fix)) for n in found]


def _of_asyncio(_: ModuleType) -> list[tuple[Any, str, Any]]:
    from simrank.isolation import event_loops  # noqa: PLC0415 - it imports asyncio

    return event_loops.patches()


def _of_synchronize(module: ModuleType) -> list[tuple[Any, str, Any]]:
    kind = module.__dict__["SemLock"]
    name = "multiprocessing.synchronize.SemLock"
    return [(kind, "__init__", blocking_calls.refuse(kind.__init__, name, _USE_SPAWN))]


def _of_sched(module: ModuleType) -> list[tuple[Any, str, Any]]:
    kind: Any = module.__dict__["scheduler"]
    return [(kind.__init__, "__defaults__", (time.monotonic, time.sleep))]  # noqa: TID251 - patches


def _of_timeit(module: ModuleType) -> list[tuple[Any, str, Any]]:
    return [(module, "default_timer", time.perf_counter)]


_LATE: dict[str, Callable[[ModuleType], list[tuple[Any, str, Any]]]] = {
    "_pytest.monkeypatch": mock_patches.of_monkeypatch,
    "asyncio": _of_asyncio,
    "logging": diagnostics.logging_patches,
    "concurrent.futures.thread": threads.of_executor,
    "hypothesis.core": libraries.of_core,
    "hypothesis.utils.dynamicvariables": libraries.of_variables,
    "hypothesis.utils.threading": libraries.of_thread_locals,
    "multiprocessing.pool": threads.of_pool,
    "multiprocessing.shared_memory": blocking_calls.of_shared_memory,
    "multiprocessing.sharedctypes": blocking_calls.of_shared_types,
    "multiprocessing.synchronize": _of_synchronize,
    "psutil": process_state.of_psutil,
    "sched": _of_sched,
    "selectors": blocking_calls.of_selectors,
    "socket": blocking_calls.of_socket,
    "subprocess": blocking_calls.of_subprocess,
    "timeit": _of_timeit,
    "tqdm.std": libraries.tqdm_patches,
    "unittest.mock": mock_patches.of_mock,
}


_late = ImportWatcher(
    dict.fromkeys((*_LATE, *_FOR_TURNS, *_MORE)), _put_late, libraries.check_import
)


def _poll_if(original: Callable[..., bool], answer: bool) -> Callable[..., bool]:
    """Charge a task for an answer after which it will ask again (E8)."""
    what = f"{original.__qualname__}()"

    @functools.wraps(original)
    def ask(self: object) -> bool:
        task = running_task()
        if task is not None and task.engine.choices is not None:
            lock = _lock_of(self)
            limits.reach(task, locks.LOCKS, id(lock), lock, act=Act.READ)
            return original(self)
        result = original(self)
        if result is answer and task is not None:
            limits.poll(task.engine, what)
            result = original(self)
        return result

    return ask


def _lock_of(shared: Any) -> object:  # noqa: ANN401 - of several classes
    """Return the lock behind an Event, or a queue without a mutex."""
    condition = getattr(shared, "_cond", None) or getattr(shared, "_count", shared)
    condition = getattr(condition, "_cond", condition)
    return getattr(condition, "_lock", shared)


def _poll_after(original: Callable[..., bool]) -> Callable[..., bool]:
    """Charge a task for an attempt that did not wait, or waited in vain."""
    what = f"{original.__qualname__}()"

    @functools.wraps(original)
    def attempt(self: object, *args: object, **kwargs: object) -> bool:
        result = original(self, *args, **kwargs)
        task = None if result else running_task()
        if task is not None and task.engine.choices is None:  # Its lock's turn was the choice.
            limits.poll(task.engine, what)
        return result

    return attempt


def _poll_on_failure(original: Callable[..., Any]) -> Callable[..., Any]:
    """Charge a task for a `get` or `put` that did not wait and failed."""
    what = f"{original.__qualname__}()"

    @functools.wraps(original)
    def attempt(self: object, *args: object, **kwargs: object) -> Any:  # noqa: ANN401 - the original's
        try:
            return original(self, *args, **kwargs)
        except (queue.Empty, queue.Full):
            task = running_task()
            if task is not None and task.engine.choices is None:  # As above.
                limits.poll(task.engine, what)
            raise

    return attempt


def _rebind(modules: list[ModuleType], replacements: dict[int, Any]) -> None:
    """Replace names in the program's own modules, by the identity of what they are bound to."""
    for module in modules:
        names = vars(module)
        if replacements.keys().isdisjoint(map(id, names.values())):
            continue  # Nearly all, and a program may have hundreds.
        for name, value in list(names.items()):
            if id(value) in replacements:
                names[name] = replacements[id(value)]


# Names of modules that a Context has seen, and what those of installed packages that came later
# have bound (`from threading import RLock`): patches while a Context is entered, and originals
# after it, as if the modules had been there before.
_known: set[str] = set()
_bound: dict[tuple[str, str], None] = {}


def _find_bound(stood_for: dict[int, Any]) -> None:
    """Note what modules that were imported within a Context have bound of its patches."""
    for name in sys.modules.keys() - _known:
        module = sys.modules[name]
        if is_real(module, ModuleType) and name.partition(".")[0] != "simrank":
            found = attributes_of(module).items()
            _bound.update({(name, key): None for key, value in found if id(value) in stood_for})


def _rebind_names(replacements: dict[int, Any]) -> None:
    """Replace what `_find_bound` has noted, by the identity of what the names are bound to."""
    for module_name, name in _bound:
        bound = attributes_of(sys.modules.get(module_name)).get(name)
        if bound is not None and id(bound) in replacements:  # It may be gone meanwhile.
            vars(sys.modules[module_name])[name] = replacements[id(bound)]
