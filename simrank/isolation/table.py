"""Names of the standard library that programs replace, and the scope of the new value.

A process has them for itself. A rank has `DISPATCHED` and `SWAPPED` names for itself, `SHARED`
names are the process's as they are for threads, `REFUSED` calls raise `UnsupportedError` in a rank.
A test walks the table.
"""

from __future__ import annotations

import enum
from types import ModuleType
from typing import TYPE_CHECKING, Any

from simrank.isolation import mock_patches
from simrank.isolation.diagnostics import OwnName

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
LATE: dict[str, Callable[[ModuleType], Patches]] = dict.fromkeys((*_FOR_TURNS, *_MORE), _of)
