"""Changes of ranks in the state of installed packages: flags, registries, singletons.

Followed are modules, classes and objects of a package.

1. A package that changes in the turn in which a rank imports it becomes private: other ranks have
   not used it yet. Right programs do not notice.
2. Otherwise it is a conflict if two ranks write different values to one place, if a package raises
   on one rank for what another rank has done ("already registered"), or if a rank reads the object
   that another rank has put in place of a package's None. A front door may start the run again with
   the package private; without one, different values fail the run at its end.

Looked at whenever a turn ends, until a limit of looked-at objects is reached.
"""

from __future__ import annotations

import dis
import gc
import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.engine import collector, user_site
from simrank.engine.callsite import attributes_of, is_real, module_text
from simrank.errors import RankState
from simrank.isolation.ledger import Ledger
from simrank.isolation.mock_patches import is_patched
from simrank.isolation.package_state import (
    NameSetting,
    are_alike,
    codes_of,
    cure,
    frames_of,
    is_plain,
    is_refusal,
    is_small,
    modules_of_error,
    same,
    state_of,
)
from simrank.isolation.private_importers import importers_of
from simrank.isolation.private_modules import is_of_one_rank, modules_of
from simrank.ranks.current import rank_program
from simrank.ranks.program_modules import KNOWING, is_installed, is_programs_own_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from simrank.engine import Task
    from simrank.isolation.package_state import Spoken
    from simrank.isolation.private_modules import PrivateModules
    from simrank.ranks.current import Program

RESTART = "restart with a private package"  # In the main program's `local`: takes name, conflict.
_MAX_VISITS = 100_000  # assumed: of a package, 0.1 s; programs configure libraries at the start
_MAX_VISITS_OF_ALL = 300_000  # assumed: of all, which a process of many tests has dozens of
_MAX_DEPTH = 6  # assumed: a module's object, its dict, an entry, an attribute of it, and two more
_MAX_ENTRIES = 500  # assumed: a larger dict is a table of the library


class _Leaf(NamedTuple):
    """A value in a package, its place, and the module in which the place was found."""

    root: str
    place: str
    value: object


class _New(NamedTuple):
    """A package as it was imported: names of the program then, its modules, values by place."""

    names: set[str]
    roots: set[str]
    values: dict[str, object]


