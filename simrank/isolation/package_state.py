"""State in installed packages that ranks share: the packages and names of a program.

`package_changes`, which looks into packages, is loaded where a program imports one that counts: it
is installed, not too large, and has no extension, or is a small one with an extension beside its
files. Values count under keys and attributes that the program names, as a text or a target, so
counters and caches of a library do not.
"""

from __future__ import annotations

import dis
import re
import sys
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.engine.callsite import attributes_of, is_real, module_text
from simrank.errors import RankState, SimrankError
from simrank.errors.base import at_text
from simrank.isolation import set_classes
from simrank.isolation.private_importers import homes_in
from simrank.isolation.private_modules import (
    is_of_one_rank,
    modules_of,
    modules_stamp,
    private_modules,
)
from simrank.ranks.current import rank_program
from simrank.ranks.program_modules import KNOWING, PerModule, is_installed, own_modules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from simrank.engine import CallSite, Task
    from simrank.isolation.private_modules import PrivateModules
    from simrank.ranks.current import Program

_STATE = "state of packages"  # In the `local` of ranks.
_PLAIN = (int, float, str, bytes, bool, complex, type(None))
_MAX_BESIDE = 40  # assumed: of a package around an extension, such as a parser
_MAX_MODULES = 400  # assumed: a larger package is no place for settings


class NameSetting(NamedTuple):
    """The value that a rank has set a name to, and the source line."""

    rank: int
    value: object
    site: CallSite | None


# ---- the names of a program: what it imports, writes and reads ----

_CONSTANT = dis.opmap["LOAD_CONST"]
_IMPORT, _STORE = dis.opmap["IMPORT_NAME"], dis.opmap["STORE_ATTR"]
_READS = {dis.opmap[name] for name in ("LOAD_ATTR", "LOAD_METHOD") if name in dis.opmap}
_NAMING = {_IMPORT, _STORE, *_READS}
_READ_BITS = 1 if sys.version_info >= (3, 12) else 0  # The lowest bit of LOAD_ATTR: a method.


class Spoken(NamedTuple):
    """The packages that a program imports; the keys and attributes that it writes, and reads."""

    packages: set[str]
    names: set[str]
    reads: set[str]

    def all_names(self) -> set[str]:
        """Return the names that it writes or reads."""
        return self.names | self.reads

    def add(self, code: CodeType) -> None:
        """Add the names of a code; `dis` takes 2 us for each instruction."""
        opcodes, high, constant, imported = iter(code.co_code), 0, 0, set()
        for opcode, low in zip(opcodes, opcodes, strict=False):
            number, high = high | low, 0
            if opcode == dis.EXTENDED_ARG:
                high = number << 8
            elif opcode == _CONSTANT:
                constant = number
            elif opcode in _NAMING:
                reads = opcode in _READS
                name = code.co_names[number >> _READ_BITS if reads else number]
                if opcode == _IMPORT:
                    imported.add(constant)  # The names that a `from` import takes.
                    self.packages.add(name.partition(".")[0])
                else:
                    (self.reads if reads else self.names).add(name)
        for number, each in enumerate(code.co_consts):
            if isinstance(each, CodeType):
                self.names.add(each.co_name)  # Registries name functions by it.
                self.add(each)
            elif number not in imported:
                texts = each if isinstance(each, tuple) else (each,)
                self.names.update(text for text in texts if isinstance(text, str) and text)


def _spoken_in(module: ModuleType) -> Spoken:
    """Return the names in the functions of a program's module, if it has installed packages."""
    found = Spoken({home.partition(".")[0] for home in homes_in(module)}, set(), set())
    if any(name in sys.modules and is_installed(sys.modules[name]) for name in found.packages):
        for code in codes_of(module):
            found.add(code)
    return found


_spoken_of: PerModule[Spoken] = PerModule(_spoken_in)


def codes_of(module: ModuleType) -> Iterator[CodeType]:
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


# ---- the packages of a Context ----


