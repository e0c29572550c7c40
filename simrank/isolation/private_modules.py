"""Private modules: each rank executes them for itself, with own globals and classes.

Their code is read once. While a rank has the turn, `sys.modules` holds its own copies; a rank that
is carried by a greenlet shares the modules of all. What a rank spawns has copies of its own again.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import NamespaceLoader, SourceFileLoader
from importlib.util import find_spec, module_from_spec
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from simrank.engine.callsite import attributes_of, is_real, module_text
from simrank.isolation import finalizers
from simrank.ranks.current import comparisons_of, rank_program
from simrank.ranks.program_modules import KNOWING, is_programs_own, is_programs_own_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from importlib.machinery import ModuleSpec
    from types import CodeType

    from simrank.isolation.private_importers import Main
    from simrank.ranks.current import Program

_KEY = "private modules"
_codes: dict[tuple[str, str], CodeType] = {}
_locks: dict[str, object] = importlib._bootstrap._module_locks  # type: ignore[attr-defined]  # noqa: SLF001 - one for each module that is being imported


def is_within(names: frozenset[str], name: str) -> bool:
    """Return whether a module is one of some packages and modules, or in one."""
    if name in names:
        return True
    package, dot, _ = name.rpartition(".")
    return bool(dot) and is_within(names, package)


def register_reader(loader: type, read: Callable[[Any, str, str], CodeType]) -> None:
    """Register a function that reads the code of modules of one kind of loader."""
    _readers[loader] = read


_readers: dict[type, Callable[[Any, str, str], CodeType]] = {
    SourceFileLoader: lambda loader, name, _: loader.get_code(name),
}


_of_one_rank: WeakSet[ModuleType] = WeakSet()
_verdicts: dict[frozenset[str], dict[str, bool]] = {}
_looked: dict[frozenset[str], tuple[object, list[str]]] = {}  # Stamp, and private names then.


def _take(names: Iterable[str]) -> dict[str, ModuleType]:
    """Remove modules, and return those that were there."""
    modules = sys.modules
    return {name: modules.pop(name) for name in names if name in modules}


class PrivateModules:
    """The modules that one rank has executed for itself; a state of the rank, see `libraries`.

    Args:
        program: The rank.
        names: Packages and modules that are private, with all modules in them.
        is_own_private: Whether modules of the program's own, of any name, are private too.
        is_swapped: Whether it follows the rank's turns. A rank that is carried by a greenlet has
            its script alone, and not in `sys.modules`.

    Attributes:
        main: The script that the rank runs, or None.
        parent: Those of the rank that spawned it; None if it began with none or with all of them.
        begins_with: The script that it executes first, as processes that are spawned do, or None.
        after_import: Is called with this as a package has been imported, the first of all ranks.
        before_code: Is called before the rank executes its script, or code that `add` was given.
    """

    def __init__(
        self,
        program: Program,
        names: frozenset[str],
        *,
        is_own_private: bool,
        is_swapped: bool = True,
    ) -> None:
        self.is_swapped = is_swapped
        if not is_swapped:
            program.local[_KEY] = self
        self.main: Main | None = None
        self.parent: PrivateModules | None = None
        self.begins_with: Main | None = None
        self.after_import: Callable[[PrivateModules], None] | None = None
        self.before_code: Callable[[], None] | None = None
        self._program = program
        self._asked = names
        self._look_again()
        self.is_own_private = is_own_private
        self._own: dict[str, ModuleType] = {}
        self._others: dict[str, ModuleType] = {}
        self._outside: dict[str, None] = {}  # Names of private modules that others have.
        self._inside: object = None  # What `modules_stamp` was when they were looked at.
        self._outside_stamp: object = None
        self._seams = SubmoduleBindings(self.is_shared)
        self._locks: dict[str, object] = {}
        self._coming: dict[str, int] = {}  # Packages that are being imported -> turns before.
        self._came: dict[str, int] = {}  # Packages that the rank was first to import, likewise.
        self._num_turns = 0

    def compared(self, code: CodeType) -> CodeType:
        """Return the code as the rank runs it: in folded runs it records comparisons of numbers."""
        recorder = comparisons_of(self._program)
        return code if recorder is None else recorder.recording(code)

    def _look_again(self) -> None:
        """Take in the packages that have joined."""
        self._changes = num_joined[0]
        self.names = self._asked
        if self.is_swapped:
            self.names |= joined_packages(self._program.context)
        # All of `sys.modules` is asked about, of every rank.
        self._verdicts = _verdicts.setdefault(self.names, {})
        self._quiet: object = None  # The stamp without private modules.

    def inherit(self, parent: PrivateModules, method: str) -> None:
        """Inherit modules from the parent rank; a forked process keeps them.

        Any other has none at first, and finds them where the rank has found them.
        """
        if method == "fork":
            self.main, self._own = parent.main, dict(parent._own)
            self._seams.note(self._own)
        else:
            self.parent, self.begins_with = parent, parent.main

    def spec_of(self, name: str) -> ModuleSpec | None:
        """Return the path of a rank's private module, or None."""
        spec: ModuleSpec | None = getattr(self._own.get(name), "__spec__", None)
        return spec

    def of_process(self, program: Program) -> PrivateModules:
        """Return those of a process that the rank spawns."""
        made = PrivateModules(program, self.names, is_own_private=self.is_own_private)
        made.inherit(self, "spawn")
        return made

    @property
    def has_any(self) -> bool:
        """Whether the rank has executed anything for itself."""
        return bool(self._own)

    @property
    def turn(self) -> PrivateModules:
        """Return self: it observes turns."""
        return self

    def begin(self) -> None:
        """Do nothing: the first import fills it."""

    def end(self) -> None:
        """Do nothing: the copies die with the rank."""

    def enter(self) -> None:
        """Put the rank's modules in place of the shared ones."""
        self._program.local[_KEY] = self
        if self._changes != num_joined[0]:
            self._look_again()
        modules, stamp = sys.modules, modules_stamp()
        if stamp == self._quiet:
            return
        if stamp != self._outside_stamp:
            self._outside = dict.fromkeys({*self._private_now(stamp), *self._outside})
            self._seams.note(self._outside)
        if not (self._outside or self._own or self._locks):  # Nearly always.
            self._quiet = self._inside = self._outside_stamp = stamp
            return
        self._quiet = None
        self._others = _take(self._outside)
        modules.update(self._own)
        self._seams.enter(self._own, self._others)
        if self._locks:
            _locks.update(self._locks)
        self._inside = modules_stamp()

    def leave(self) -> None:
        """Take the rank's modules out again, and what it is in the midst of importing."""
        self._num_turns += 1
        modules, stamp = sys.modules, modules_stamp()
        if stamp == self._quiet:
            return
        self._quiet = None
        if stamp != self._inside:
            self._own |= {n: m for n, m in list(modules.items()) if self.is_private(n)}
            self._seams.note(self._own)
        self._seams.leave(self._own, self._others)
        self._own = _take(self._own)
        modules.update(self._others)
        self._outside_stamp = modules_stamp()
        self._locks = {}
        if _locks:
            mine = [name for name in list(_locks) if self.is_private(name) or name in self._own]
            self._locks = {name: _locks.pop(name) for name in mine}

    def _private_now(self, stamp: object) -> list[str]:
        """Return the private ones of all names; looking at every name takes 0.1 ms.

        Meanwhile a thread that is none of a rank's may import something.
        """
        looked = _looked.get(self.names)
        if looked is None or looked[0] != stamp:
            names = [name for name in list(sys.modules) if self.is_private(name)]
            looked = _looked[self.names] = stamp, names
        return looked[1]

    def add(self, name: str, module: ModuleType, code: CodeType | None = None) -> None:
        """Note a module in `sys.modules` as the rank's own, and the code that it will execute."""
        self._own[name] = module
        if code is not None:
            _codes[name, module_text(module, "__file__") or ""] = code
        self._seams.note((name,))
        self._quiet = None
        _of_one_rank.add(module)
        if code is not None and self.before_code is not None:
            self.before_code()

    @contextmanager
    def importing(self, package: str) -> Iterator[None]:
        """Make a package private that imports from a private one, while the rank imports it.

        Not if others had their turns meanwhile: they may have met it, and get the error at the end.
        """
        if package in self._coming:  # It imports itself again: an extension of the same name.
            yield
            return
        self._coming[package] = self._came[package] = self._num_turns
        try:
            yield
            if self.is_private(package) or any(map(self.held_by, modules_of(package).values())):
                self._let_join(package)
        finally:
            del self._coming[package]
        if self.after_import is not None and not self._coming:
            self.after_import(self)

    def appeared(self) -> list[str]:
        """Return the packages that the rank has imported in this turn, the first of all ranks."""
        return [name for name, turn in self._came.items() if turn == self._num_turns]

    def join(self, packages: Sequence[str]) -> None:
        """Make packages private that no other rank has met."""
        for name in packages:
            join_private(self._program.context, name, modules_of(name))
        self._look_again()
        for name in packages:
            self._take_over(name)

    def share_first(self, package: str) -> bool:
        """Give the rank the modules of the rank from which a package joined, if it did so."""
        first = _first.get(self._program.context, {}).get(package)
        if first is None:
            return False
        for name in modules_of(package):
            del sys.modules[name]
            self._own.pop(name, None)
        sys.modules.update(first)
        for name, module in first.items():
            self.add(name, module)
        return True

    def may_join(self, name: str) -> bool:
        """Whether no other rank has met the package of a module that the rank is to import."""
        package, dot, _ = name.partition(".")
        if not self.is_swapped or package in KNOWING or not may_join_private(package):
            return False
        return not dot or self._came.get(package) == self._num_turns

    def imports_private(self) -> None:
        """Make the packages under import private, as one of them imports a private one."""
        for package in self._coming:
            if not self.is_private(package):
                self._let_join(package)

    def _let_join(self, package: str) -> None:
        """Make a package private that no other rank has met; its modules become the rank's."""
        if not self.is_private(package):
            if self._coming[package] != self._num_turns:
                return
            join_private(self._program.context, package)
            self._look_again()
        self._take_over(package)

    def _take_over(self, package: str) -> None:
        for name, module in modules_of(package).items():
            self.add(name, module)
            finalizers.keep(vars(module))

    def held_by(self, module: ModuleType) -> str | None:
        """Return the private package from which a shared module holds an object, or None."""
        if not self._own:
            return None
        for value in list(attributes_of(module).values()):
            if is_real(value, ModuleType):
                is_module, of = True, module_text(value, "__name__")
                name = of or ""
            elif is_real(value, (type, FunctionType)):
                is_module, of, name = False, value.__module__, value.__name__
            else:
                continue
            owner = None if type(of) is not str else self._own.get(of)
            if of is None or owner is None or not self.is_private(of):
                continue
            if value is (owner if is_module else attributes_of(owner).get(name)):
                return of if is_module else f"{of}.{name}"
        return None

    def put(self, name: str, module: ModuleType) -> None:
        """Add a module to the rank's own under a name."""
        if self.is_swapped:
            if name in sys.modules:
                self._outside[name] = None
                self._others[name] = sys.modules[name]
            sys.modules[name] = module
        self.add(name, module)

    def codes(self) -> Iterator[CodeType]:
        """Yield the code of the script and of the program's modules that the rank has executed."""
        if self.main is not None:
            yield self.main.code
        for name, module in self._own.items():
            if is_programs_own(module):
                code = _codes.get((name, module_text(module, "__file__") or ""))
                if code is not None:
                    yield code

    def own(self, name: str) -> ModuleType | None:
        """Return a module that the rank has for itself, or None."""
        found = sys.modules.get(name) if self.is_swapped else self._own.get(name)
        return found if is_real(found, ModuleType) and is_of_one_rank(found) else None

    def is_private(self, name: str) -> bool:
        """Return whether a module of this name is to be executed for the rank alone."""
        found = self._verdicts.get(name)
        if found is None:
            found = self._verdicts[name] = is_within(self.names, name)
        return found

    def is_shared(self, name: str) -> bool:
        """Return whether the rank has no module of this name for itself, and is to have none."""
        return name not in self._own and not self.is_private(name)

    def import_module(self, name: str) -> ModuleType:
        """Return the rank's own copy of a private module, executed now if there is none."""
        outside = self._others.get(name)
        if name in self._own or outside is None or outside.__spec__ is None:
            return importlib.import_module(name)
        # Its first importer may have found it in ways of its own, as pytest does.
        module = module_from_spec(outside.__spec__)
        sys.modules[name] = module
        _OncePerRank(self, outside.__spec__).exec_module(module)
        return module


