"""Reset of a worker's process between cases: each case starts as in a fresh worker.

Workers without process groups run each case in a fork (`worker`): nothing of it is left. The others
keep their process: functions and classes of all modules are compared with what they were and put
back; the rest of a process is a table of parts, `_PARTS`, each of which reads a value and writes it
back. What cannot be written back is named, and the pool replaces the worker. The seeds are those of
TransformerEngine's pool: a case gives the same numbers alone and after other cases.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import gc
import io
import locale
import logging
import os
import random
import resource
import signal
import socket
import sys
import threading
import tracemalloc
import warnings
from contextlib import suppress
from pathlib import Path
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.engine.callsite import is_installed, is_library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SEED = 1234


class StatePart(NamedTuple):
    """A part of the process's state.

    Attributes:
        name: For reports of what a case changed and cannot be written back.
        read: Returns its value, or a copy where the value itself can change.
        write: Makes a value that was read the current one; raises if it cannot.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


class Baseline:
    """A snapshot of the process, and of modules at their first import.

    Args:
        shares_modules: Whether modules stay as a case left them.
    """

    def __init__(self, *, shares_modules: bool = False) -> None:
        self._saved: list[tuple[StatePart, Any]] = []
        self._libraries: set[str] = set()
        self._descriptors = _Descriptors()
        self._code = _Code(shares_modules=shares_modules)
        self._threads = set(threading.enumerate())
        self._save((*_PARTS, _loggers()))
        self.look()

    def look(self) -> None:
        """Save the state of libraries that were imported since, before a case changes it."""
        for library, parts in _LIBRARY_PARTS.items():
            if library not in self._libraries and _is_imported(library):
                self._libraries.add(library)
                self._save(parts())
        self._code.look()

    def _save(self, parts: Iterable[StatePart]) -> None:
        self._saved += [(part, part.read()) for part in parts]

    def restore(self) -> list[str]:
        """Write all but code back, and seed the random generators of Python, numpy and torch.

        The state of a library that a case is the first to import, inside a function, is saved as
        that case left it.

        Returns:
            What a case left behind that only a new process is free of.
        """
        left = []
        for part, value in self._saved:
            try:
                if not _is_same(part.read(), value):
                    part.write(value)
                    if not _is_same(part.read(), value):
                        left.append(part.name)
            except Exception as error:  # noqa: BLE001 - any state that a case broke is reported
                left.append(f"{part.name} ({type(error).__name__}: {error})")
        left += self._descriptors.restore()
        _restore_streams()
        left += [
            f"thread {thread.name!r}"
            for thread in threading.enumerate()
            if thread not in self._threads and not _is_of_a_library(thread)
        ]
        left += [f"a child process, pid {pid}" for pid in children_of(os.getpid())]
        seed()
        return left

    def restore_code(self) -> list[str]:
        """Put back functions, classes and simple values that a case replaced in any module.

        Returns:
            What cannot be put back.
        """
        return self._code.restore()


def _is_of_a_library(thread: threading.Thread) -> bool:
    """Return whether an installed library made a daemon thread: they stay for all cases."""
    target: Any = getattr(thread, "_target", None) or type(thread).run
    of = str(getattr(target, "__module__", ""))
    file = getattr(sys.modules.get(of), "__file__", None) or ""
    return thread.daemon and is_installed(file) and not is_library(file)


def children_of(pid: int) -> list[int]:
    """Return the running children of a process, but those of Python's own services.

    Children that have ended are reaped. Nothing where there is no /proc.
    """
    services = {
        getattr(getattr(sys.modules.get(f"multiprocessing.{name}"), f"_{name}", None), key, None)
        for name, key in (("resource_tracker", "_pid"), ("forkserver", "_forkserver_pid"))
    }
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    running = []
    for child in set(found) - services:
        with suppress(ChildProcessError):
            if os.waitpid(child, os.WNOHANG) == (0, 0):
                running.append(child)
    return running


def _is_imported(name: str) -> bool:
    return type(sys.modules.get(name)) is ModuleType


def _is_same(one: object, other: object) -> bool:
    return one is other or (type(one) is type(other) and bool(one == other))