class PackageChanges:
    """Sees ranks change packages that they share; one of a Context.

    Args:
        spoken: The names of the program; they may become more.

    Attributes:
        singletons: Objects that ranks put in place of None.
        found: By package refusals, and objects of one rank that another rank has read.
    """

    def __init__(self, spoken: Spoken) -> None:
        self.singletons = _Singletons(self._note)
        self.found: dict[str, RankState] = {}
        self._handled: object = None  # The exception that was looked at last, by ids.
        self._spoken = spoken
        self._num_left: dict[str, int] = {}  # Visits, by package.
        self._num_left_of_all = _MAX_VISITS_OF_ALL
        self._roots: dict[str, list[str]] = {}  # Modules by package, as they were found.
        self._new: dict[str, _New] = {}  # Packages that were imported in this turn.
        self._values: dict[str, object] = {}
        self._num_names: dict[str, int] = {}  # Of the program, as each package was looked at.
        self._written: dict[str, dict[int, NameSetting]] = {}

    @property
    def has_new(self) -> bool:
        """Whether packages have been imported since `join`."""
        return bool(self._new)

    def imported(self, package: str) -> None:
        """Note the state of a package that the running rank has just imported, as the first."""
        new = self._new.setdefault(package, _New(self._spoken.all_names(), set(), {}))
        modules = modules_of(package).keys()
        if modules != new.roots:
            for leaf in self._leaves(package, new.names):
                if leaf.root not in new.roots:
                    new.values[leaf.place] = leaf.value
                    self._values.setdefault(leaf.place, leaf.value)
            new.roots.update(modules)
            self._num_names[package] = len(self._spoken.names)

    def join(self, packages: Collection[str], own: PrivateModules) -> None:
        """Make packages private that the running rank alone has used, and changed."""
        came, self._new = self._new, {}
        for package in own.appeared():
            new = came.get(package)
            if new is None or package not in packages or not is_small(package):
                continue  # One with an extension only where ranks conflict.
            if any(
                leaf.root in new.roots and not same(new.values.get(leaf.place, came), leaf.value)
                for leaf in self._leaves(package, new.names)
            ):
                _join(own, package)

    def look(self, package: str, program: Program, task: Task) -> None:
        """Note what the turn of a rank has changed in a package."""
        assert task.rank is not None, "a rank's turn"
        self.singletons.look(package, self._spoken.reads, task.rank)
        num_names = len(self._spoken.names)
        is_new = self._num_names.get(package) != num_names  # What is there is no change.
        self._num_names[package] = num_names
        for _, place, value in self._leaves(package, self._spoken.names):
            if not (is_plain(value) or _is_of_program(value)):
                continue
            before = self._values.get(place, self)
            self._values[place] = value
            if same(before, value) or (is_new and before is self):
                continue
            site = None if task.finished else task.site() or user_site()
            by_rank = self._written.setdefault(place, {})
            is_equal = same if is_small(package) else are_alike
            known = (each.value for each in by_rank.values() if is_equal(each.value, value))
            one = next(known, value)  # One object: globals of functions end with their ranks.
            by_rank[task.rank] = NameSetting(task.rank, one, site)
            state = _conflict(place, by_rank)
            if state is not None:
                _ask_for_restart(program, package, state)

    def _leaves(self, package: str, names: Collection[str]) -> Iterator[_Leaf]:
        """Yield the values under some names in a package."""
        modules = modules_of(package)
        roots = self._roots.setdefault(package, [])  # Places are named after the first of them.
        roots += sorted(modules.keys() - roots)
        left: list[tuple[str, str, object, bool, int]] = [
            (name, name, modules[name], False, 0) for name in reversed(roots) if name in modules
        ]
        seen: set[int] = set()
        num_left = min(self._num_left.setdefault(package, _MAX_VISITS), self._num_left_of_all)
        while left and num_left > 0:
            num_left -= 1
            self._num_left[package] -= 1
            self._num_left_of_all -= 1
            root, place, value, is_named, depth = left.pop()
            is_kept = _is_of_program(value) or not is_real(value, (type, FunctionType))
            if is_named and (is_kept or place.endswith("]")):  # No attribute that is loaded lazily.
                yield _Leaf(root, place, value)
            if id(value) in seen or depth > _MAX_DEPTH:
                continue
            seen.add(id(value))
            if isinstance(value, dict):
                if len(value) <= _MAX_ENTRIES:
                    left += [
                        (root, f"{place}[{key!r}]", each, is_named or key in names, depth + 1)
                        for key, each in dict.items(value)
                        if type(key) is str
                    ]
                continue
            if not _is_in(value, package):
                continue
            left += [
                (root, f"{place}.{key}", each, is_named or key in names, depth + 1)
                for key, each in list(attributes_of(value).items())
                if type(key) is str and not is_real(each, ModuleType) and not key.endswith("__")
                if not is_patched(place, key)  # Else it is swapped with the ranks' turns.
            ]

    def see(self, program: Program, error: BaseException) -> None:
        """Look at an exception of a rank."""
        key = id(error), id(error.__traceback__)
        if key != self._handled and program.rank is not None:
            self._handled = key
            found = refusal(program.rank, error)
            if found is not None:
                self._note(program, *found)

    def note_refusals(self, errors: Mapping[int, BaseException]) -> None:
        """Look at the exceptions with which ranks have failed."""
        for rank, error in errors.items():
            found = refusal(rank, error)
            if found is not None:
                self.found.setdefault(*found)

    def _note(self, program: Program, package: str, state: RankState) -> None:
        if package not in self.found:
            self.found[package] = state
            if is_small(package):
                _ask_for_restart(program, package, state)

    def conflicts(self) -> list[RankState]:
        """Return the places to which ranks have written different values, one of a package."""
        found = {}
        for place, by_rank in self._written.items():
            state = _conflict(place, by_rank)
            if state is not None:  # The cure is the same.
                found[place.partition(".")[0]] = state
        return list(found.values())


