"""Names of modules that several ranks set: processes would each have their own.

Ranks share their program's modules. One that sets `counter` of a module (by `global`, or as an
attribute of it) sets it for all of them: numbers that are right here, or wrong, by luck. Looked at
whenever another rank gets its turn, and only at names that some function of the program sets.

It does not cover what is changed inside of a value (a list that grows), nor modules that are not
the program's own.
"""

from __future__ import annotations

import dis
import sys
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from simrank.engine.observer import SwitchObserver
from simrank.errors import RankState
from simrank.ranks import patches
from simrank.ranks.own import is_programs_own

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.engine import CallSite, Task

_GLOBAL, _ATTRIBUTE = dis.opmap["STORE_GLOBAL"], dis.opmap["STORE_ATTR"]
_ABSENT = object()
_stores: WeakKeyDictionary[ModuleType, frozenset[tuple[bool, str]]] = WeakKeyDictionary()


class _Setting(NamedTuple):
    """What a rank has set a name to, and where it was when that was seen."""

    rank: int
    value: object
    site: CallSite | None


class ModuleGlobals(SwitchObserver):
    """Sees which ranks set which names of the program's modules; an observer of switches."""

    def __init__(self) -> None:
        self._watched: dict[tuple[str, str], object] = {}  # Module and name -> the value now.
        self._settings: dict[tuple[str, str], dict[int, _Setting]] = {}
        self._num_modules = 0
        self._last: Task | None = None

    def on_task_switch(self, task: Task, time_ps: int) -> None:
        """Compare what the task before has left with what it found."""
        del time_ps
        if len(sys.modules) != self._num_modules:
            self._num_modules = len(sys.modules)
            for key in _settable_names():
                self._watched.setdefault(key, _value(key))
        if task is not self._last:
            self.look()
        self._last = task

    def look(self) -> None:
        """Note what the task that ran last has set."""
        last = self._last
        for key, before in self._watched.items():
            value = _value(key)
            if value is not before:
                self._watched[key] = value
                if last is not None and last.rank is not None and not patches.is_patched(*key):
                    site = None if last.finished else last.site()
                    by_rank = self._settings.setdefault(key, {})
                    by_rank[last.rank] = _Setting(last.rank, value, site)

    def report(self) -> list[RankState]:
        """Return the names that ranks have set to different values."""
        self.look()
        states = []
        for (module, name), by_rank in self._settings.items():
            settings = list(by_rank.values())
            other = next((s for s in settings[1:] if not _same(s.value, settings[0].value)), None)
            if other is not None:
                where = other.site or settings[0].site
                file, line = (None, None) if where is None else where.line()
                text = (
                    f"set {module}.{name}, which they share: processes have their own; set before"
                )
                states.append(RankState(tuple(sorted(by_rank)), text, file, line, waits=False))
        return states


def _value(key: tuple[str, str]) -> object:
    module = sys.modules.get(key[0])
    return _ABSENT if module is None else vars(module).get(key[1], _ABSENT)


def _same(value: object, other: object) -> bool:
    """Return whether two values are one, or equal ones that nobody can change."""
    if value is other:
        return True
    plain = (int, float, str, bytes, bool, complex, tuple, frozenset, type(None))
    return isinstance(value, plain) and isinstance(other, plain) and value == other


def _settable_names() -> Iterator[tuple[str, str]]:
    """Yield modules and names that functions of the program set."""
    own = {
        name: module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and is_programs_own(module)
    }
    attributes: set[str] = set()
    for name, module in own.items():
        if module not in _stores:
            _stores[module] = frozenset(s for code in _codes(module) for s in _stored(code))
        for is_global, target in _stores[module]:
            if is_global:
                yield name, target
            else:
                attributes.add(target)
    for name, module in own.items():
        for attribute in attributes & set(vars(module)):
            yield name, attribute


def _codes(module: ModuleType) -> Iterator[CodeType]:
    """Yield the code of a module's functions and methods."""
    for value in list(vars(module).values()):
        held = [value]
        if isinstance(value, type) and value.__module__ == module.__name__:
            held = list(vars(value).values())
        for each in held:
            if isinstance(each, FunctionType) and each.__module__ == module.__name__:
                yield each.__code__


def _stored(code: CodeType) -> Iterator[tuple[bool, str]]:
    """Yield the names that a function sets: whether as a global, and which."""
    for instruction in dis.get_instructions(code):
        if instruction.opcode in (_GLOBAL, _ATTRIBUTE):
            yield instruction.opcode == _GLOBAL, str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _stored(constant)
