"""What was found in each module: programs with torch have thousands, and Contexts come and go."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import ref

from simrank.engine.introspection import attributes_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

Found = TypeVar("Found")


class PerModule(Generic[Found]):
    """What a function finds in a module, which is looked at anew when it has more or fewer names.

    A `WeakKeyDictionary` would do, and take three times as long where nothing has changed.

    Args:
        look: The function; what it finds is never None.
    """

    def __init__(self, look: Callable[[ModuleType], Found]) -> None:
        self._look = look
        self._known: dict[int, tuple[ref[ModuleType], int, Found]] = {}

    def known(self, module: ModuleType) -> Found | None:
        """Return what was found in a module; None if it was not looked at, or is another by now."""
        entry = self._known.get(id(module))
        if entry is None or entry[0]() is not module or entry[1] != len(attributes_of(module)):
            return None
        return entry[2]

    def __call__(self, module: ModuleType) -> Found:
        """Return what is found in a module."""
        found = self.known(module)
        if found is None:
            size, key = len(attributes_of(module)), id(module)
            found = self._look(module)
            self._known[key] = ref(module, partial(self._forget, key)), size, found
        return found

    def _forget(self, key: int, died: ref[ModuleType]) -> None:
        if key in self._known and self._known[key][0] is died:
            del self._known[key]