def seed() -> None:
    """Seed the random generators of Python, numpy and torch."""
    random.seed(SEED)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(SEED)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(SEED)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


# ---- the process ----


def _attribute(owner: Any, name: str) -> StatePart:  # noqa: ANN401 - a module or an object
    where = getattr(owner, "__name__", type(owner).__name__)
    return StatePart(
        f"{where}.{name}", lambda: getattr(owner, name), lambda v: setattr(owner, name, v)
    )


def _list_of(owner: Any, name: str) -> StatePart:  # noqa: ANN401 - likewise
    """Return the part for a list of a module: the list itself, and its items."""

    def write(value: tuple[list[Any], list[Any]]) -> None:
        value[0][:] = value[1]
        setattr(owner, name, value[0])

    return StatePart(
        f"{owner.__name__}.{name}",
        lambda: (getattr(owner, name), list(getattr(owner, name))),
        write,
    )


def _write_environment(value: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(value)


def _folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # It was removed since.
        return None


def _change_folder(value: str | None) -> None:
    with suppress(OSError):  # It was removed: the case that needs it says so.
        os.chdir(value or "/")


def _umask() -> int:
    value = os.umask(0o077)
    os.umask(value)
    return value


def _handlers() -> dict[int, Any]:
    """Return the Python handlers of signals; handlers of C code are skipped."""
    found = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return {number: handler for number, handler in found.items() if handler is not None}


def _write_handlers(value: dict[int, Any]) -> None:
    now = _handlers()
    for number, handler in value.items():
        if now.get(number) is not handler:
            signal.signal(number, handler)


def _are_timers_set() -> bool:
    timers = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    return any(signal.getitimer(timer)[0] for timer in timers)


def _stop_timers(_: object) -> None:
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0)


def _write_filters(value: tuple[list[Any], list[Any]]) -> None:
    value[0][:] = value[1]
    warnings.filters = value[0]
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _loggers() -> StatePart:
    """Return the part for existing loggers; loggers of later imports keep their settings."""
    named = list(logging.root.manager.loggerDict.items())
    known = [logging.root, *(each for _, each in named if isinstance(each, logging.Logger))]

    def read() -> list[tuple[Any, ...]]:
        return [
            (each.level, each.disabled, each.propagate, list(each.handlers), list(each.filters))
            for each in known
        ]

    def write(value: list[tuple[Any, ...]]) -> None:
        for logger, (level, disabled, propagate, handlers, filters) in zip(
            known, value, strict=True
        ):
            logger.setLevel(level)
            logger.disabled, logger.propagate = disabled, propagate
            logger.handlers[:], logger.filters[:] = handlers, filters

    return StatePart("levels and handlers of loggers", read, write)


_C = ctypes.CDLL(None)  # fegetround is in libm, which every interpreter loads.


def _limits() -> Iterator[StatePart]:
    """Yield a part for each limit of the process; a hard limit that was lowered stays."""
    for name in dir(resource):
        if name.startswith("RLIMIT_"):
            number = getattr(resource, name)
            yield StatePart(
                f"resource.{name}",
                functools.partial(resource.getrlimit, number),
                functools.partial(resource.setrlimit, number),
            )


def _schedule() -> Iterator[StatePart]:
    """Yield the parts of what the kernel runs the process on, where it has them."""
    yield StatePart(
        "the priority",
        lambda: os.getpriority(os.PRIO_PROCESS, 0),
        lambda value: os.setpriority(os.PRIO_PROCESS, 0, value),
    )
    if sys.platform == "linux":
        yield StatePart(
            "the processors",
            lambda: os.sched_getaffinity(0),
            lambda value: os.sched_setaffinity(0, value),
        )
        yield StatePart(
            "the scheduling policy",
            lambda: os.sched_getscheduler(0),
            lambda value: os.sched_setscheduler(0, value, os.sched_param(0)),
        )


def _loop_policy() -> Any:  # noqa: ANN401 - asyncio's
    """Return asyncio's policy, where a case has imported it."""
    events: Any = sys.modules.get("asyncio.events")
    return getattr(events, "_event_loop_policy", None)


