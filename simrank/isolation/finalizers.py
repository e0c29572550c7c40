"""`__del__` of what a rank's own modules define: called in that rank's turns alone.

Python collects garbage in cycles during any rank's turn, and calls `__del__` of all that it finds.
In a process that is the process's own; here a rank would destroy another one's groups in its own
name. And when it looks is one pace for all ranks, where processes that do the same look at the same
points: a program may do otherwise where groups of a dead object are alive still. So what is found
is kept until its rank says `gc.collect()`, or returns: it looks once more then, as Python does at
exit. Unreferenced objects are finalized there and then, and so is, in its rank's name and without
imports, what it held as it returned; of a rank that was ended nothing is called. Files that its
globals lead to are written as it returns: in a cycle Python may close them before.

It does not cover classes of modules that ranks share, nor those that functions make.
"""

from __future__ import annotations

import builtins
import functools
import gc
from collections import deque
from io import IOBase
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from simrank.engine import collector
from simrank.engine.callsite import attributes_of, is_real
from simrank.isolation.ledger import replaced
from simrank.ranks.current import rank_program, running_as

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from simrank.ranks.current import Program

_KEY = "late finalizers"  # In `Program.local`.
_AT_END = "at end"  # Likewise: functions.
_HAS_ANY = "has finalizers"  # Likewise: whether a look as it returns could find something.
_RETURNED = "has returned"  # Likewise, once it has ended: False where it was ended or has failed.
_NAMES = "names of modules"  # Likewise: those of its own modules.
_MOST_OBJECTS = 2_000  # Assumed: among which files of a rank are looked for: 1 ms.
_FOLLOWED = ("builtins", "_csv", "collections")  # Modules of objects' classes, and its own.
_LEAVES = (type, ModuleType, FunctionType, str, bytes, int, float)
_kept: set[Any] = set()  # Functions of ours.
_scripts: dict[Program, Mapping[str, Any]] = {}  # Names of those that run: more come to be.


class _Late:
    """Calls a finalizer as it dies itself, so that Python reports what that raises as ever."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def __del__(self) -> None:
        if self.call is not None:
            self.call()


def keep(names: Mapping[str, Any]) -> None:
    """Bind finalizers of the classes of a module to the running rank.

    Args:
        names: What the module defines: it is that rank's alone.
    """
    program = rank_program()
    if program is not None:
        program.local.setdefault(_NAMES, []).append(names)
        _keep(program, names)


def keep_script(program: Program, names: Mapping[str, Any]) -> None:
    """Do the same for a script, which is about to run."""
    if program.rank is not None:
        program.local.setdefault(_NAMES, []).append(names)
        _scripts[program] = names
        _listen()


def run(program: Program) -> None:
    """Call what was found of a rank, in its own turn."""
    late = program.local.pop(_KEY, None)
    if late:
        late.clear()


def rank_returned(program: Program) -> None:
    """Look for garbage of a rank that returns, and call what was found, in its own turn."""
    names = _scripts.get(program)
    if names is not None:
        _keep(program, names)
    _write_files(program.local.pop(_NAMES, ()))
    if program.local.get(_HAS_ANY):
        gc.collect()  # It calls `run`.
    program.local[_RETURNED] = True


def _write_files(modules: Sequence[Mapping[str, Any]]) -> None:
    """Flush the open files that globals lead to, the nearest first."""
    found: deque[Any] = deque(
        value for names in modules for name, value in names.items() if name != "__builtins__"
    )
    followed = {*_FOLLOWED, *(names.get("__name__") for names in modules)}
    seen: set[int] = set()
    while found and len(seen) < _MOST_OBJECTS:
        value = found.popleft()
        if id(value) in seen or is_real(value, _LEAVES):
            continue
        seen.add(id(value))
        if is_real(value, IOBase):
            if not value.closed and value.writable():
                _Late(value.flush)  # It dies at once, so that Python reports what that raises.
        elif type(value).__module__ in followed:
            found.extend(gc.get_referents(value))


def at_end(program: Program, call: Callable[[], object]) -> None:
    """Call a function once a rank ends, also by an error."""
    program.local.setdefault(_AT_END, []).append(call)


def forget(program: Program) -> None:
    """Keep nothing for a rank any more: it ends. Where it has not returned, nothing is called."""
    for call in program.local.pop(_AT_END, ()):
        call()
    _scripts.pop(program, None)
    program.local.setdefault(_RETURNED, False)
    for late in program.local.pop(_KEY, ()):
        late.call = None


def _keep(program: Program, names: Mapping[str, Any]) -> None:
    home = names.get("__name__")
    for kind in list(names.values()):
        if is_real(kind, type) and kind.__module__ == home and "__del__" in attributes_of(kind):
            original = attributes_of(kind)["__del__"]
            if original not in _kept and callable(original):
                ours = _in_turns_of(program, original)
                _kept.add(ours)
                kind.__del__ = ours  # type: ignore[attr-defined]
                program.local[_HAS_ANY] = True
                _listen()


def _in_turns_of(program: Program, original: Callable[[Any], object]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def finalize(self: Any) -> None:  # noqa: ANN401 - an object of the program
        returned: bool | None = program.local.get(_RETURNED)
        if returned:
            _call_after(program, functools.partial(original, self))
        elif _runs(program) and not collector.is_looking():
            original(self)
        elif returned is None:
            program.local.setdefault(_KEY, []).append(_Late(functools.partial(original, self)))

    return finalize


def _runs(program: Program) -> bool:
    """Whether a rank runs, or a process that it has forked, which goes on with its modules."""
    running = rank_program()
    while running is not None and running is not program:
        running = running.process_of
    return running is not None


def _call_after(program: Program, call: Callable[[], object]) -> None:
    """Call one in the name of a rank that has returned, whose modules are gone, as at an exit."""
    original = builtins.__import__

    def import_(name: str, names: Mapping[str, Any] | None = None, *args: Any) -> Any:  # noqa: ANN401 - as __import__
        is_ours = str((names or {}).get("__name__")).partition(".")[0] == "simrank"
        if is_ours or rank_program() is not program:  # It may wait, and others go on.
            return original(name, names, *args)
        raise ImportError(f"rank {program.rank} has returned: {name} is gone", name=name)

    with replaced(builtins, "__import__", import_), running_as(program):
        call()


def _listen() -> None:
    if _keep_of_scripts not in collector.before_looks:
        collector.before_looks.append(_keep_of_scripts)


def _keep_of_scripts() -> None:
    for program, names in list(_scripts.items()):
        _keep(program, names)


def patches() -> list[tuple[Any, str, Any]]:
    """Return the patches of `gc`: a collection in a rank calls that rank's finalizers."""
    original = gc.collect

    @functools.wraps(original)
    def collect(generation: int = 2) -> int:
        found = original(generation)
        program = rank_program()
        if program is not None:
            run(program)
        return found

    return [
        (gc, "collect", collect),
        (gc, "get_objects", _of_all(gc.get_objects)),
        (gc, "get_referrers", _of_all(gc.get_referrers)),
    ]


def _of_all(original: Callable[..., Any]) -> Callable[..., Any]:
    """Unfreeze objects for functions that search all of them."""

    @functools.wraps(original)
    def look(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the original's
        collector.thaw()
        return original(*args, **kwargs)

    return look


def stop() -> None:
    """Forget all ranks: the last Context has been left."""
    _kept.clear()
    _scripts.clear()
