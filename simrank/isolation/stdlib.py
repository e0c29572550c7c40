"""Patches of the standard library while a Context is entered (rule E7).

`install` replaces them for the first Context, `remove` restores them after the last one. What a
patch finds the running rank, and is the original everywhere but in a task. Names that the program's
modules bound earlier (`from time import sleep`) are replaced and restored too; references kept in
default arguments, classes and closures are not, nor are installed packages' own.

A process has them for itself. A rank has `DISPATCHED` and `SWAPPED` names for itself, `SHARED`
names are the process's as they are for threads, `REFUSED` calls raise `UnsupportedError` in a rank.
A test walks the table.
"""

from __future__ import annotations

import _thread
import datetime as dt
import enum
import functools
import os
import queue
import signal
import sys
import threading  # noqa: TID251 - replaced here, used nowhere
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.engine import limits
from simrank.engine.callsite import attributes_of, is_real
from simrank.isolation import (
    blocking_calls,
    clock,
    diagnostics,
    finalizers,
    libraries,
    locks,
    mock_patches,
    output,
    process_state,
    threads,
)
from simrank.isolation.diagnostics import OwnName
from simrank.isolation.libraries import ImportWatcher
from simrank.isolation.private_modules import FINDER
from simrank.ranks.current import running_task
from simrank.ranks.program_modules import own_modules

# ---- names of the standard library that programs replace, and the scope of the new value ----

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Patches = list[tuple[Any, str, Any]]


class Scope(enum.Enum):
    """The visibility of a value that one rank assigns, and its mechanism.

    Attributes:
        DISPATCHED: The rank alone: each read and write goes to the running rank's value.
        SWAPPED: The rank alone: its value is in place during its turns and taken back after them.
        SHARED: All ranks, as threads of a process.
        REFUSED: None: the call raises `UnsupportedError`.
    """

    DISPATCHED = "the rank's own, dispatched"
    SWAPPED = "the rank's own, swapped"
    SHARED = "shared, as threads would"
    REFUSED = "refused"


_DISPATCHED, _SWAPPED = Scope.DISPATCHED, Scope.SWAPPED
_SHARED, _REFUSED = Scope.SHARED, Scope.REFUSED

# Attributes that a program sets, and functions (with parentheses) that set something.
TABLE: Mapping[str, Mapping[str, Scope]] = {
    "sys": {
        "argv": _DISPATCHED, "stdout": _DISPATCHED, "stderr": _DISPATCHED, "stdin": _SWAPPED,
        "excepthook": _DISPATCHED, "displayhook": _SWAPPED, "unraisablehook": _SWAPPED,
        "path": _SWAPPED, "path.append()": _SHARED, "setrecursionlimit()": _SHARED,
        "setswitchinterval()": _SHARED,
    },
    "builtins": {
        "print": _SWAPPED, "open": _SWAPPED, "input": _SWAPPED, "profile": _SWAPPED,
        "_": _SWAPPED,
    },
    "os": {
        "environ[]": _DISPATCHED, "chdir()": _DISPATCHED, "cpu_count": _SWAPPED,
        "getpid": _SWAPPED, "system": _SWAPPED, "umask()": _SHARED, "fork()": _REFUSED,
        "forkpty()": _REFUSED,
    },
    "logging": {
        "root.setLevel()": _DISPATCHED, "disable()": _DISPATCHED,
        "captureWarnings()": _DISPATCHED, "setLoggerClass()": _SWAPPED,
        "setLogRecordFactory()": _SWAPPED, "raiseExceptions": _SWAPPED, "lastResort": _SWAPPED,
        "basicConfig": _SWAPPED, "addLevelName()": _SHARED,
    },
    "warnings": {
        "simplefilter()": _DISPATCHED, "filters": _DISPATCHED, "showwarning": _DISPATCHED,
        "formatwarning": _SWAPPED, "warn": _SWAPPED,
    },
    "signal": {"signal()": _DISPATCHED, "pause()": _REFUSED, "sigwait()": _REFUSED},
    "threading": {
        "excepthook": _DISPATCHED, "settrace()": _SWAPPED, "setprofile()": _SWAPPED,
        "Thread": _SWAPPED,
    },
    "multiprocessing": {
        "set_start_method()": _DISPATCHED, "Process": _SWAPPED, "cpu_count": _SWAPPED,
    },
    "random": {"seed()": _DISPATCHED, "random": _SWAPPED, "shuffle": _SWAPPED},
    "locale": {"setlocale()": _SHARED, "getpreferredencoding": _SWAPPED},
    "tempfile": {"tempdir": _SWAPPED, "mkdtemp": _SWAPPED},
    "time": {"time": _SWAPPED, "sleep": _SWAPPED},
}  # fmt: skip
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
_STAND_INS: dict[str, Callable[[ModuleType], Patches]] = dict.fromkeys((*_FOR_TURNS, *_MORE), _of)


# ---- patches of the standard library while a Context is entered (rule E7) ----


class _Replaced(NamedTuple):
    """A replaced name.

    Attributes:
        owner: A module, a class or an object.
        name: Of its attribute.
        original: What `getattr` gave of it; `_INHERITED`: the owner had none of its own.
        held: What a class held under the name, such as a static method; otherwise the original.
    """

    owner: Any
    name: str
    original: Any
    held: Any