def _write_loop_policy(value: Any) -> None:  # noqa: ANN401 - asyncio's
    events: Any = sys.modules["asyncio.events"]
    events._event_loop_policy = value


def _write_tracing(is_on: bool) -> None:
    tracemalloc.start() if is_on else tracemalloc.stop()


def _leave(_: object) -> None:
    """Change nothing: the worker is replaced."""


_PARTS = (
    # First what the rest needs.
    StatePart("sys.setrecursionlimit", sys.getrecursionlimit, sys.setrecursionlimit),
    StatePart("sys.settrace", sys.gettrace, sys.settrace),
    StatePart("sys.setprofile", sys.getprofile, sys.setprofile),
    StatePart("signal.setitimer", _are_timers_set, _stop_timers),
    StatePart("signal handlers", _handlers, _write_handlers),
    StatePart(
        "the signal mask",
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        lambda value: signal.pthread_sigmask(signal.SIG_SETMASK, value),
    ),
    StatePart("os.environ", lambda: dict(os.environ), _write_environment),
    StatePart("the current folder", _folder, _change_folder),
    StatePart("os.umask", _umask, os.umask),
    *_limits(),
    *_schedule(),
    StatePart("the rounding mode", _C.fegetround, _C.fesetround),
    StatePart("asyncio.set_event_loop_policy", _loop_policy, _write_loop_policy),
    StatePart("tracemalloc.start", tracemalloc.is_tracing, _write_tracing),
    StatePart("faulthandler.enable", faulthandler.is_enabled, _leave),
    StatePart(
        "sys.set_asyncgen_hooks", sys.get_asyncgen_hooks, lambda v: sys.set_asyncgen_hooks(*v)
    ),
    StatePart(
        "the locale",
        lambda: locale.setlocale(locale.LC_ALL),
        lambda value: locale.setlocale(locale.LC_ALL, value),
    ),
    StatePart("socket.setdefaulttimeout", socket.getdefaulttimeout, socket.setdefaulttimeout),
    StatePart("gc.enable", gc.isenabled, lambda is_on: gc.enable() if is_on else gc.disable()),
    StatePart("gc.set_threshold", gc.get_threshold, lambda value: gc.set_threshold(*value)),
    StatePart("gc.set_debug", gc.get_debug, gc.set_debug),
    StatePart("sys.setswitchinterval", sys.getswitchinterval, sys.setswitchinterval),
    *(_list_of(sys, name) for name in ("argv", "path", "meta_path", "path_hooks")),
    _list_of(gc, "callbacks"),
    *(_attribute(sys, name) for name in ("stdin", "stdout", "stderr")),
    *(_attribute(sys, name) for name in ("excepthook", "displayhook", "unraisablehook")),
    _attribute(sys, "breakpointhook"),
    _attribute(threading, "excepthook"),
    StatePart(
        "warnings.filters", lambda: (warnings.filters, list(warnings.filters)), _write_filters
    ),
    _attribute(warnings, "showwarning"),
    _attribute(logging.root.manager, "disable"),
    _attribute(logging, "raiseExceptions"),
)


def _restore_streams() -> None:
    """Reopen standard output and error if a case closed them."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None and getattr(sys, name).closed:
            raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
            buffer: Any = io.BufferedReader(raw) if number == 0 else io.BufferedWriter(raw)
            made = io.TextIOWrapper(buffer, errors="backslashreplace", line_buffering=True)
            setattr(sys, name, made)
            setattr(sys, f"__{name}__", made)


# ---- descriptors ----


class _Descriptors:
    """The descriptors of the process: 0 to 2 are put back, files that a case left are closed.

    What C libraries open (sockets, epolls, devices) is theirs: it is left alone up to a bound.
    """

    _MAX_LEFT = 64  # Assumed: a library that opens more in one case leaks.

    def __init__(self) -> None:
        import fcntl  # noqa: PLC0415 - there is none on Windows, where there is no pool

        self._standard = {fd: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in (0, 1, 2)}
        self._known = _open_descriptors()

    def restore(self) -> list[str]:
        """Restore the snapshot; return leftovers that need a new process."""
        for fd, kept in self._standard.items():
            if _identity(fd) != _identity(kept):
                os.dup2(kept, fd)
        leaked = _open_descriptors() - self._known
        if leaked:
            gc.collect()  # What nothing refers to closes itself.
            leaked = _open_descriptors() - self._known
        if leaked:
            _close_objects(leaked)
            for fd in leaked & _open_descriptors():
                if _is_file(fd):
                    os.close(fd)
            leaked &= _open_descriptors()
        if len(leaked) > self._MAX_LEFT:
            return [f"{len(leaked)} open descriptors"]
        return []


def _open_descriptors() -> set[int]:
    """Return the open descriptors; nothing where there is no /proc."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return set()
    return {int(name) for name in names if _identity(int(name)) is not None}


