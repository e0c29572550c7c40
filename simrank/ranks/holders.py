"""Which module holds an object that belongs to one rank, so that others have met it there.

Nothing is followed while a program runs: it is asked once the wrong rank has used the object.
"""

from __future__ import annotations

import gc
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from simrank.engine import collector
from simrank.engine.introspection import attributes_of, is_real
from simrank.ranks.known_packages import KNOWING
from simrank.ranks.packages import is_of_one_rank

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_STEPS = 6  # assumed: an attribute of an entry of an attribute of what a module names
_MAX_LOOKED_AT = 20_000  # assumed: a module that so much lies behind is none that can be blamed
_CONTAINERS = (dict, list, tuple, set, frozenset)


def holder_of(value: object) -> str | None:
    """Return the module that all ranks share and that holds an object, however deep; or None."""
    collector.thaw()
    modules = {
        id(attributes_of(module)): name
        for name, module in list(sys.modules.items())
        if is_real(module, ModuleType) and _is_shared(name) and not is_of_one_rank(module)
    }
    seen: dict[int, object] = {id(value): value}
    found: list[object] = [value]
    for _ in range(_MAX_STEPS):
        behind = [each for each in gc.get_referrers(*found) if id(each) not in seen]
        names = [modules[id(each)] for each in behind if id(each) in modules]
        names += [each.__module__ for each in behind if is_real(each, type)]
        shared = [name for name in names if name in modules.values()]
        if shared:
            return min(shared)
        found = list(_to_follow(behind, found))
        seen |= {id(each): each for each in found}
        if not found or len(seen) > _MAX_LOOKED_AT:
            return None
    return None


def cure(module: str) -> str:
    """Return what gives each rank a module of its own."""
    package = module.partition(".")[0]
    if module == "__main__":
        return "start it with `simrank run`, or hand it to the ranks as an argument"
    return f'[tool.simrank] private = ["{package}"] in pyproject.toml, or --private {package}'


def _is_shared(name: str) -> bool:
    return name.partition(".")[0] not in KNOWING


def _to_follow(behind: Iterable[object], found: list[object]) -> Iterable[object]:
    """Yield what may be in a module in turn: containers, and objects of others than simrank's."""
    for each in behind:
        if each is found or is_real(each, (type, ModuleType)):
            continue
        if is_real(each, _CONTAINERS) or _is_followed(type(each)):
            yield each


def _is_followed(kind: type) -> bool:
    """Whether to look who holds objects of a class: frames and functions hold for a while."""
    home = str(kind.__module__).partition(".")[0]
    return home not in ("simrank", "builtins", "types", "_frozen_importlib")