class PrivateFinder(MetaPathFinder):
    """Finds modules as usual, and lets those that are private be executed once per rank."""

    def __init__(self) -> None:
        self._is_asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a private module, executed from code that is read once."""
        del path, target
        program = rank_program()
        own: PrivateModules | None = None if program is None else program.local.get(_KEY)
        if own is None or self._is_asking:
            return None
        known = None if own.parent is None else own.parent.spec_of(fullname)
        if known is not None:
            known = copy(known)
            known.loader = _OncePerRank(own, known)
            return known
        is_private = own.is_private(fullname)
        may_join = own.may_join(fullname)
        if not (is_private or may_join or own.is_own_private):
            return None
        self._is_asking = True
        try:
            spec = find_spec(fullname)
        finally:
            self._is_asking = False
        files = _files_of(spec)
        if spec is None or spec.loader is None:
            return spec
        is_own = own.is_own_private and bool(files) and all(map(is_programs_own_file, files))
        if is_private:
            own.imports_private()
        if is_private or is_own:
            spec.loader = _OncePerRank(own, spec)
        elif may_join:
            spec.loader = Watching(spec, partial(own.importing, fullname.partition(".")[0]))
        else:
            return None
        return spec


def _files_of(spec: ModuleSpec | None) -> list[str | None]:
    """Return a module's file; of a package without one its folders, which gets a loader.

    Such a package asks the one around it, which may be the rank's own, where they are.
    """
    if spec is None or spec.has_location:
        return [] if spec is None else [spec.origin]
    path: Any = spec.submodule_search_locations
    if path is None or spec.loader is not None:
        return []
    spec.loader = NamespaceLoader(spec.name, [*path], path._path_finder)  # noqa: SLF001 - Python's
    return [*path]


class _OncePerRank(Loader):
    """Loads a private module as its own loader does, from code that is read once.

    Attributes:
        of: The modules of the rank that executes it.
        inner: Its own loader.
    """

    def __init__(self, own: PrivateModules, spec: ModuleSpec) -> None:
        assert spec.loader is not None, "there is something to execute"
        self.of = own
        # A rank around this one may have the module for itself, too.
        inner = spec.loader.inner if isinstance(spec.loader, _OncePerRank) else spec.loader
        self.inner: Any = inner
        self._key = (spec.name, spec.origin or "")

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any value
        """Return an attribute of the module's own loader."""
        return getattr(self.inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module as its own loader does."""
        made: ModuleType | None = self.inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Execute it for the running rank."""
        self.of.add(self._key[0], module)
        read = _readers.get(type(self.inner))
        try:
            if read is None:
                self.inner.exec_module(module)
            else:
                if self._key not in _codes:
                    _codes[self._key] = read(self.inner, *self._key)
                code = self.of.compared(_codes[self._key])
                exec(code, module.__dict__)  # noqa: S102 - that is what an import does
        except Exception:  # It registers with an extension, say, once in a process.
            if not self.of.share_first(self._key[0].partition(".")[0]):
                raise
        finalizers.keep(module.__dict__)


def private_modules(program: Program) -> PrivateModules | None:
    """Return the modules that a rank has for itself; None if it shares all."""
    own: PrivateModules | None = program.local.get(_KEY)
    return own


def modules_stamp() -> object:
    """Return a cheap value that changes with every new name in `sys.modules`."""
    return len(sys.modules), next(reversed(sys.modules))


def is_of_one_rank(module: ModuleType) -> bool:
    """Return whether a module was executed for one rank alone."""
    return module in _of_one_rank


def name_of(value: object, name: str | None = None) -> tuple[str, str] | None:
    """Return the module and the name of what the running rank alone has; None if it has no such.

    Args:
        value: A function or class, say.
        name: Its name in the module; None: it knows it.
    """
    own, home = _of_running(), getattr(value, "__module__", None)
    if own is None or not isinstance(home, str):
        return None
    return _place_in(own.own(home), value, name)


def place_within(
    names: frozenset[str], value: object, name: str | None = None
) -> tuple[str, str] | None:
    """Return the module and the name of what the main program has of modules that are private.

    Args:
        names: Those modules, and packages of them.
        value: A function or class, say.
        name: Its name in the module; None: it knows it.
    """
    home = getattr(value, "__module__", None)
    if not isinstance(home, str) or not is_within(names, home):
        return None
    return _place_in(sys.modules.get(home), value, name)


def _place_in(module: ModuleType | None, value: object, name: str | None) -> tuple[str, str] | None:
    found: Any = module
    name = name or str(getattr(value, "__qualname__", ""))
    for part in name.split("."):
        found = getattr(found, part, None)
    return (str(getattr(value, "__module__", "")), name) if found is value else None


def find(module: str, name: str) -> Any:  # noqa: ANN401 - a function or class
    """Return the running program's object of a module and a name."""
    own, found = _of_running(), None
    if own is None and module == "__mp_main__":  # A class of the program, as ranks execute it.
        module = "__main__"
    if own is not None and not own.is_swapped:
        found = own.own(module)
    if found is None:
        is_own = own is not None and own.is_private(module)
        found = (own if own is not None and is_own else importlib).import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def reference(
    names: frozenset[str], value: object, name: str | None = None
) -> tuple[Callable[..., Any], tuple[str, str]] | None:
    """Return the call that finds an object by name on the rank that receives it, or None.

    Args:
        names: Modules of the main program that each rank has for itself.
        value: A function or class, say.
        name: Its name in the module; None: it knows it.
    """
    place = name_of(value, name) or place_within(names, value, name)
    return None if place is None else (find, place)


def take_class_here(error: BaseException) -> None:
    """Make an error that a rank has raised one of the running program's class of that name.

    The wait for ranks looks for the classes that it knows; copies that it cannot stand for stay.
    """
    own, kind = _of_running(), type(error)
    home = "__main__" if own is None and kind.__module__ == "__mp_main__" else kind.__module__
    found: Any = (None if own is None else own.own(home)) or sys.modules.get(home)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and found is not kind:
        with suppress(TypeError):  # It is laid out otherwise.
            error.__class__ = found


def _of_running() -> PrivateModules | None:
    program = rank_program()
    return None if program is None else private_modules(program)


def own_copy(value: Any) -> Any:  # noqa: ANN401 - a function or class
    """Return the running rank's own copy of a function or class of a private module."""
    own = _of_running()
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", "<locals>")
    if not isinstance(getattr(value, "__self__", value), type | type(value)):
        return value  # A method of an object.
    if own is None or module is None or not own.is_private(module) or "<locals>" in name:
        return value
    found: Any = own.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def is_of_another_rank(kind: type) -> bool:
    """Return whether another rank has defined a class, in its copy of a private module.

    Globals of a class's methods are those of the module that defined it, also within a function. A
    class without methods is compared with the module's class of its name.
    """
    own = _of_running()
    if own is None:
        return False
    home = kind.__module__
    module, names = own.own(home), _globals_of(kind)
    loader = None if names is None else getattr(names.get("__spec__"), "loader", None)
    if isinstance(loader, _OncePerRank):
        return loader.of is not own
    if module is None:
        return own.is_private(home)
    if names is None:
        return "<locals>" not in kind.__qualname__ and _place_in(module, kind, None) is None
    return names is not vars(module)


def _globals_of(kind: type) -> dict[str, Any] | None:
    """Return the globals of a class's own methods; None if it has none."""
    for value in vars(kind).values():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        while is_real(function, FunctionType):
            if function.__globals__.get("__name__") == kind.__module__:
                return function.__globals__
            function = getattr(function, "__wrapped__", None)
    return None


FINDER = PrivateFinder()

# ---- How private modules stand in packages that all ranks share ----


class SubmoduleBindings:
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
        """Bind this rank's submodules in their packages."""
        self._put(own, others)

    def leave(self, own: Mapping[str, ModuleType], others: Mapping[str, ModuleType]) -> None:
        """Bind the shared submodules in their packages."""
        self._put(others, own)

    def _put(self, these: Mapping[str, ModuleType], those: Mapping[str, ModuleType]) -> None:
        for name, (package, last) in self._names.items():
            holder = sys.modules.get(package)
            if holder is not None and name in these:
                vars(holder)[last] = these[name]
            elif holder is not None and vars(holder).get(last) is those.get(name, holder):
                del vars(holder)[last]


# ---- Packages that join the private ones ----
# A module that imports `transformers` at its top holds its classes, and would hold the first
# rank's for all. It joins as it imports a private package, or once it is imported and holds
# something of one: no other rank has met it by then.

_joined: WeakKeyDictionary[object, frozenset[str]] = WeakKeyDictionary()  # By Context.
_first: WeakKeyDictionary[object, dict[str, dict[str, ModuleType]]] = WeakKeyDictionary()
num_joined = [0]  # How often a package has joined: ranks look again if it was since they looked.


def join_private(context: object, package: str, first: dict[str, ModuleType] | None = None) -> None:
    """Make a package private for all ranks; those that cannot execute it share `first`."""
    _joined[context] = joined_packages(context) | {package}
    if first is not None:
        _first.setdefault(context, {})[package] = first
    num_joined[0] += 1


def joined_packages(context: object) -> frozenset[str]:
    """Return the packages that have joined in a Context."""
    return _joined.get(context, frozenset())


def may_join_private(name: str) -> bool:
    """Return whether a module that is to be imported is a whole package, or a module of its own."""
    return "." not in name and name not in sys.stdlib_module_names


def modules_of(package: str) -> dict[str, ModuleType]:
    """Return a package and all modules in it that are imported, by name."""
    modules, names = sys.modules, _names_by_package().get(package, ())
    found = [(name, modules.get(name)) for name in names]
    return {name: module for name, module in found if is_real(module, (ModuleType,))}


_by_package: dict[str, list[str]] = {}
_by_package_at: list[object] = [None]  # What `modules_stamp` was then.


def _names_by_package() -> Mapping[str, Sequence[str]]:
    """Return the names in `sys.modules` by package; to look at all of them takes milliseconds."""
    stamp = modules_stamp()
    if _by_package_at[0] != stamp:
        _by_package.clear()
        for name in list(sys.modules):
            _by_package.setdefault(name.partition(".")[0], []).append(name)
        _by_package_at[0] = stamp
    return _by_package


class Watching(Loader):
    """Loads a package with its own loader, within a context manager.

    Args:
        spec: The package's; it gets its own loader back.
        watch: Is entered while it is executed.
    """

    def __init__(self, spec: ModuleSpec, watch: Callable[[], AbstractContextManager[None]]) -> None:
        assert spec.loader is not None, "there is something to execute"
        self._inner: Any = spec.loader
        self._spec = spec
        self._watch = watch

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any value
        """Return an attribute of the module's own loader."""
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
