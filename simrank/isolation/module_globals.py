"""Names of modules that several ranks set: processes would each have their own.

Ranks share the modules that are not private. One that sets `counter` of a module (by `global`, or
as an attribute of it) sets it for all of them: numbers that are right here, or wrong, by luck.
Looked at whenever a rank's turn ends, and only at names that some function sets.

Looked at are the program's modules, and installed packages that use torch: what a rank sets there
is its own, swapped with its turns, since processes have packages of their own. `strict` looks at
attributes, too.

It does not cover what is changed inside of a value: a list that grows. `PackageState` looks into
objects of the small packages that the program imports.
"""

from __future__ import annotations

import dis
import sys
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from simrank.engine import user_site
from simrank.engine.callsite import attributes_of, is_real, module_text
from simrank.engine.task import SwitchObserver
from simrank.errors import ProcessExitedException, RankState, SimrankError, SpawnException
from simrank.errors.base import add_note
from simrank.isolation import mock_patches, set_classes
from simrank.isolation.package_state import (
    NameSetting,
    PackageState,
    codes_of,
    cure,
    is_plain,
    modules_of_error,
    same,
    state_of,
)
from simrank.isolation.private_modules import is_of_one_rank, modules_stamp, private_modules
from simrank.ranks.current import rank_program
from simrank.ranks.program_modules import KNOWING, PerModule, is_programs_own

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from simrank.engine import Task
    from simrank.isolation.package_changes import PackageChanges
    from simrank.isolation.package_state import Spoken

_GLOBAL, _ATTRIBUTE = dis.opmap["STORE_GLOBAL"], dis.opmap["STORE_ATTR"]
_ABSENT = object()
_UNKNOWN = object()  # What was there before a rank may have set it.
_PLAIN = (int, float, str, bytes, bool, complex, type(None))
_CONTAINERS = (list, dict, set)
_CONSTANT, _BINDS = dis.opmap["LOAD_CONST"], {dis.opmap["STORE_NAME"], _GLOBAL}
_EMPTY: dict[int, type] = {dis.opmap["BUILD_LIST"]: list, dis.opmap["BUILD_MAP"]: dict}
_stores: WeakKeyDictionary[ModuleType, frozenset[tuple[bool, str]]] = WeakKeyDictionary()