class PackageState:
    """Sees ranks change the state of packages that they share; one of a Context.

    Args:
        make: Makes the `PackageChanges` of the program's names, once it needs them.
    """

    def __init__(self, make: Callable[[Spoken], Any]) -> None:
        self._make = make
        self._stamps: dict[int, object] = {}  # By rank: some modules are its own.
        self._spoken = Spoken(set(), set(), set())
        self._codes: dict[int, CodeType] = {}  # By id: a hash of a code depends on all of it.
        self._packages: list[str] = []
        self._ranks: set[int] = set()
        self._made: Any = None

    @property
    def _changes(self) -> Any:  # noqa: ANN401 - defined above
        if self._made is None:
            self._made = self._make(self._spoken)
        return self._made

    def imported(self, own: PrivateModules) -> None:
        """Note the state of the packages that the running rank has just imported, as the first."""
        self._learn(own)
        for package in own.appeared():
            if package in self._spoken.packages and _is_watched(package):
                self._changes.imported(package)

    def turn_begins(self, task: Task) -> None:
        """Look at the packages that were imported before the ranks began."""
        if not self._stamps:
            self.look(task)

    def look(self, task: Task) -> None:
        """Look at the packages that the code of the running rank imports, as far as it is known."""
        program = rank_program()
        if program is not None and task.rank is not None:
            self._find(task.rank, private_modules(program))
            for package in self._packages:
                self._changes.look(package, program, task)

    def turn_ends(self, task: Task) -> None:
        """Look at packages, and at the exception that the rank handles."""
        program = rank_program()
        if program is None or task.rank is None:
            return
        own = private_modules(program)
        self._find(task.rank, own)
        if own is not None and self._made is not None and self._made.has_new:
            self._made.join(self._packages, own)
            self._find(task.rank, own)
        if not _runs_alone(program):
            for package in self._packages:
                self._changes.look(package, program, task)
        see_handled(program)
        self._ranks.add(task.rank)

    def _learn(self, own: PrivateModules | None) -> None:
        """Read the names in the code of the running rank's program."""
        for code in () if own is None else own.codes():
            if id(code) not in self._codes:
                self._codes[id(code)] = code
                self._spoken.add(code)
                set_classes.look(code)

    def _find(self, rank: int, own: PrivateModules | None) -> None:
        """Look for packages that the running rank's program imports, and all ranks share."""
        stamp = modules_stamp(), None if own is None else own.names
        if stamp == self._stamps.get(rank):
            return
        self._stamps[rank] = stamp
        self._learn(own)
        for module in own_modules():
            if not is_of_one_rank(module):
                for names, others in zip(self._spoken, _spoken_of(module), strict=True):
                    names.update(others)
        self._packages = [
            name
            for name in sorted(self._spoken.packages - KNOWING)
            if name in sys.modules
            and not (own is not None and own.is_private(name))
            and _is_watched(name)
        ]

    def see(self, program: Program, error: BaseException) -> None:
        """Look at an exception of a rank: a package may refuse what another rank has done."""
        if program.rank is not None and self._ranks - {program.rank}:
            self._changes.see(program, error)

    def note_refusals(self, errors: Mapping[int, BaseException]) -> None:
        """Look at the exceptions with which ranks have failed."""
        if any(map(is_refusal, errors.values())):
            self._changes.note_refusals(errors)

    def conflicts(self) -> list[RankState]:
        """Return the places to which ranks have written different values, one of a package."""
        return [] if self._made is None else self._made.conflicts()

    def report(self) -> list[RankState]:
        """Return conflicts, refusals, and objects of one rank that another rank has read."""
        return [] if self._made is None else [*self.conflicts(), *self._made.found.values()]

    def end(self) -> None:
        """Stop looking at reads."""
        if self._made is not None:
            self._made.singletons.end()


def _runs_alone(program: Program) -> bool:
    """Return whether no other rank shares the process: of one rank, or folded into one."""
    folding = program.context.folding
    return (program.world_size if folding is None else len(folding.running)) == 1


class PackagesOfRank:
    """Looks at packages as the turns of a rank end; a state of the rank, see `libraries`."""

    def __init__(
        self, packages: PackageState, own: PrivateModules | None, program: Program, task: Task
    ) -> None:
        program.local[_STATE] = packages
        if own is not None:
            own.after_import = packages.imported
            own.before_code = partial(packages.look, task)
        self._packages = packages
        self._task = task

    @property
    def turn(self) -> PackagesOfRank:
        """Return self: it observes turns."""
        return self

    def begin(self) -> None:
        """Do nothing: the turn has begun."""

    def end(self) -> None:
        """Do nothing: the turn ends."""

    def enter(self) -> None:
        """Note what is there, before the first turn of all."""
        self._packages.turn_begins(self._task)

    def leave(self) -> None:
        """See what the rank has changed."""
        self._packages.turn_ends(self._task)