def _identity(fd: int) -> tuple[int, int] | None:
    """Return the identity of a descriptor's file, or None if it is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_file(fd: int) -> bool:
    """Whether a descriptor is of a file with a name, which no C library holds between cases."""
    with suppress(OSError):
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        return path.is_file() or path == Path(os.devnull)
    return False


def _close_objects(descriptors: set[int]) -> None:
    """Close files and sockets of Python's that have these descriptors.

    Closing the descriptor alone would let the object close a later one of the same number.
    """
    for value in gc.get_objects():
        if type(value) in _WITH_DESCRIPTOR:
            with suppress(OSError, ValueError):  # It is closed.
                if value.fileno() in descriptors:
                    value.close()


_WITH_DESCRIPTOR = (
    io.FileIO, io.TextIOWrapper, io.BufferedWriter, io.BufferedReader, io.BufferedRandom,
    socket.socket,
)  # fmt: skip


# ---- modules and libraries ----

_CODE = (
    FunctionType, BuiltinFunctionType, MethodType, MethodDescriptorType, WrapperDescriptorType,
    type, property, classmethod, staticmethod,
)  # fmt: skip
_SIMPLE = (bool, int, float, str, bytes)
_NOTHING = object()


class _Code:
    """Functions, classes and simple values of all modules, and the attributes of the classes."""

    def __init__(self, *, shares_modules: bool) -> None:
        self._shares_modules = shares_modules
        self._modules: dict[str, _Namespace] = {}
        self._classes: dict[int, _Namespace] = {}

    def look(self) -> None:
        """Remember modules that were imported since."""
        if self._shares_modules:
            return
        for name, module in list(sys.modules.items()):
            if name in self._modules or type(module) is not ModuleType:
                continue
            found = _Namespace(module, name, dict(vars(module)))
            self._modules[name] = found
            for value in found.known.values():
                if issubclass(type(value), type) and vars(value).get("__module__") == name:
                    self._classes[id(value)] = _Namespace(value, name, dict(vars(value)))

    def restore(self) -> list[str]:
        """Put back what is another object now; return the names of the rest."""
        left: list[str] = []
        is_known = self._modules.__contains__
        for each in (*self._modules.values(), *self._classes.values()):
            if each.differs():
                left += each.restore(is_known)
        return left


class _Namespace:
    """A module or a class, and what its names were.

    Args:
        owner: The module or class.
        module: The module's name.
        known: What its names were.
    """

    def __init__(self, owner: Any, module: str, known: dict[str, object]) -> None:  # noqa: ANN401
        self.known = known
        self._values = list(known.values())
        self._now: Any = vars(owner)
        self._owner = owner
        self._library = module.partition(".")[0]
        # Values of other libraries are caches and counts; a program's own are reset.
        is_pythons = self._library in sys.stdlib_module_names or self._library == "numpy"
        self._is_simple_reset = is_pythons or not _is_installed(owner)

    def differs(self) -> bool:
        """Return whether a name is another object now; of lists, since C compares their objects."""
        try:
            return list(self._now.values()) != self._values
        except Exception:  # noqa: BLE001 - a new object's own comparison
            return True

    def restore(self, is_known: Callable[[object], bool]) -> list[str]:
        """Put back what a case replaced; take what a library changed itself as known.

        Args:
            is_known: Whether a module was there before the case.
        """
        left = []
        now = dict(self._now)
        for key, found in now.items():
            value = self.known.get(key, _NOTHING)
            if found is value:
                continue
            if self._is_put_back(value, found) and not self._is_own(found, is_known):
                try:
                    if value is _NOTHING:
                        delattr(self._owner, key)
                    else:
                        setattr(self._owner, key, value)
                except Exception as error:  # noqa: BLE001 - what a metaclass raises is reported
                    left.append(f"{self._owner.__name__}.{key} ({type(error).__name__}: {error})")
        for key in self.known.keys() - now.keys():
            if isinstance(self.known[key], _CODE):
                setattr(self._owner, key, self.known[key])
        self.known = dict(self._now)  # In its order, with caches as they are now.
        self._values = list(self.known.values())
        return left

    def _is_put_back(self, value: object, found: object) -> bool:
        """Return whether a case changed a name, and no cache was filled."""
        if isinstance(value, _CODE) or callable(value):
            return True
        if value is _NOTHING:
            return isinstance(found, _CODE)
        is_simple = value is None or isinstance(value, _SIMPLE)
        is_set = isinstance(found, (*_SIMPLE, *_CODE)) or found is None
        return self._is_simple_reset and is_simple and is_set

    def _is_own(self, found: object, is_known: Callable[[object], bool]) -> bool:
        """Return whether a library replaced one of its own, in a module that was imported since."""
        of = getattr(found, "__module__", None)
        library = str(of).partition(".")[0]
        return library == "simrank" or (library == self._library and not is_known(of))


def _is_installed(owner: object) -> bool:
    """Return whether a module, or that of a class, is not the program's."""
    module = owner if isinstance(owner, ModuleType) else sys.modules.get(owner.__module__)
    return is_installed(str(getattr(module, "__file__", None)))


