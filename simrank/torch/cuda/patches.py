"""Replaces attributes and puts back exactly what was there."""

from __future__ import annotations

import sys
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING

from simrank.engine.introspection import attributes_of, is_real
from simrank.ranks.program_modules import PerModule, is_programs_own

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ABSENT = object()


class Patches:
    """What was replaced, in order, so that it can be put back in reverse."""

    def __init__(self) -> None:
        self._before: list[tuple[object, str, object]] = []
        self._switches: list[tuple[Callable[[bool], object], bool]] = []

    def set(self, owner: object, name: str, value: object) -> None:
        """Replace one attribute of a module or a class."""
        self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def switch(self, turn: Callable[[bool], object], before: bool, *, to: bool) -> None:
        """Turn a switch of torch's, which was at `before`."""
        self._switches.append((turn, before))
        turn(to)

    def replace_everywhere(self, pairs: Sequence[tuple[object, object]]) -> None:
        """Replace objects (old, new) under every name that a module has for them.

        A program may have said `from torch.cuda import Stream` before.
        """
        holds_any = _holders(frozenset(id(old) for old, _ in pairs))
        held: list[object] = list(sys.modules.values())
        for module in held:  # Programs put anything into sys.modules.
            if is_real(module, ModuleType) and (holds_any(module) or is_programs_own(module)):
                self.replace_in(module, pairs)

    def replace_in(self, module: ModuleType, pairs: Sequence[tuple[object, object]]) -> None:
        """Replace objects (old, new) under every name that one module has for them."""
        new = {id(old): replacement for old, replacement in pairs}
        for name, value in list(attributes_of(module).items()):
            if id(value) in new:
                self.set(module, name, new[id(value)])

    def restore(self) -> None:
        """Put everything back."""
        while self._switches:
            turn, before = self._switches.pop()
            turn(before)
        while self._before:
            owner, name, value = self._before.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@lru_cache(maxsize=1)
def _holders(wanted: frozenset[int]) -> PerModule[bool]:
    """Return what tells of a module whether it had any of some objects: to look takes 20 ms."""
    return PerModule(lambda module: not wanted.isdisjoint(map(id, attributes_of(module).values())))