def see_handled(program: Program) -> None:
    """Look at the exception that a rank handles, or fails with."""
    error = sys.exc_info()[1]
    packages: PackageState | None = None if error is None else program.local.get(_STATE)
    if error is not None and packages is not None and is_refusal(error):
        packages.see(program, error)


_REFUSAL = re.compile(r"already|duplicat|twice|only one|redefin|re-?regist", re.IGNORECASE)
_OF_OTHERS = (OSError, ImportError, SimrankError, SystemExit)  # Files, and simrank's own errors.


def is_refusal(error: BaseException) -> bool:
    """Return whether an exception, or one of its causes, says that something is there already."""
    each: BaseException | None = error
    while each is not None:
        texts = [type(each).__name__, *(text for text in each.args if isinstance(text, str))]
        if not isinstance(each, _OF_OTHERS) and any(map(_REFUSAL.search, texts)):
            return True
        each = each.__cause__
    return False


def state_of(
    key: tuple[str, str], by_rank: dict[int, NameSetting], site: CallSite | None
) -> RankState:
    """Return the finding about a name; the cure is the last line."""
    module, name = key
    at = at_text(*((None, None) if site is None else site.line()))
    text = f"set {module}.{name}, which they share: processes have their own; set before{at}"
    return RankState(tuple(sorted(by_rank)), f"{text}\n    to fix: {cure(module)}", waits=False)


def modules_of_error(error: BaseException) -> Iterator[str]:
    """Yield the modules whose functions an error went through."""
    for frame in frames_of(error):
        yield str(frame.f_globals.get("__name__"))


def frames_of(error: BaseException) -> Iterator[FrameType]:
    """Yield the frames that an error went through."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def same(value: object, other: object) -> bool:
    """Return whether two values are identical, or equal and immutable."""
    if value is other:
        return True
    return is_plain(value) and is_plain(other) and value == other


def are_alike(value: object, other: object) -> bool:
    """Return whether two functions of ranks have one code, and the same plain values to read."""
    if type(value) is not FunctionType or type(other) is not FunctionType:
        return same(value, other)
    pairs = [(value.__defaults__, other.__defaults__)]
    pairs += zip(
        *([e.cell_contents for e in f.__closure__ or ()] for f in (value, other)), strict=False
    )
    pairs += ((value.__globals__.get(n), other.__globals__.get(n)) for n in value.__code__.co_names)
    if value.__code__ != other.__code__:
        return False
    return all(same(one, two) for one, two in pairs if is_plain(one) or is_plain(two))


def is_plain(value: object) -> bool:
    """Whether a value cannot be changed; a tuple may hold anything, and is compared by identity."""
    if type(value) is tuple or type(value) is frozenset:
        return all(map(is_plain, value))
    return is_real(value, _PLAIN)


def cure(module: str) -> str:
    """Return the setting that gives each rank a module of its own."""
    package = module.partition(".")[0]
    if module == "__main__":
        return "start it with `simrank run`, or hand it to the ranks as an argument"
    return f'[tool.simrank] private = ["{package}"] in pyproject.toml, or --private {package}'


def is_small(package: str) -> bool:
    """Whether a package is installed, and consists of Python files, not too many."""
    found = modules_of(package)
    is_python = not any(map(_is_extension, found.values()))
    return is_python and len(found) <= _MAX_MODULES and is_installed(found[package])


def _is_watched(package: str) -> bool:
    """Whether a package is small, or has few modules, with an extension among them.

    It may be executed twice; where its extension refuses that, ranks share it after all.
    """
    found = modules_of(package)
    is_python = not _is_extension(found[package])
    is_beside = is_python and len(found) <= _MAX_BESIDE and is_installed(found[package])
    return is_beside or is_small(package)


def _is_extension(module: ModuleType) -> bool:
    return (module_text(module, "__file__") or "").endswith((".so", ".pyd"))
