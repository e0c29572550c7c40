"""Names of the standard library that programs replace, and the scope of the new value.

A process has them for itself. A rank has those that are `OWN`; `SHARED` ones are the process's, as
they are for threads; `REFUSED` ones raise `UnsupportedError` in a rank. A test walks the table.
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
    """The scope of a value that a rank gives a name."""

    OWN = "own"
    SHARED = "shared, as threads would"
    REFUSED = "refused"


_OWN, _SHARED, _REFUSED = Scope.OWN, Scope.SHARED, Scope.REFUSED

# Attributes that a program sets, and functions (with parentheses) that set something.
TABLE: Mapping[str, Mapping[str, Scope]] = {
    "sys": {
        "argv": _OWN, "stdout": _OWN, "stderr": _OWN, "stdin": _OWN, "excepthook": _OWN,
        "displayhook": _OWN, "unraisablehook": _OWN, "path": _OWN, "path.append()": _SHARED,
        "setrecursionlimit()": _SHARED, "setswitchinterval()": _SHARED,
    },
    "builtins": {"print": _OWN, "open": _OWN, "input": _OWN, "profile": _OWN, "_": _OWN},
    "os": {
        "environ[]": _OWN, "chdir()": _OWN, "cpu_count": _OWN, "getpid": _OWN, "system": _OWN,
        "umask()": _SHARED, "fork()": _REFUSED, "forkpty()": _REFUSED,
    },
    "logging": {
        "root.setLevel()": _OWN, "disable()": _OWN, "captureWarnings()": _OWN,
        "setLoggerClass()": _OWN, "setLogRecordFactory()": _OWN, "raiseExceptions": _OWN,
        "lastResort": _OWN, "basicConfig": _OWN, "addLevelName()": _SHARED,
    },
    "warnings": {
        "simplefilter()": _OWN, "filters": _OWN, "showwarning": _OWN, "formatwarning": _OWN,
        "warn": _OWN,
    },
    "signal": {"signal()": _OWN, "pause()": _REFUSED, "sigwait()": _REFUSED},
    "threading": {
        "excepthook": _OWN, "settrace()": _OWN, "setprofile()": _OWN, "Thread": _OWN,
    },
    "multiprocessing": {"set_start_method()": _OWN, "Process": _OWN, "cpu_count": _OWN},
    "random": {"seed()": _OWN, "random": _OWN, "shuffle": _OWN},
    "locale": {"setlocale()": _SHARED, "getpreferredencoding": _OWN},
    "tempfile": {"tempdir": _OWN, "mkdtemp": _OWN},
    "time": {"time": _OWN, "sleep": _OWN},
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
