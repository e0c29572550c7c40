"""Names of modules that several ranks set: processes would each have their own.

Ranks share the modules that are not private. One that sets `counter` of a module (by `global`, or
as an attribute of it) sets it for all of them: numbers that are right here, or wrong, by luck.
Looked at whenever a rank's turn ends, and only at names that some function sets.

Looked at are the program's modules, and installed packages that use torch: what they set to objects
(process groups, buffers, engines) belongs to a process. `strict` looks at attributes, too, and at
numbers and texts of packages.

It does not cover what is changed inside of a value: a list that grows. `PackageState` looks into
objects of the small packages that the program imports.
"""

from __future__ import annotations

import dis
import gc
import re
import sys
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from simrank.engine import collector, user_site
from simrank.engine.callsite import attributes_of, is_real, module_text
from simrank.engine.task import SwitchObserver
from simrank.errors import ProcessExitedException, RankState, SimrankError, SpawnException
from simrank.errors.base import add_note, at_text
from simrank.isolation import mock_patches
from simrank.isolation.private_modules import (
    is_of_one_rank,
    modules_of,
    modules_stamp,
    private_modules,
)
from simrank.ranks.current import rank_program
from simrank.ranks.program_modules import (
    KNOWING,
    PerModule,
    is_installed,
    is_programs_own,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from simrank.engine import CallSite, Task

_GLOBAL, _ATTRIBUTE = dis.opmap["STORE_GLOBAL"], dis.opmap["STORE_ATTR"]
_ABSENT = object()
_PLAIN = (int, float, str, bytes, bool, complex, type(None))
_CONTAINERS = (list, dict, set)
_stores: WeakKeyDictionary[ModuleType, frozenset[tuple[bool, str]]] = WeakKeyDictionary()


class _Setting(NamedTuple):
    """The value that a rank has set a name to, and the source line."""

    rank: int
    value: object
    site: CallSite | None


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
        self._settings: dict[tuple[str, str], dict[int, _Setting]] = {}
        self._is_own: dict[str, bool] = {}  # By module: the program's, or a package's.
        self._seen: set[str] = set()
        self._stamp: object = None
        self._own: list[ModuleType] = []  # The program's; `strict` alone needs them.
        self._attributes: set[str] = set()  # That some function of these sets.
        self._last: Task | None = None
        self.packages = PackageState()
        self._mixed: list[
            tuple[str, RankState]
        ] = []  # Shared modules that hold one rank's objects.

    def on_task_switch(self, task: Task, time_ps: int) -> None:
        """Compare what the task before has left with what it found."""
        del time_ps
        self.find()
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
        for name in sys.modules.keys() - self._seen:
            module = sys.modules[name]
            if task is None and is_real(module, ModuleType) and _may_matter.known(module) is False:
                self._seen.add(name)  # Nearly all.
                continue
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
            _stores[module] = frozenset(s for code in _codes(module) for s in _stored(code))
        names = [target for is_global, target in _stores[module] if is_global]
        if self._is_strict and self._is_own[name]:
            self._own.append(module)
            self._attributes.update(t for is_global, t in _stores[module] if not is_global)
        self._watch_names(name, module, names, task)

    def _watch_names(
        self, module_name: str, module: ModuleType, names: Iterable[str], task: Task | None
    ) -> None:
        for name in names:
            key = module_name, name
            if key not in self._watched:
                self._watched[key] = attributes_of(module)
                value = attributes_of(module).get(name, _ABSENT)
                # What a module begins with is rarely more than a number or an empty list.
                is_set = task is not None and not _is_plain(value) and not _is_empty(value)
                self._values[key] = _ABSENT if is_set else value

    def look(self, task: Task | None) -> None:
        """Note what a task, whose turn ends, has set."""
        values = self._values
        for key, names in self._watched.items():
            value = names.get(key[1], _ABSENT)
            if value is not values[key]:
                values[key] = value
                if task is not None and task.rank is not None and not mock_patches.is_patched(*key):
                    site = None if task.finished else task.site() or user_site()
                    by_rank = self._settings.setdefault(key, {})
                    by_rank[task.rank] = _Setting(task.rank, value, site)

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
            other = next((s for s in others if not _same(s.value, first.value)), None)
            if other is not None and self._matters(key[0], by_rank):
                found.append(_state(key, by_rank, other.site or first.site))
        return found

    def check(self, error: BaseException | None) -> None:
        """Look at the end of a run, which failed with an error or did not.

        What ranks have set in installed packages is a finding of the Context, not an error.

        Raises:
            SimrankError: Ranks have set names of the program's own modules to different values.
        """
        if error is None:
            found = self.report(is_proved=True)
            if found and not self._is_strict:  # It tells of them with all else that it has found.
                raise SimrankError(_text("module globals that several ranks set (proved):", found))
        elif isinstance(error, SpawnException | ProcessExitedException):
            errors = error.errors if isinstance(error, SpawnException) else {}
            found = self._behind(errors) + list(_refusals(errors))
            if found:
                add_note(error, _text("simrank: before that", found))

    def _behind(self, errors: Mapping[int, BaseException]) -> list[RankState]:
        """Return names that other ranks set in the modules where ranks raised."""
        found = {str(state): state for state in self.report()}
        modules = {name for error in errors.values() for name in _modules_of(error)}
        for key, by_rank in self._settings.items():
            if key[0] in modules and self._matters(key[0], by_rank):
                state = _state(key, by_rank, next(iter(by_rank.values())).site)
                found.setdefault(str(state), state)
        return list(found.values())

    def _matters(self, module: str, by_rank: dict[int, _Setting]) -> bool:
        """Whether it is an error: packages count calls and note times, which does no harm."""
        if self._is_strict or self._is_own[module]:
            return True
        return not all(_is_plain(setting.value) for setting in by_rank.values())


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
        self._globals.packages.look(self._task)


def _state(key: tuple[str, str], by_rank: dict[int, _Setting], site: CallSite | None) -> RankState:
    """Return the finding about a name; the cure is the last line."""
    module, name = key
    at = at_text(*((None, None) if site is None else site.line()))
    text = f"set {module}.{name}, which they share: processes have their own; set before{at}"
    return RankState(tuple(sorted(by_rank)), f"{text}\n    to fix: {cure(module)}", waits=False)


def _text(title: str, states: list[RankState]) -> str:
    return "\n".join([title, *(f"  {state}" for state in states)])


def _modules_of(error: BaseException) -> Iterator[str]:
    """Yield the modules whose functions an error went through."""
    trace = error.__traceback__
    while trace is not None:
        yield str(trace.tb_frame.f_globals.get("__name__"))
        trace = trace.tb_next


def _same(value: object, other: object) -> bool:
    """Return whether two values are identical, or equal and immutable."""
    if value is other:
        return True
    return _is_plain(value) and _is_plain(other) and value == other


def _is_plain(value: object) -> bool:
    """Whether a value cannot be changed; a tuple may hold anything, and is compared by identity."""
    if type(value) is tuple or type(value) is frozenset:
        return all(map(_is_plain, value))
    return is_real(value, _PLAIN)


def _is_empty(value: object) -> bool:
    return type(value) in _CONTAINERS and not value


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


def _codes(module: ModuleType) -> Iterator[CodeType]:
    """Yield the code of a module's functions and methods."""
    home = module_text(module, "__name__")
    for value in list(attributes_of(module).values()):
        held = [value]
        if is_real(value, type) and _is_of(value, home):
            held = list(attributes_of(value).values())
        for each in held:
            if type(each) is FunctionType and _is_of(each, home):
                yield each.__code__


def _is_of(value: type | FunctionType, home: str | None) -> bool:
    found = value.__module__
    return type(found) is str and found == home


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


# ---- what ranks write into objects of the packages that the program imports ----
# Singletons of flags and configurations. Followed are modules, classes and objects of a package
# without extensions. A value counts if it lies under a key or attribute that the program names, as
# a text or a target, so counters and caches of a library do not.

_MAX_VISITS = 100_000  # assumed: of a run, 0.1 s; programs configure their libraries at the start
_MAX_DEPTH = 6  # assumed: a module's object, its dict, an entry, an attribute of it, and two more
_MAX_ENTRIES = 500  # assumed: a larger dict is a table of the library
_MAX_MODULES = 400  # assumed: a larger package is no place for settings
_IMPORT = dis.opmap["IMPORT_NAME"]


class _Spoken(NamedTuple):
    """The packages that a program imports, and the keys and attributes that it names."""

    packages: set[str]
    names: set[str]


class PackageState:
    """Sees ranks write different values to one place in a shared package.

    Looked at as turns end, until a limit of looked-at objects is reached.
    """

    def __init__(self) -> None:
        self._num_left = _MAX_VISITS
        self._stamp: object = None
        self._spoken = _Spoken(set(), set())
        self._packages: list[str] = []
        self._values: dict[str, object] = {}
        self._written: dict[str, dict[int, _Setting]] = {}

    def look(self, task: Task) -> None:
        """Note what the turn of a rank has changed."""
        if self._num_left <= 0 or task.rank is None:
            return
        stamp = modules_stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            self._find()
        for package in self._packages:
            for place, value in self._leaves(package):
                if place not in self._values or not _same(self._values[place], value):
                    self._values[place] = value
                    site = None if task.finished else task.site() or user_site()
                    self._written.setdefault(place, {})[task.rank] = _Setting(
                        task.rank, value, site
                    )

    def _find(self) -> None:
        """Look for packages that the running rank's program imports, and all ranks share."""
        program = rank_program()
        own = None if program is None else private_modules(program)
        if own is None:
            return
        for code in own.codes():
            _spoken_in(code, self._spoken)
        self._packages = [
            name
            for name in sorted(self._spoken.packages - KNOWING)
            if name in sys.modules and not own.is_private(name) and _is_small(name)
        ]

    def _leaves(self, package: str) -> Iterator[tuple[str, object]]:
        """Yield the values under names of the program in a package, and their places."""
        names = self._spoken.names
        left: list[tuple[str, object, bool, int]] = [
            (name, module, False, 0) for name, module in modules_of(package).items()
        ]
        seen: set[int] = set()
        while left and self._num_left > 0:
            self._num_left -= 1
            place, value, is_named, depth = left.pop()
            if is_named and (_is_plain(value) or _is_of_program(value)):
                yield place, value
            if id(value) in seen or depth > _MAX_DEPTH:
                continue
            seen.add(id(value))
            if isinstance(value, dict):
                if len(value) <= _MAX_ENTRIES:
                    left += [
                        (f"{place}[{key!r}]", each, is_named or key in names, depth + 1)
                        for key, each in dict.items(value)
                        if type(key) is str
                    ]
                continue
            if not _is_in(value, package):
                continue
            left += [
                (f"{place}.{key}", each, is_named or key in names, depth + 1)
                for key, each in list(attributes_of(value).items())
                if type(key) is str and not is_real(each, ModuleType) and not key.endswith("__")
            ]

    def report(self) -> list[RankState]:
        """Return the places to which ranks have written different values."""
        found = {}
        for place, by_rank in self._written.items():
            first, *others = by_rank.values()
            other = next((s for s in others if not _same(s.value, first.value)), None)
            if other is not None:  # One line per package: the cure is the same.
                module = next(n for n in _prefixes(place) if n in sys.modules)
                key = module, place[len(module) + 1 :]
                found[module.partition(".")[0]] = _state(key, by_rank, other.site)
        return list(found.values())


def _prefixes(place: str) -> Iterator[str]:
    """Yield the dotted beginnings of a place, the longest first."""
    name = place.partition("[")[0]
    while name:
        yield name
        name = name.rpartition(".")[0]


def _spoken_in(code: CodeType, found: _Spoken) -> None:
    """Add what a code imports and names."""
    for instruction in dis.get_instructions(code):
        if instruction.opcode == _IMPORT:
            found.packages.add(str(instruction.argval).partition(".")[0])
        elif instruction.opcode == _ATTRIBUTE:
            found.names.add(str(instruction.argval))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _spoken_in(constant, found)
        elif isinstance(constant, str) and constant:
            found.names.add(constant)
        elif isinstance(constant, tuple):
            found.names.update(each for each in constant if isinstance(each, str) and each)


def _is_small(package: str) -> bool:
    """Whether a package is installed, and consists of Python files, not too many."""
    found = modules_of(package)
    files = [module_text(module, "__file__") or "" for module in found.values()]
    is_python = not any(file.endswith((".so", ".pyd")) for file in files)
    return is_python and len(found) <= _MAX_MODULES and is_installed(found[package])


def _is_in(value: object, package: str) -> bool:
    """Whether a value is a module or class of a package, or an object of such a class."""
    if is_real(value, ModuleType):
        home: object = module_text(value, "__name__")
    else:
        home = (value if is_real(value, type) else type(value)).__module__
    return type(home) is str and home.partition(".")[0] == package


def _is_of_program(value: object) -> bool:
    """Whether a value is a function or class of a rank's script."""
    return is_real(value, (type, FunctionType)) and value.__module__ == "__main__"


_REFUSAL = re.compile(r"already|duplicate", re.IGNORECASE)


def _refusals(errors: Mapping[int, BaseException]) -> Iterator[RankState]:
    """Yield shared packages that refused on some ranks what another rank had done in them."""
    for rank, error in errors.items():
        module = [*_modules_of(error)][-1:]
        package = module[0].partition(".")[0] if module else ""
        is_shared = package in sys.modules and package not in KNOWING
        if not (is_shared and is_installed(sys.modules[package])):
            continue
        if _REFUSAL.search(str(error)) and not is_of_one_rank(sys.modules[module[0]]):
            text = f"{module[0]} refused, as another rank had done the same in it: ranks share it"
            text += f", and processes have their own\n    to fix: {cure(package)}"
            yield RankState((rank,), text, waits=False)


# ---- Which module holds an object that belongs to one rank, so that others have met it there ----
# Nothing is followed while a program runs: it is asked once the wrong rank has used the object.

_MAX_STEPS = 6  # assumed: an attribute of an entry of an attribute of what a module names
_MAX_LOOKED_AT = 20_000  # assumed: a module that so much lies behind is none that can be blamed
_FOLLOWED_CONTAINERS = (dict, list, tuple, set, frozenset)


def holder_of(value: object) -> str | None:
    """Return the module that all ranks share and that holds an object, however deep; or None."""
    collector.thaw()
    modules = {
        id(attributes_of(module)): name
        for name, module in list(sys.modules.items())
        if is_real(module, ModuleType) and _is_shared_by_ranks(name) and not is_of_one_rank(module)
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
    """Return the setting that gives each rank a module of its own."""
    package = module.partition(".")[0]
    if module == "__main__":
        return "start it with `simrank run`, or hand it to the ranks as an argument"
    return f'[tool.simrank] private = ["{package}"] in pyproject.toml, or --private {package}'


def _is_shared_by_ranks(name: str) -> bool:
    return name.partition(".")[0] not in KNOWING


def _to_follow(behind: Iterable[object], found: list[object]) -> Iterable[object]:
    """Yield what may be in a module in turn: containers, and objects of others than simrank's."""
    for each in behind:
        if each is found or is_real(each, (type, ModuleType)):
            continue
        if is_real(each, _FOLLOWED_CONTAINERS) or _is_followed(type(each)):
            yield each


def _is_followed(kind: type) -> bool:
    """Whether holders of a class's objects are followed: frames and functions are temporary."""
    home = str(kind.__module__).partition(".")[0]
    return home not in ("simrank", "builtins", "types", "_frozen_importlib")
