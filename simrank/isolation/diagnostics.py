"""Exception hooks, warning filters, logging and debuggers: each rank has its own.

A rank that wraps the exception hook that it finds (torch.distributed prefixes its lines that way)
finds the hook of the main program, not of another rank. Threads of a rank use its
`threading.excepthook`. Its `sys.excepthook` is stored and never called: spawn reports the errors.

`breakpoint()`, `pdb.set_trace()` and everything else that is built on `pdb.Pdb` prompt in the rank
that runs; no other rank does meanwhile, and simulated time does not pass. What is typed there and
would have to wait (for values that a collective still writes, say) is an error.
"""

from __future__ import annotations

import functools
import sys
import threading  # noqa: TID251 - its hook is replaced
import warnings
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from simrank.engine.callsite import is_installed
from simrank.errors import SimrankError
from simrank.isolation.mock_patches import SharedModule
from simrank.ranks.current import rank_program, running_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from simrank.engine import Task
    from simrank.isolation.ledger import Ledger
    from simrank.ranks import Program

_HOOK = "excepthook"
_OF_SYS = ("sys.", "threading.")  # Begin keys of `Program.local`: attributes of these modules.
_base_hook: list[Callable[[Any], Any]] = []  # The main program's `threading.excepthook`.


def of_sys() -> Any:  # noqa: ANN401 - a property
    """Return the property that replaces `sys.excepthook` while a Context is entered."""

    def get(module: ModuleType) -> Any:  # noqa: ANN401 - a hook
        program = rank_program()
        own = None if program is None else program.local.get("sys.excepthook")
        return vars(module)[_HOOK] if own is None else own

    def put(module: ModuleType, hook: object) -> None:
        program = rank_program()
        if program is None:
            vars(module)[_HOOK] = hook
        else:
            program.local["sys.excepthook"] = hook

    return property(get, put)


def _hook_here() -> Callable[[Any], Any]:
    program = rank_program()
    own = None if program is None else program.local.get("threading.excepthook")
    return _base_hook[-1] if own is None else own


def _set_hook(_: ModuleType, hook: Any) -> None:  # noqa: ANN401 - a hook
    program = rank_program()
    if program is None:
        _base_hook[:] = [hook]
    else:
        program.local["threading.excepthook"] = hook


def _call_hook(args: Any) -> Any:  # noqa: ANN401 - as `threading` calls it
    """Call the hook of the running rank; `threading` finds this function."""
    return _hook_here()(args)


class LiveModule(SharedModule):
    """A module of the standard library some of whose names belong to the running rank.

    Python makes every module that it imports by calling the type of `sys`: those are plain ones.
    """

    def __new__(cls, name: str, doc: str | None = None) -> ModuleType:  # type: ignore[misc]
        """Return a module of no special kind."""
        return ModuleType(name, doc)


class _Threading(LiveModule):
    """The module `threading` while a Context is entered, with each rank's own hook."""

    excepthook = property(lambda _: _hook_here(), _set_hook)


# ---- Filters of warnings: each rank's own, as each process would have them ----
# `warnings.catch_warnings`, and what is built on it (`pytest.warns`), replaces attributes of
# the module; ranks that take turns within such blocks would take each other's. While a Context
# is entered, the attributes are the running rank's. A rank starts with the program's.

_NAMES = ("filters", "showwarning", "_showwarnmsg_impl")
_base: dict[str, Any] = {}


def _value(name: str) -> Any:  # noqa: ANN401 - a list or a function
    """Return the value of the running rank, or of the main program."""
    program = rank_program()
    if program is None:
        return _base[name]
    key = f"warnings.{name}"
    if key not in program.local:
        program.local[key] = list(_base[name]) if name == "filters" else _base[name]
    return program.local[key]


def _attribute(name: str) -> Any:  # noqa: ANN401 - a property
    def put(_: ModuleType, value: object) -> None:
        program = rank_program()
        if program is None:
            _base[name] = value
        else:
            program.local[f"warnings.{name}"] = value

    return property(lambda _: _value(name), put)


class _Warnings(LiveModule):
    """The module `warnings` while a Context is entered."""

    filters, showwarning = _attribute("filters"), _attribute("showwarning")
    _showwarnmsg_impl = _attribute("_showwarnmsg_impl")


class _Filters(list[Any]):
    """The list of filters of the running rank, for functions of `warnings`."""


