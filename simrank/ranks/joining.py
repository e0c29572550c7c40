"""Packages that join the private ones: as a rank imports them, they take something of one.

Who imports `transformers` at its top holds its classes, and would hold the first rank's for all. It
joins as it imports a private package, or once it is imported and holds something of one: no other
rank has met it by then.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from simrank.engine.introspection import is_real

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from importlib.machinery import ModuleSpec

_joined: WeakKeyDictionary[object, frozenset[str]] = WeakKeyDictionary()  # By Context.
changes = [0]  # How often a package has joined: ranks look again if it was since they looked.


def join(context: object, package: str) -> None:
    """Let a package be private for all ranks of a Context."""
    _joined[context] = joined(context) | {package}
    changes[0] += 1


def joined(context: object) -> frozenset[str]:
    """Return what has joined in a Context."""
    return _joined.get(context, frozenset())


def may_join(name: str) -> bool:
    """Whether a module that is to be imported is a whole package, or a module of its own."""
    return "." not in name and name not in sys.stdlib_module_names


def modules_of(package: str) -> dict[str, ModuleType]:
    """Return a package and all modules in it that are imported, by name."""
    found = {n: m for n, m in list(sys.modules.items()) if n.partition(".")[0] == package}
    return {name: module for name, module in found.items() if is_real(module, ModuleType)}


class Watching(Loader):
    """Loads a package as its own loader does, while somebody watches.

    Args:
        spec: The package's; it gets its own loader back.
        watch: Is entered while it is executed.
    """

    def __init__(self, spec: ModuleSpec, watch: Callable[[], AbstractContextManager[None]]) -> None:
        assert spec.loader is not None, "there is something to execute"
        self._inner: Any = spec.loader
        self._spec = spec
        self._watch = watch

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever its own loader offers
        """Return what its own loader has."""
        return getattr(self._inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module as its own loader does."""
        made: ModuleType | None = self._inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Execute it."""
        self._spec.loader = module.__loader__ = self._inner
        with self._watch():
            self._inner.exec_module(module)
