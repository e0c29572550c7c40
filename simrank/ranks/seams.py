"""How private modules stand in packages that all ranks share."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import ModuleType


class Seams:
    """Private modules that lie in a package that all share, which has them as attributes, too.

    Folders without `__init__.py` are such packages, and those of `private = ["package.module"]`.

    Args:
        is_shared: Whether a rank has no module of a name for itself, and is to have none.
    """

    def __init__(self, is_shared: Callable[[str], bool]) -> None:
        self._is_shared = is_shared
        self._names: dict[str, tuple[str, str]] = {}  # By module: its package, and its name there.

    def note(self, names: Iterable[str]) -> None:
        """Look at private modules that may be new."""
        for name in names:
            package, dot, last = name.rpartition(".")
            if dot and name not in self._names and self._is_shared(package):
                self._names[name] = package, last

    def enter(self, own: Mapping[str, ModuleType], others: Mapping[str, ModuleType]) -> None:
        """Let the packages have the rank's own, and nobody else's."""
        self._put(own, others)

    def leave(self, own: Mapping[str, ModuleType], others: Mapping[str, ModuleType]) -> None:
        """Let them have everybody else's."""
        self._put(others, own)

    def _put(self, these: Mapping[str, ModuleType], those: Mapping[str, ModuleType]) -> None:
        for name, (package, last) in self._names.items():
            holder = sys.modules.get(package)
            if holder is not None and name in these:
                vars(holder)[last] = these[name]
            elif holder is not None and vars(holder).get(last) is those.get(name, holder):
                del vars(holder)[last]