def _numpy_parts() -> list[StatePart]:
    import numpy as np  # noqa: PLC0415 - the case has imported it

    return [
        StatePart("numpy.seterr", np.geterr, lambda value: np.seterr(**value)),
        StatePart("numpy.seterrcall", np.geterrcall, np.seterrcall),
        StatePart(
            "numpy.set_printoptions",
            np.get_printoptions,
            lambda value: np.set_printoptions(**value),
        ),
    ]


def _torch_parts() -> list[StatePart]:
    from simrank.isolation.torch_settings import settings  # noqa: PLC0415 - it needs torch

    torch: Any = sys.modules["torch"]
    return [
        StatePart("torch.set_default_device", torch.get_default_device, _write_default_device),
        StatePart("modes of torch functions", torch._C._len_torch_function_stack, _pop_modes),
        StatePart("torch.set_num_threads", torch.get_num_threads, torch.set_num_threads),
        StatePart("torch.set_grad_enabled", torch.is_grad_enabled, torch.set_grad_enabled),
        StatePart("torch.inference_mode", torch.is_inference_mode_enabled, _leave),
        StatePart("dispatch modes of torch", torch._C._len_torch_dispatch_stack, _leave),
        *(_autocast(torch, device) for device in ("cpu", "cuda")),
        *(
            StatePart(".".join(each.names), each.get, each.put)
            for each in settings()
            if "nvfuser" not in each.names[0]  # No-ops, whose getters warn.
        ),
    ]


def _write_default_device(device: Any) -> None:  # noqa: ANN401 - a torch device
    torch: Any = sys.modules["torch"]
    torch.set_default_device(None if device.type == "cpu" else device)


def _pop_modes(depth: int) -> None:
    torch: Any = sys.modules["torch"]
    while torch._C._len_torch_function_stack() > depth:
        torch._C._pop_torch_function_stack()


def _autocast(torch: Any, device: str) -> StatePart:  # noqa: ANN401 - a module
    def read() -> tuple[bool, Any]:
        return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

    def write(value: tuple[bool, Any]) -> None:
        torch.set_autocast_enabled(device, value[0])
        torch.set_autocast_dtype(device, value[1])

    return StatePart(f"torch.autocast of {device}", read, write)


_LIBRARY_PARTS: dict[str, Callable[[], list[StatePart]]] = {
    "numpy": _numpy_parts,
    "torch": _torch_parts,
}
