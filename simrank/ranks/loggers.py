"""`logging` as a rank sees it: levels and handlers that it sets are its own, as in a process.

Loggers are shared, as the modules that hold them are; what a rank sets in one is kept for that
rank. It begins with what the main program has set.
"""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

from simrank.ranks.current import rank_program

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_KEY = "loggers"  # In `Program.local`.
_CAPTURED = "showwarning before logging.captureWarnings"  # Likewise.
_LEVELS = "_cache"  # What a logger remembers of its own and its parents' levels.
_OF_LOGGERS = ("level", "handlers", "filters", "propagate", "disabled", _LEVELS)


def _own(owner: object) -> dict[str, Any] | None:
    """Return what the running rank has set in a logger, or None outside of ranks."""
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


def stand_ins(logging: ModuleType) -> list[tuple[Any, str, Any]]:
    """Return what lets ranks have their own levels and handlers."""
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