_replaced: list[_Replaced] = []
# Another name of these is no name of what was replaced: every False is the same one.
_HAS_NO_IDENTITY = (ModuleType, bool, int, float, str, bytes, tuple, type(None))
_BARE_LOCKS = frozenset(locks.BARE)
_INHERITED = object()  # In place of an original: there was none of its own.


def install() -> None:
    """Replace what ranks may not share; `remove` restores it."""
    output.install()
    diagnostics.install_hooks()
    diagnostics.install()
    clock.install()
    _put(_patches())
    _late.watch(libraries.patched_modules())
    sys.meta_path.insert(0, FINDER)
    own = own_modules()
    # A module in another's names (hypothesis reads `threading`'s current thread) is not handled
    # here.
    named = [each for each in _replaced if not isinstance(each.original, _HAS_NO_IDENTITY)]
    patches = {id(each.original): getattr(each.owner, each.name) for each in named}
    _rebind(own, patches)
    _rebind_names(patches)
    _replace_locks(own)
    if len(sys.modules) != len(_known):
        _known.clear()
        _known.update(sys.modules)


def _put(patches: list[tuple[Any, str, Any]]) -> None:
    for owner, name, patch in patches:
        is_class = isinstance(owner, type)
        is_own = name in vars(owner) if is_class else hasattr(owner, name)
        original = getattr(owner, name) if is_own else _INHERITED
        held = vars(owner)[name] if is_own and is_class else original
        _replaced.append(_Replaced(owner, name, original, held))
        setattr(owner, name, patch)


def _put_late(module: ModuleType, is_late: bool) -> None:
    """Replace parts of a module; a module that is imported late has found patches to bind."""
    first = len(_replaced)
    name = module.__name__
    _put(_LATE[name](module) if name in _LATE else [])
    _put(libraries.patches(module) if name in libraries.patched_modules() else [])
    if not is_late:
        return
    for index in range(first, len(_replaced)):
        late = _replaced[index]
        original = _original(late.original)
        if original is not late.original:  # The module bound a patch as it was imported.
            held = staticmethod(original) if type(late.held) is staticmethod else original
            _replaced[index] = late._replace(original=original, held=held)


def _original(value: Any) -> Any:  # noqa: ANN401 - anything that is replaced
    """Return the original of a replaced value, for modules that are imported late."""
    if isinstance(value, tuple):
        return tuple(map(_original, value))
    return next(
        (each.original for each in _replaced if getattr(each.owner, each.name) is value), value
    )


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
                _put([(module, name, patches[id(value)])])


def remove() -> None:
    """Undo what has been replaced, all of it or the first part."""
    try:
        stood_for = {
            id(getattr(each.owner, each.name)): each.original
            for each in _replaced
            if each.original is not _INHERITED and not isinstance(each.original, _HAS_NO_IDENTITY)
        }
        _rebind(own_modules(), stood_for)
        if len(sys.modules) != len(_known):
            _find_bound(stood_for)
        _rebind_names(stood_for)
        while _replaced:
            owner, name, original, held = _replaced[-1]
            if original is not _INHERITED:
                setattr(owner, name, held)
            elif name in vars(owner):
                delattr(owner, name)
            del _replaced[-1]
    finally:
        locks.restore()
        _late.stop()
        if FINDER in sys.meta_path:
            sys.meta_path.remove(FINDER)
        clock.remove()
        diagnostics.remove()
        diagnostics.remove_hooks()
        output.remove()


def _patches() -> list[tuple[Any, str, Any]]:
    """Return the patches: owner, name and replacement."""
    replaced: list[tuple[Any, str, Any]] = [
        (time, name, function) for name, function in clock.TIME_FUNCTIONS.items()
    ]
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
    return [
        (
            module,
            name,
            blocking_calls.refuse(getattr(module, name), f"{module.__name__}.{name}", to_fix),
        )
        for name in names
        if hasattr(module, name)
    ]


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


def register(name: str, patches: Callable[[ModuleType], list[tuple[Any, str, Any]]]) -> None:
    """Register the patches of a module; for layers above, before any Context is entered."""
    _LATE[name] = _both(_LATE.get(name), patches)


def _both(
    first: Callable[[ModuleType], list[tuple[Any, str, Any]]] | None,
    then: Callable[[ModuleType], list[tuple[Any, str, Any]]],
) -> Callable[[ModuleType], list[tuple[Any, str, Any]]]:
    return then if first is None else lambda module: [*first(module), *then(module)]


for _name, _stand_ins_of in _STAND_INS.items():
    register(_name, _stand_ins_of)


_late = ImportWatcher(_LATE, _put_late, libraries.check_import)


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


def _poll_after(original: Callable[..., bool]) -> Callable[..., bool]:
    """Charge a task for an attempt that did not wait, or waited in vain."""
    what = f"{original.__qualname__}()"

    @functools.wraps(original)
    def attempt(self: object, *args: object, **kwargs: object) -> bool:
        result = original(self, *args, **kwargs)
        task = None if result else running_task()
        if task is not None:
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
            if task is not None:
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
        names = attributes_of(sys.modules.get(module_name))
        if id(names.get(name)) in replacements:
            vars(sys.modules[module_name])[name] = replacements[id(names[name])]
