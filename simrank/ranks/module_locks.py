"""Locks that libraries made when they were imported, before any Context: waits of the engine too.

A rank on a thread that is switched out while it holds a native lock (`logging._lock`, one of an
installed package, one that is an attribute of a class) would block every other rank that wants it,
and with them the whole process. While a Context whose ranks are threads is entered such locks are
replaced by ones that are engine waits when somebody else has them, and nothing otherwise: taking a
free one never yields, takes no time, and is seen by nobody.

Found are names of modules, attributes of their classes, the locks of `cached_property` (until
Python 3.11) and those of the handlers of `logging`. Others stay native; see `engine.sleepers`.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from simrank.engine.introspection import attributes_of, is_real, module_text
from simrank.ranks import locks
from simrank.ranks.per_module import PerModule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Their locks are held for moments, without a wait, by threads that belong to nobody too.
_OWN_BUSINESS = ("_thread", "threading", "importlib", "_frozen_importlib", "simrank", "greenlet",
                 "builtins", "sys")  # fmt: skip
_put: list[tuple[Any, str, Any, Any]] = []  # Owner, name, the original and what stands for it.


def install() -> None:
    """Replace the locks that are found, unless that has been done since the last `restore`."""
    if _put:
        return
    stand_ins: dict[int, Any] = {}
    for owner, name in _places():
        original = _lock_at(owner, name)
        if original is None:
            continue
        if id(original) not in stand_ins:
            is_of_property = isinstance(owner, functools.cached_property)
            made = locks.PropertyLock() if is_of_property else locks.of_library(original)
            stand_ins[id(original)] = made
        made = stand_ins[id(original)]
        if made is not None:
            try:
                setattr(owner, name, made)
            except (AttributeError, TypeError):
                continue
            _put.append((owner, name, original, made))


def restore() -> None:
    """Give back what is still there."""
    while _put:
        owner, name, original, made = _put.pop()
        if attributes_of(owner).get(name) is made:
            setattr(owner, name, original)


def _lock_at(owner: object, name: str) -> Any:  # noqa: ANN401 - a lock, or None
    value = attributes_of(owner).get(name)
    return value if type(value) in locks.BARE else None


def _places() -> Iterator[tuple[Any, str]]:
    """Yield where locks are: owner and name."""
    for name, module in sys.modules.copy().items():
        places = _places_in(module) if is_real(module, ModuleType) else ()
        if places and name.partition(".")[0] not in _OWN_BUSINESS:
            yield from places
    logging: Any = sys.modules.get("logging")
    for reference in [] if logging is None else list(logging._handlerList):  # noqa: SLF001 - all that live
        handler = reference()
        if handler is not None:
            yield handler, "lock"


def _find(module: ModuleType) -> Iterator[tuple[Any, str]]:
    is_lock: Callable[[object], bool] = locks.BARE.__contains__
    home = module_text(module, "__name__")
    for name, value in list(attributes_of(module).items()):
        if is_lock(type(value)):
            yield module, name
        elif is_real(value, type) and value.__module__ == home:
            for attribute, held in list(attributes_of(value).items()):
                if is_lock(type(held)):
                    yield value, attribute
                elif type(held) is functools.cached_property and hasattr(held, "lock"):
                    yield held, "lock"


_places_in: PerModule[list[tuple[Any, str]]] = PerModule(lambda module: list(_find(module)))
