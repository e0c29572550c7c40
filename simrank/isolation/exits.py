"""Exit functions of ranks: what they register with `atexit` and `weakref.finalize`.

A rank that returns, or says `sys.exit`, calls them in its own turn, the last first, as the process
would that it is; one that `fork` has made calls none. Nor does a rank that raises or is ended: its
peers end with it, and a collective in one of them would hide the error.

Those of torch, of the standard library, and of modules that all ranks share as they are imported
are the process's: they are called as it ends.
"""

from __future__ import annotations

import atexit
import functools
import sys
import traceback
import weakref
from typing import TYPE_CHECKING, Any

from simrank.isolation.private_modules import private_modules
from simrank.ranks.current import rank_program

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import FrameType

    from simrank.ranks.current import Program

_KEY = "functions at exit"  # In `Program.local`.
_IS_FORKED = "ends without functions at exit"  # Likewise.
_OF_PROCESS = sys.stdlib_module_names | {"simrank", "torch"}
_BETWEEN = ("weakref", "tempfile")  # A temporary folder is of the one that made it.


class _InfoOfRank(weakref.finalize._Info):  # type: ignore[name-defined, misc]  # noqa: SLF001 - what it keeps
    """Record of a finalizer in `weakref`, with the rank that made it."""

    __slots__ = ("program",)

    def __init__(self) -> None:
        found = _registering(_BETWEEN)
        self.program = None if found is None else weakref.ref(found)


def patches() -> list[tuple[Any, str, Any]]:
    """Return the patches of `atexit` and `weakref`: owner, name and replacement."""
    return [
        (atexit, "register", _register(atexit.register)),
        (atexit, "unregister", _unregister(atexit.unregister)),
        (weakref.finalize, "_Info", _InfoOfRank),
    ]


def begin(program: Program, *, is_forked: bool) -> None:
    """Add an empty list of exit functions to a rank that begins as a process.

    Args:
        program: The rank.
        is_forked: Whether it is a fork: it ends without them.
    """
    program.local[_KEY] = []
    program.local[_IS_FORKED] = is_forked


def set_by(program: Program) -> list[object]:
    """Return the functions that a rank has registered, with their arguments."""
    return list(program.local.get(_KEY, ()))


def run(program: Program) -> None:
    """Call the functions of a rank, the last first; errors are printed, as Python does."""
    if program.local[_IS_FORKED]:
        return
    calls: list[functools.partial[object]] = program.local[_KEY]
    while calls:
        call = calls.pop()
        try:
            call()
        except (Exception, SystemExit):  # noqa: BLE001 - Python prints it, and goes on
            sys.stderr.write(f"Exception ignored in atexit callback: {call.func!r}\n")
            traceback.print_exc()
    while mine := _finalizers(program):
        try:
            mine[-1]()
        except Exception:  # noqa: BLE001 - likewise
            sys.excepthook(*sys.exc_info())


def forget(program: Program) -> None:
    """Drop the functions of a rank that has ended: the process's exit calls none of them."""
    program.local.pop(_KEY, None)
    for each in _finalizers(program):
        each.atexit = False


def _finalizers(program: Program) -> list[Any]:
    """Return a rank's finalizers that are for its exit, the oldest first."""
    kept: dict[Any, Any] = weakref.finalize._registry  # type: ignore[attr-defined]  # noqa: SLF001
    mine = [
        (info.index, each)
        for each, info in list(kept.items())
        if info.atexit and isinstance(info, _InfoOfRank) and info.program is not None
        if info.program() is program
    ]
    return [each for _, each in sorted(mine, key=lambda pair: pair[0])]


def _registering(between: Collection[str] = ()) -> Program | None:
    """Return the rank that registers something for its exit; None: it is for the process's.

    Args:
        between: Modules that register it for their caller.
    """
    program = rank_program()
    if program is None or _KEY not in program.local:
        return None
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - the documented way
    while frame is not None and frame.f_globals.get("__name__") in between:
        frame = frame.f_back
    name = "" if frame is None else str(frame.f_globals.get("__name__"))
    if frame is None or name.partition(".")[0] in _OF_PROCESS:
        return None
    if frame.f_code.co_name != "<module>" or name == "__main__":
        return program
    own = private_modules(program)
    module = None if own is None else own.own(name)
    return program if module is not None and vars(module) is frame.f_globals else None


def _register(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def register(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        program = _registering()
        if program is None:
            return original(func, *args, **kwargs)
        program.local[_KEY].append(functools.partial(func, *args, **kwargs))
        return func

    return register


def _unregister(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def unregister(func: Callable[..., Any], /) -> None:
        program = rank_program()
        calls = [] if program is None else program.local.get(_KEY, [])
        calls[:] = [call for call in calls if call.func != func]
        original(func)

    return unregister