def _method(name: str) -> Any:  # noqa: ANN401 - a method of lists
    original = getattr(list, name)

    @functools.wraps(original)
    def method(_: _Filters, *args: object) -> Any:  # noqa: ANN401 - the original's
        return original(_value("filters"), *args)

    return method


for _name in (
    "__getitem__", "__setitem__", "__delitem__", "__iter__", "__len__", "__contains__", "__eq__",
    "append", "insert", "remove", "clear", "copy", "index", "__repr__",
):  # fmt: skip
    setattr(_Filters, _name, _method(_name))


def _show(message: Any) -> None:  # noqa: ANN401 - a WarningMessage
    """Replace `_showwarnmsg`: show a warning with the running rank's functions."""
    show = _value("showwarning")
    if show is _originals["_showwarning_orig"]:
        _value("_showwarnmsg_impl")(message)
    else:
        show(
            message.message, message.category, message.filename, message.lineno, message.file,
            message.line,
        )  # fmt: skip


_originals: dict[str, Any] = {
    name: getattr(warnings, name) for name in ("_showwarnmsg", "_showwarning_orig")
}


def install(ledger: Ledger) -> None:
    """Dispatch attributes of modules to the running rank."""
    _base_hook[:] = [vars(threading)[_HOOK]]
    ledger.replace(threading, _HOOK, _call_hook, yields=lambda: _base_hook[-1], home=__name__)
    names = vars(warnings)
    _base.update({name: names[name] for name in _NAMES})
    for name in _NAMES:  # The last two lie there as they are.
        value = _Filters() if name == "filters" else names[name]
        ledger.replace(warnings, name, value, yields=partial(_base.get, name), home=__name__)
    classes = (threading, "__class__", _Threading), (warnings, "__class__", _Warnings)
    ledger.replace_all([*classes, (warnings, "_showwarnmsg", _show)], __name__)


# ---- `logging` as a rank sees it ----
# Loggers are shared, as the modules that hold them are; what a rank sets in one is kept for
# that rank. It begins with what the main program has set.

_KEY = "loggers"  # In `Program.local`.
_CAPTURED = "showwarning before logging.captureWarnings"  # Likewise.
_LEVELS = "_cache"  # What a logger remembers of its own and its parents' levels.
_OF_LOGGERS = ("level", "handlers", "filters", "propagate", "disabled", _LEVELS)


def _own(owner: object) -> dict[str, Any] | None:
    """Return the running rank's settings of a logger, or None outside of ranks."""
    program = rank_program()
    if program is None:
        return None
    kept: dict[object, dict[str, Any]] = program.local.setdefault(_KEY, {})
    if owner not in kept:
        kept[owner] = {}
    return kept[owner]


