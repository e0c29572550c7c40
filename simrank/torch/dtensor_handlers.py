"""How DTensors dispatch operators: handlers that a program adds for a while, as in `loss_parallel`.

torch keeps them in one dictionary of the process. A rank that left its block took them away from
one that was in the midst of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.ranks.current import rank_program

if TYPE_CHECKING:
    Patches = list[tuple[Any, str, Any]]

_NAME = "_custom_op_handlers"
_KEY = "handlers of DTensor"  # In `Program.local`.


def of_dtensors(module: Any) -> Patches:
    """Return what stands in torch: an attribute of the dispatcher that is each rank's own."""
    dispatcher: Any = module.DTensor._op_dispatcher  # noqa: SLF001 - torch's name
    return [(type(dispatcher), _NAME, property(_get, _set))]


def _get(dispatcher: Any) -> dict[Any, Any]:
    """Return a dictionary, which C++ asks for: a rank's begins as the process's is."""
    program = rank_program()
    outside: dict[Any, Any] = vars(dispatcher)[_NAME]
    if program is None:
        return outside
    own: dict[Any, Any] | None = program.local.get(_KEY)
    if own is None:
        own = program.local[_KEY] = dict(outside)
    return own


def _set(dispatcher: Any, handlers: dict[Any, Any]) -> None:
    program = rank_program()
    if program is None:
        vars(dispatcher)[_NAME] = handlers
    else:
        program.local[_KEY] = dict(handlers)
