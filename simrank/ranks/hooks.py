"""`sys.excepthook` and `threading.excepthook` of ranks: what one sets is its own.

A rank that puts a hook before the one it finds (as torch.distributed does, to prefix its lines)
finds the main program's, not another rank's. A rank's threads use its `threading.excepthook`; its
`sys.excepthook` is kept for it and never called, for what a rank raises is reported by its spawn.
"""

from __future__ import annotations

import threading  # noqa: TID251 - its hook is replaced
from types import ModuleType
from typing import TYPE_CHECKING, Any

from simrank.ranks.current import rank_program
from simrank.ranks.patches import SharedModule

if TYPE_CHECKING:
    from collections.abc import Callable

_HOOK = "excepthook"
_base: list[Callable[[Any], Any]] = []  # The main program's `threading.excepthook`.


def of_sys() -> Any:  # noqa: ANN401 - a property
    """Return what `sys.excepthook` is while a Context is entered."""

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
    return _base[-1] if own is None else own


def _set_hook(_: ModuleType, hook: Any) -> None:  # noqa: ANN401 - a hook
    program = rank_program()
    if program is None:
        _base[:] = [hook]
    else:
        program.local["threading.excepthook"] = hook


def _call_hook(args: Any) -> Any:  # noqa: ANN401 - as `threading` calls it
    """Stand for the hook in the module's own names, where `threading` looks."""
    return _hook_here()(args)


class LiveModule(SharedModule):
    """A module of the standard library while a Context is entered: some names are who runs'.

    Python makes every module that it imports by calling the type of `sys`: those are plain ones.
    """

    def __new__(cls, name: str, doc: str | None = None) -> ModuleType:  # type: ignore[misc]
        """Return a module of no special kind."""
        return ModuleType(name, doc)


class _Threading(LiveModule):
    """The module `threading` while a Context is entered: its hook is that of who runs."""

    excepthook = property(lambda _: _hook_here(), _set_hook)


def install() -> None:
    """Stand for the program's hook of threads."""
    names = vars(threading)
    if names[_HOOK] is not _call_hook:
        _base[:] = [names[_HOOK]]
        names[_HOOK] = _call_hook
    threading.__class__ = _Threading


def remove() -> None:
    """Give the program's hook back, as the program has set it meanwhile."""
    threading.__class__ = ModuleType
    names = vars(threading)
    if names[_HOOK] is _call_hook:
        names[_HOOK] = _base[-1]