class _Singletons:
    """Objects that one rank puts in place of a package's None, such as the run of a tracker.

    Another rank that reads one in its program would find None in a process. Reads are seen by a
    property of the module's class, from the turn on in which the object was put there.

    Args:
        note: Takes the reader, the package and the finding.
    """

    def __init__(self, note: Callable[[Program, str, RankState], None]) -> None:
        self._note = note
        self._values: dict[tuple[str, str], object] = {}  # Of packages and names; None at first.
        self._ranks: dict[tuple[str, str], int] = {}  # That have put an object there.
        self._watched = Ledger(__name__)

    def look(self, package: str, reads: Collection[str], rank: int) -> None:
        """Note what the turn of a rank has put in place of None."""
        module = sys.modules[package]
        names = attributes_of(module)
        for name in names.keys() & reads:
            key, value = (package, name), names[name]
            if self._values.get(key, value) is value:
                if value is None:
                    self._values[key] = None
                continue
            self._values[key] = value
            if not is_plain(value) and not is_real(value, (type, FunctionType, ModuleType)):
                if key not in self._ranks:
                    self._watch(module, key)
                self._ranks[key] = rank

    def _watch(self, module: ModuleType, key: tuple[str, str]) -> None:
        kind, name = type(module), key[1]

        def get(of: ModuleType) -> Any:  # noqa: ANN401 - any object
            reader = sys._getframe(1).f_code.co_filename  # noqa: SLF001 - the documented way to a frame
            self._see(key, attributes_of(of).get(name), reader)
            try:
                return attributes_of(of)[name]
            except KeyError:
                raise AttributeError(f"module {key[0]!r} has no attribute {name!r}") from None

        names = {name: property(get, lambda of, value: vars(of).__setitem__(name, value))}
        watching = type(kind.__name__, (kind,), names)
        self._watched.replace(module, "__class__", watching, over=True)

    def _see(self, key: tuple[str, str], value: object, reader: str) -> None:
        program, rank = rank_program(), self._ranks[key]
        if program is None or program.rank in (None, rank) or not is_programs_own_file(reader):
            return
        if value is not None and value is self._values[key]:
            assert program.rank is not None, "a rank"
            text = f"read {'.'.join(key)}, which rank {rank} has set: processes have their own"
            text += f"\n    to fix: {cure(key[0])}"
            self._note(program, key[0], RankState((program.rank,), text, waits=False))

    def end(self) -> None:
        """Give modules their classes back."""
        self._watched.restore()


def _ask_for_restart(program: Program, package: str, state: RankState) -> None:
    """Ask the front door for a second start; does not return if it starts again."""
    while program.parent is not None:
        program = program.parent
    restart: Callable[[str, str], None] | None = program.local.get(RESTART)
    if restart is not None:
        restart(package, str(state).partition("\n")[0])


def _join(own: PrivateModules, package: str) -> None:
    """Make a package private that came in this turn, if no other rank can have met it."""
    importers, came = importers_of(frozenset({package})), own.appeared()
    shared = [name for name in importers if not own.is_private(name) and not own.own(name)]
    if {package, *shared} <= set(came):
        own.join([package, *shared])


def _conflict(place: str, by_rank: dict[int, NameSetting]) -> RankState | None:
    """Return the finding about a place to which ranks have written different values."""
    first, *others = by_rank.values()
    other = next((each for each in others if not same(each.value, first.value)), None)
    if other is None:
        return None
    module = next(name for name in _prefixes(place) if name in sys.modules)
    is_number = all(is_real(each.value, (int, float)) for each in by_rank.values())
    if is_number and _counts(sys.modules[module], place.rpartition(".")[2]):
        return None
    return state_of((module, place[len(module) + 1 :]), by_rank, other.site)


def _counts(module: ModuleType, name: str) -> bool:
    """Return whether a module adds to what has a name, as counters do: each process has its own."""
    for code in codes_of(module):
        in_place = False
        for instruction in dis.get_instructions(code):
            stores = instruction.opname in {"STORE_GLOBAL", "STORE_NAME", "STORE_ATTR"}
            if in_place and stores and instruction.argval == name:
                return True
            if instruction.opname == "BINARY_OP":
                in_place = instruction.argrepr.endswith("=")
            elif instruction.opname not in {"SWAP", "COPY", "CACHE"}:
                in_place = False
    return False


def _prefixes(place: str) -> Iterator[str]:
    """Yield the dotted beginnings of a place, the longest first."""
    name = place.partition("[")[0]
    while name:
        yield name
        name = name.rpartition(".")[0]


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


# ---- packages that refuse on one rank what another rank has done ----


def refusal(rank: int, error: BaseException) -> tuple[str, RankState] | None:
    """Return the shared package that refused what another rank had done, and the finding."""
    each: BaseException | None = error
    while each is not None:
        module = [*modules_of_error(each)][-1:]
        if module and is_refusal(each) and _is_shared(module[0]):
            package = module[0].partition(".")[0]
            if _is_about_shared(each, package):
                text = f"{module[0]} refused, as another rank had done the same in it: ranks share"
                text += f" it, and processes have their own\n    to fix: {cure(package)}"
                return package, RankState((rank,), text, waits=False)
        each = each.__cause__
    return None


def _is_shared(module: str) -> bool:
    """Whether a module is of an installed package that ranks share."""
    package = module.partition(".")[0]
    if package in KNOWING or module not in sys.modules or package not in sys.modules:
        return False
    return is_installed(sys.modules[package]) and not is_of_one_rank(sys.modules[module])


def _is_about_shared(error: BaseException, package: str) -> bool:
    """Whether an error is about what a module holds; a rank's own object may refuse, too."""
    objects = []
    for frame in frames_of(error):
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        is_class = is_real(first, (type, ModuleType))
        if first is not None and not is_class and _is_in(first, package):
            objects.append(first)
    return not objects or any(holder_of(each) is not None for each in objects)


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