class ModuleGlobals(SwitchObserver):
    """Sees which ranks set which names of modules: an observer of switches, or told of turns.

    Args:
        is_strict: Whether to look at attributes and at plain values of packages, too.
    """

    def __init__(self, *, is_strict: bool) -> None:
        self._is_strict = is_strict
        self._watched: dict[
            tuple[str, str], Mapping[str, Any]
        ] = {}  # Module and name -> its names.
        self._values: dict[tuple[str, str], object] = {}
        self._settings: dict[tuple[str, str], dict[int, NameSetting]] = {}
        self._unknown: set[tuple[str, str]] = set()  # Which rank set them first is not known.
        self._is_own: dict[str, bool] = {}  # By module: the program's, or a package's.
        self._seen: set[str] = set()
        self._stamp: object = None
        self._own: list[ModuleType] = []  # The program's; `strict` alone needs them.
        self._attributes: set[str] = set()  # That some function of these sets.
        self._last: Task | None = None
        self.packages = PackageState(_changes)
        self._mixed: list[
            tuple[str, RankState]
        ] = []  # Shared modules that hold one rank's objects.

    def on_task_switch(self, task: Task, time_ps: int) -> None:
        """Compare what the task before has left with what it found."""
        del time_ps
        self.find(self._last)
        if task is not self._last:
            self.look(self._last)
        self._last = task

    def find(self, task: Task | None = None) -> None:
        """Look for modules that are new; a task has imported them, and may have set names since."""
        stamp = modules_stamp()
        if stamp == self._stamp:  # Looking at every name takes 0.1 ms.
            return
        self._stamp = stamp
        num_own = len(self._own)
        if task is None:  # Nearly all are known not to matter.
            new = {name: sys.modules[name] for name in {*sys.modules} - self._seen}
            cached = _may_matter.cached(new)
            self._seen.update(name for name, may_matter in cached.items() if not may_matter)
        for name in {*sys.modules} - self._seen:
            module = sys.modules[name]
            spec = attributes_of(module).get("__spec__")
            if attributes_of(spec).get("_initializing", False) is True:
                continue
            self._seen.add(name)
            if task is not None:
                self._look_for_private(name, module, task)
            if _is_shared(module):
                self._is_own[name] = is_programs_own(module)
                self._watch(name, module, task)
        if len(self._own) > num_own:  # Once for all of them: a program may have hundreds.
            for own in self._own:
                names = self._attributes & attributes_of(own).keys()
                self._watch_names(module_text(own, "__name__") or "", own, names, task)

    def _look_for_private(self, name: str, module: ModuleType, task: Task) -> None:
        """Note a shared module that has what one rank alone has: it is the wrong one for others."""
        program = rank_program()
        own = None if program is None or task.rank is None else private_modules(program)
        held = None if own is None or is_of_one_rank(module) else own.held_by(module)
        if held is None:
            return
        text = (
            f"imported {name}, which all share, with {held}, of which each rank has its own\n"
            f"    to fix: {cure(name)}"
        )
        assert task.rank is not None, "a rank's module is not another's"
        self._mixed.append((name, RankState((task.rank,), text, waits=False)))

    def _watch(self, name: str, module: ModuleType, task: Task | None) -> None:
        if module not in _stores:
            _stores[module] = frozenset(s for code in codes_of(module) for s in _stored(code))
        for code in codes_of(module):
            set_classes.look(code, attributes_of(module))
        names = [target for is_global, target in _stores[module] if is_global]
        if self._is_strict and self._is_own[name]:
            self._own.append(module)
            self._attributes.update(t for is_global, t in _stores[module] if not is_global)
        self._watch_names(name, module, names, task)

    def _watch_names(
        self, module_name: str, module: ModuleType, names: Iterable[str], task: Task | None
    ) -> None:
        new = [name for name in names if (module_name, name) not in self._watched]
        first = _first_values(module) if new and task is not None else {}
        for name in new:
            key = module_name, name
            self._watched[key] = attributes_of(module)
            value = attributes_of(module).get(name, _ABSENT)
            if task is not None:  # It may have set the name since it has imported the module.
                # What a module begins with is rarely more than a number or an empty list.
                is_first = is_plain(value) or _is_empty(value)
                known = first.get(name, _UNKNOWN)
                value = value if known is _UNKNOWN and is_first else known
            self._values[key] = value
            if value is _UNKNOWN:
                self._unknown.add(key)

    def look(self, task: Task | None) -> None:
        """Note what a task, whose turn ends, has set."""
        values = self._values
        for key, names in self._watched.items():
            value = names.get(key[1], _ABSENT)
            if value is not values[key]:
                if self._is_swapped(key, task):
                    continue
                values[key] = value
                if task is not None and task.rank is not None and not mock_patches.is_patched(*key):
                    site = None if task.finished else task.site() or user_site()
                    by_rank = self._settings.setdefault(key, {})
                    by_rank[task.rank] = NameSetting(task.rank, value, site)

    def _is_swapped(self, key: tuple[str, str], task: Task | None) -> bool:
        """Return whether a name belongs to a shared package; note the rank's value of it.

        What a module begins with is everyone's, and what may have come with its import stays so.
        """
        if task is None or task.rank is None or self._is_own[key[0]] or key in self._unknown:
            return False
        before = self._values[key]
        before = mock_patches.ABSENT if before is _ABSENT else before
        mock_patches.note(task, sys.modules[key[0]], key[1], before)
        return True

    def report(self, *, is_proved: bool = False) -> list[RankState]:
        """Return the names that ranks have set to different values.

        Args:
            is_proved: Leave out installed packages. Their authors may want what looks wrong: a
                cache, a default that each rank sets before it reads it.
        """
        self.look(self._last)
        found = [state for name, state in self._mixed if not is_proved or self._is_own.get(name)]
        found += [] if is_proved else self.packages.report()
        for key, by_rank in self._settings.items():
            if is_proved and not self._is_own[key[0]]:
                continue
            first, *others = by_rank.values()
            other = next((s for s in others if not same(s.value, first.value)), None)
            if other is not None and self._matters(key[0], by_rank):
                found.append(state_of(key, by_rank, other.site or first.site))
        return found

    def check(self, error: BaseException | None, *, fails: bool) -> None:
        """Look at the end of a run, which failed with an error or did not.

        Objects that ranks have set to names of installed packages are a finding of the Context.

        Args:
            error: The run's error, or None.
            fails: Whether conflicts in the state of installed packages are an error.

        Raises:
            SimrankError: Ranks have set names of the program's own modules to different values, or
                values that the program names in installed packages.
        """
        if error is None:
            found = self.report(is_proved=True) + (self.packages.conflicts() if fails else [])
            if found and not self._is_strict:  # It tells of them with all else that it has found.
                raise SimrankError(_text("module globals that several ranks set (proved):", found))
        elif isinstance(error, SpawnException | ProcessExitedException):
            errors = error.errors if isinstance(error, SpawnException) else {}
            self.packages.note_refusals(errors)
            found = self._behind(errors)
            if found:
                add_note(error, _text("simrank: before that", found))

    def _behind(self, errors: Mapping[int, BaseException]) -> list[RankState]:
        """Return names that other ranks set in the modules where ranks raised."""
        found = {str(state): state for state in self.report()}
        modules = {name for error in errors.values() for name in modules_of_error(error)}
        for key, by_rank in self._settings.items():
            if key[0] in modules and self._matters(key[0], by_rank):
                state = state_of(key, by_rank, next(iter(by_rank.values())).site)
                found.setdefault(str(state), state)
        return list(found.values())

    def _matters(self, module: str, by_rank: dict[int, NameSetting]) -> bool:
        """Whether it is an error: packages count calls and note times, which does no harm."""
        if self._is_strict or self._is_own[module]:
            return True
        return not all(is_plain(setting.value) for setting in by_rank.values())


