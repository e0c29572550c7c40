"""Replaces attributes and puts back exactly what was there."""

from __future__ import annotations

import sys
from types import ModuleType

_ABSENT = object()


class Patches:
    """Attributes that were replaced, in order, so that they can be put back in reverse."""

    def __init__(self) -> None:
        self._before: list[tuple[object, str, object]] = []

    def set(self, owner: object, name: str, value: object) -> None:
        """Replace one attribute of a module or a class."""
        self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def replace_everywhere(self, old: object, new: object) -> None:
        """Replace an object under every name that a module has for it.

        A program may have said `from torch.cuda import Stream` before.
        """
        for module in list(sys.modules.values()):
            if not isinstance(module, ModuleType):
                continue
            for name, value in list(vars(module).items()):
                if value is old:
                    self.set(module, name, new)

    def restore(self) -> None:
        """Put everything back."""
        while self._before:
            owner, name, value = self._before.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