class OwnName:
    """An attribute of shared objects that each rank has for itself from the first look on."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, kind: type | None = None) -> Any:  # noqa: ANN401, D105 - a descriptor
        if owner is None:
            return self
        name, shared = self._name, vars(owner)
        own = _own(owner)
        if own is None:
            return shared[name]
        if name not in own:
            value = {} if name == _LEVELS else shared[name]
            own[name] = value.copy() if isinstance(value, list) else value
        return own[name]

    def __set__(self, owner: Any, value: Any) -> None:  # noqa: ANN401, D105 - a descriptor
        own, shared = _own(owner), vars(owner)
        if own is None:
            shared[self._name] = value
            return
        own[self._name] = value
        if self._name not in shared:  # It is being made, for all.
            shared[self._name] = value.copy() if isinstance(value, list | dict) else value


def set_by(program: Program) -> Iterator[object]:
    """Yield what a rank has set of loggers (handlers by class and level), filters, hooks."""
    for owner, own in program.local.get(_KEY, {}).items():
        shared = vars(owner)
        for name, value in own.items():
            if name == _LEVELS or value == shared.get(name):
                continue
            if name == "handlers":
                value = [(type(each).__qualname__, each.level) for each in value]  # noqa: PLW2901
            yield getattr(owner, "name", ""), name, value
    filters = program.local.get("warnings.filters")
    if filters is not None and filters != _base["filters"]:
        yield filters
    for key, value in program.local.items():
        # torch.distributed sets one for its prefixes: of a library's the name is enough.
        code = getattr(value, "__code__", None)
        if str(key).startswith(_OF_SYS):
            is_known = code is not None and is_installed(code.co_filename)
            yield key, value.__qualname__ if is_known else value


def logging_patches(logging: ModuleType) -> list[tuple[Any, str, Any]]:
    """Return the patches that give ranks their own levels and handlers."""
    module: Any = logging
    found = [(module.Logger, name, OwnName(name)) for name in _OF_LOGGERS]
    found.append((module.Manager, "_disable", OwnName("_disable")))
    return [*found, (module, "captureWarnings", _capture(module))]


def _capture(logging: Any) -> Callable[[bool], None]:  # noqa: ANN401 - the module
    original = logging.captureWarnings

    @functools.wraps(original)
    def capture(capture: bool) -> None:
        program = rank_program()
        if program is None:
            original(capture)
        elif capture and _CAPTURED not in program.local:
            program.local[_CAPTURED] = warnings.showwarning
            warnings.showwarning = logging._showwarning  # noqa: SLF001 - as the original does
        elif not capture and _CAPTURED in program.local:
            warnings.showwarning = program.local.pop(_CAPTURED)

    return capture


# ---- debuggers inside a rank: the simulation stops at a prompt that names rank and time ----

_OWN = ("simrank", "simrank.*")


def patches() -> list[tuple[Any, str, Any]]:
    """Return the patches of this module: owner, name and replacement."""
    from pdb import Pdb  # noqa: PLC0415 - 2 ms; a program may import it as late as in a rank

    return [
        (Pdb, "interaction", _announced(Pdb.interaction)),
        (Pdb, "set_trace", _owned(Pdb.set_trace)),
        (Pdb, "stop_here", _only_in_its_rank(Pdb.stop_here)),
    ]


def _owned(original: Callable[..., None]) -> Callable[..., None]:
    """Return a function that remembers the rank in which a debugger was started."""

    @functools.wraps(original)
    def set_trace(self: Any, frame: FrameType | None = None, **kwargs: object) -> None:  # noqa: ANN401
        task = self.simrank_task = running_task()
        if task is not None and not hasattr(task.leave, "takes_trace"):
            task.leave = _untraced(task.leave)
        original(self, sys._getframe(1) if frame is None else frame, **kwargs)  # noqa: SLF001

    return set_trace


def _untraced(leave: Callable[[], None]) -> Callable[[], None]:
    """Return a rank's way to the hub that takes its trace along, for other ranks have their own."""

    def leave_and_trace_on() -> None:
        trace = sys.gettrace()
        sys.settrace(None)
        leave()
        sys.settrace(trace)

    leave_and_trace_on.takes_trace = True  # type: ignore[attr-defined]  # Once is enough.
    return leave_and_trace_on


def _only_in_its_rank(original: Callable[..., bool]) -> Callable[..., bool]:
    """Return a function that lets a debugger step in its own rank only."""

    @functools.wraps(original)
    def stop_here(self: Any, frame: FrameType) -> bool:  # noqa: ANN401 - a Pdb
        task = getattr(self, "simrank_task", None)
        if task is not None and task.finished:  # The debugger stepped to its end.
            self.simrank_task = None
            self.set_continue()
            return False
        return (task is None or running_task() is task) and original(self, frame)

    return stop_here


def _announced(original: Callable[..., None]) -> Callable[..., None]:
    """Return a function that prints rank and time before a debugger's prompt."""

    @functools.wraps(original)
    def interact(self: Any, *args: object, **kwargs: object) -> None:  # noqa: ANN401 - a Pdb; its own
        task = running_task()
        if task is None:
            original(self, *args, **kwargs)
            return
        self.message(f"simrank: {task.name} at t={task.clock_ps / 1e6:.3f} us")
        self.skip = {*(self.skip or ()), *_OWN}  # Stepping stays in the program.
        with _standing_still(task):
            original(self, *args, **kwargs)

    return interact


@contextmanager
def _standing_still(task: Task) -> Iterator[None]:
    """Make every wait of a task raise while a debugger prompts."""

    def refuse() -> None:
        what = "something" if task.waiting is None else task.waiting.describe()
        task.thrown = SimrankError(
            f"this would wait for {what}, and at a debugger's prompt the simulation stands still\n"
            "  to fix: wait for it in the program, before the breakpoint, or step on"
        )

    leave, task.leave = task.leave, refuse
    try:
        yield
    finally:
        task.leave = leave