def _changes(spoken: Spoken) -> PackageChanges:
    from simrank.isolation.package_changes import PackageChanges  # noqa: PLC0415 - few programs need it

    return PackageChanges(spoken)


class GlobalsOfRank:
    """Looks at what a rank has set as its turn ends; a state of the rank, see `libraries`."""

    def __init__(self, globals_: ModuleGlobals, task: Task) -> None:
        self._globals = globals_
        self._task = task

    @property
    def turn(self) -> GlobalsOfRank:
        """Return self: it observes turns."""
        return self

    def begin(self) -> None:
        """Do nothing: the turn has begun."""

    def end(self) -> None:
        """Do nothing: the turn ends."""

    def enter(self) -> None:
        """Note what is there."""
        self._globals.find()

    def leave(self) -> None:
        """See what the rank has imported and set."""
        self._globals.find(self._task)
        self._globals.look(self._task)


def _text(title: str, states: list[RankState]) -> str:
    return "\n".join([title, *(f"  {state}" for state in states)])


def _is_empty(value: object) -> bool:
    return type(value) in _CONTAINERS and not value


def _first_values(module: ModuleType) -> dict[str, object]:
    """Return the first values of a module's names that its code states: constants, and empty."""
    loader: Any = getattr(attributes_of(module).get("__spec__"), "loader", None)
    code = loader.get_code(module.__name__) if hasattr(loader, "get_code") else None
    found: dict[str, object] = {}
    if code is None:
        return found
    before, high = (0, 0), 0
    opcodes = iter(code.co_code)
    for opcode, low in zip(opcodes, opcodes, strict=False):  # `dis` takes 2 us for each.
        number, high = high | low, 0
        if opcode == dis.EXTENDED_ARG:
            high = number << 8
            continue
        if opcode in _BINDS:
            kind, name = before[0], code.co_names[number]
            found[name] = _UNKNOWN  # Of two settings the last one holds.
            if kind == _CONSTANT:
                found[name] = code.co_consts[before[1]]
            elif kind in _EMPTY and before[1] == 0:
                found[name] = _EMPTY[kind]()
        before = opcode, number
    return found


def _is_shared(module: object) -> bool:
    """Return whether ranks share a module that may hold what belongs to a process."""
    return is_real(module, ModuleType) and _may_matter(module) and not is_of_one_rank(module)


def _uses_torch(module: ModuleType) -> bool:
    return any(
        (module_text(value, "__name__") or "").partition(".")[0] == "torch"
        for value in list(attributes_of(module).values())
    )


# To look at every name of every package takes 30 ms.
_may_matter: PerModule[bool] = PerModule(
    lambda module: (
        is_programs_own(module)
        or (
            (module_text(module, "__name__") or "").partition(".")[0] not in KNOWING
            and _uses_torch(module)
        )
    )
)


def _stored(code: CodeType) -> Iterator[tuple[bool, str]]:
    """Yield the names that a function sets: whether as a global, and which."""
    opcodes = code.co_code[::2]
    if _GLOBAL in opcodes or _ATTRIBUTE in opcodes:  # In few functions; `dis` is slow.
        for instruction in dis.get_instructions(code):
            if instruction.opcode in (_GLOBAL, _ATTRIBUTE):
                yield instruction.opcode == _GLOBAL, str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _stored(constant)
