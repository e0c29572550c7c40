"""Reset of a worker's process between cases: each case starts as in a fresh worker.

The state of a process is a table of parts, `_PARTS`: each reads a value and writes it back. What
cannot be written back is named, and the pool replaces the worker. The seeds are those of
TransformerEngine's pool: a case gives the same numbers alone and after other cases.
"""

from __future__ import annotations

import gc
import io
import locale
import logging
import os
import random
import signal
import socket
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

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
    """A snapshot of the process, and of libraries at their first import."""

    def __init__(self) -> None:
        self._saved: list[tuple[StatePart, Any]] = []
        self._libraries: set[str] = set()
        self._descriptors = _Descriptors()
        self._modules: dict[str, dict[str, object]] = {}
        self._threads = set(threading.enumerate())
        self._save((*_PARTS, _loggers()))
        self.look()

    def look(self) -> None:
        """Save the state of libraries that were imported since, before a case changes it."""
        for library, parts in _LIBRARY_PARTS.items():
            if library not in self._libraries and _is_imported(library):
                self._libraries.add(library)
                self._save(parts())
        for name in _PATCHABLE - self._modules.keys():
            if _is_imported(name):
                self._modules[name] = dict(_callables(sys.modules[name]))

    def _save(self, parts: Iterable[StatePart]) -> None:
        self._saved += [(part, part.read()) for part in parts]

    def restore(self) -> list[str]:
        """Write the state back and seed the random generators of Python, numpy and torch.

        The state of a library that a case is the first to import, inside a function, is saved as
        that case left it.

        Returns:
            What a case left behind that only a new process is free of.
        """
        left = []
        self._restore_modules()  # First: the rest calls them.
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
            if thread not in self._threads and not thread.daemon
        ]
        _seed()
        return left

    def _restore_modules(self) -> None:
        """Put back functions and classes that a case replaced in modules that tests often patch."""
        for name, known in self._modules.items():
            module = sys.modules.get(name)
            if module is None:
                continue
            now = vars(module)
            for key, value in known.items():
                if now.get(key) is not value and not _is_own_change(name, now.get(key)):
                    setattr(module, key, value)


def _is_own_change(module: str, value: object) -> bool:
    """Return whether torch itself replaced one of its functions at an import."""
    of = getattr(value, "__module__", None)
    return module.partition(".")[0] == "torch" and str(of).partition(".")[0] in {"torch", "simrank"}


def _is_imported(name: str) -> bool:
    return type(sys.modules.get(name)) is ModuleType


def _is_same(one: object, other: object) -> bool:
    return one is other or (type(one) is type(other) and bool(one == other))


def _seed() -> None:
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

# Modules that tests patch, and that are cheap to compare.
_PATCHABLE = frozenset({
    "builtins", "copy", "json", "logging", "math", "multiprocessing", "os", "pathlib", "pickle",
    "posixpath", "random", "shutil", "signal", "socket", "subprocess", "tempfile", "threading",
    "time", "warnings", "numpy", "numpy.random", "torch", "torch.cuda", "torch.distributed",
    "torch.distributed.distributed_c10d", "torch.nn.functional",
})  # fmt: skip


def _callables(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Yield the functions and classes of a module."""
    for name, value in list(vars(module).items()):
        if type(value) in {FunctionType, BuiltinFunctionType, type}:
            yield name, value


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
    torch: Any = sys.modules["torch"]
    flags = [
        (torch.backends.cuda.matmul, "allow_tf32"),
        (torch.backends.cudnn, "benchmark"),
        (torch.backends.cudnn, "deterministic"),
        (torch.backends.cudnn, "allow_tf32"),
    ]
    return [
        StatePart("torch.set_default_device", torch.get_default_device, _write_default_device),
        StatePart("modes of torch functions", torch._C._len_torch_function_stack, _pop_modes),
        StatePart("torch.set_default_dtype", torch.get_default_dtype, torch.set_default_dtype),
        StatePart("torch.set_num_threads", torch.get_num_threads, torch.set_num_threads),
        StatePart("torch.set_grad_enabled", torch.is_grad_enabled, torch.set_grad_enabled),
        StatePart(
            "torch.autograd.set_detect_anomaly",
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda value: torch.set_anomaly_enabled(*value),
        ),
        StatePart("torch.inference_mode", torch.is_inference_mode_enabled, _leave),
        StatePart("dispatch modes of torch", torch._C._len_torch_dispatch_stack, _leave),
        StatePart(
            "torch.use_deterministic_algorithms",
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
        ),
        StatePart(
            "torch.set_float32_matmul_precision",
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
        ),
        *(_autocast(torch, device) for device in ("cpu", "cuda")),
        *(_attribute(owner, name) for owner, name in flags),
    ]


def _write_default_device(device: Any) -> None:  # noqa: ANN401 - a torch device
    torch: Any = sys.modules["torch"]
    torch.set_default_device(None if device.type == "cpu" else device)


def _pop_modes(depth: int) -> None:
    torch: Any = sys.modules["torch"]
    while torch._C._len_torch_function_stack() > depth:
        torch._C._pop_torch_function_stack()


def _leave(_: object) -> None:
    """Change nothing: a mode that a case entered is left by its own exit alone."""


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
