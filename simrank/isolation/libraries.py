"""Libraries with state per process or native thread, and patches at their import.

The layer that knows a library registers it here under its import name. Nothing is imported before
the program has imported the library itself.

Its class keeps the bars that are there, which decides on which line the next one is, and a lock.
`thread_map` takes that lock away after itself, also from another rank that is in the midst of it.
"""

from __future__ import annotations

import functools
import sys
import threading  # noqa: TID251 - simulated while a Context is entered  # noqa: TID251 - asked which thread this is
from importlib.abc import Loader, MetaPathFinder
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable
from weakref import WeakSet

from simrank.errors import UnsupportedError
from simrank.isolation import contracts
from simrank.isolation.deferred_module import DeferredModule
from simrank.ranks.current import rank_program, running_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from simrank.engine.task import Turn
    from simrank.ranks.current import Program

    Patches = list[tuple[Any, str, Any]]


class LibraryState(Protocol):
    """State of a library for one rank; `settings()`, if it has it, yields what the rank has set.

    Attributes:
        turn: What follows the rank's turns: process-wide state that is swapped with them.
    """

    @property
    def turn(self) -> Turn:
        """See above."""

    def begin(self) -> None:
        """Prepare a native thread of the rank; called on it, before its program."""

    def end(self) -> None:
        """Give back what the thread holds; called on it, after its program."""


@runtime_checkable
class ThreadsOfLibrary(Protocol):
    """State that knows native threads of its rank."""

    def lose(self) -> None:
        """Forget them: a fork has lost them."""


class RegisteredLibrary(NamedTuple):
    """A library that needs a stack of its own for each rank: an OS thread.

    Attributes:
        patches: Returns what to replace in it while a Context is entered: owner, name, patch.
        state_of: Makes the state of a rank.
    """

    patches: Callable[[ModuleType], list[tuple[Any, str, Any]]]
    state_of: Callable[[Program], LibraryState]


_libraries: dict[str, Callable[[], RegisteredLibrary]] = {}
_parts: dict[str, Callable[[ModuleType], list[tuple[Any, str, Any]]]] = {}


def register(name: str, load: Callable[[], RegisteredLibrary]) -> None:
    """Register the adapter of a library, which loads once a program imports the library."""
    _libraries[name] = load


def register_part(name: str, patches: Callable[[ModuleType], list[tuple[Any, str, Any]]]) -> None:
    """Register the patches of a module that a program may import: of a library, say."""
    _parts[name] = patches


def names() -> list[str]:
    """Return the import names of the registered libraries."""
    return [*_libraries]


def patched_modules() -> list[str]:
    """Return the registered libraries, and the modules that `register_part` has named."""
    return [*_libraries, *_parts]


def parts() -> dict[str, tuple[str, str]]:
    """Return the modules that `register_part` has named: the adapter's module and function."""
    return {name: make.args for name, make in _parts.items() if isinstance(make, functools.partial)}


def home_of(name: str) -> str:
    """Return the module of simrank that patches a module."""
    make = _parts.get(name)
    return f"simrank.{make.args[0]}" if isinstance(make, functools.partial) else f"simrank.{name}"


def patches(module: ModuleType) -> list[tuple[Any, str, Any]]:
    """Return the patches of an imported library, or of a part of one.

    Raises:
        UnsupportedError: This release of it has other names or parameters than they replace.
    """
    if module.__name__ in _parts:
        return contracts.made(module, _parts[module.__name__])
    _check_package(module.__name__)
    return contracts.made(module, _libraries[module.__name__]().patches)


def _check_package(name: str) -> None:
    """Raise where a file of the program hides a library: `torch.py` beside a script, say.

    Raises:
        UnsupportedError: It does.
    """
    module = sys.modules[name]
    if not hasattr(module, "__path__"):
        file = getattr(module, "__file__", None) or f"a module named {name}"
        raise UnsupportedError(
            f"`import {name}` finds {file}, which hides the installed package {name}\n"
            f"  to fix: rename {file}"
        )


def check_import(name: str) -> None:
    """Reject the first import of a library in a rank that a greenlet carries.

    Raises:
        UnsupportedError: Such a rank imports a registered library.
    """
    if name in _libraries:
        _check_carrier(f"imports {name}", name)


def check_use(name: str) -> None:
    """Reject the use of a library in a rank that a greenlet carries.

    Raises:
        UnsupportedError: Such a rank uses the library.
    """
    _check_carrier(f"uses {name}", name)


def _check_carrier(act: str, name: str) -> None:
    task = running_task()
    if task is not None and task.carrier.thread_id is None:
        raise UnsupportedError(
            f"{task.name} {act}, and its carrier is a greenlet: {name} keeps state per "
            f"native thread\n  to fix: import {name} in the module of the ranks' function, or let "
            'the carrier be a thread: Context(carrier="thread"), `simrank run --carrier thread`'
        )


def in_use() -> list[RegisteredLibrary]:
    """Return the libraries that the program has imported."""
    found = [name for name in _libraries if name in sys.modules]
    for name in found:
        _check_package(name)
    return [_libraries[name]() for name in found]


_STATES = "states of libraries"  # In `Program.local`.


def begin_thread(program: Program) -> list[Callable[[], None]]:
    """Make what the running thread of a rank needs; return the call at its end."""
    states: Sequence[LibraryState] = program.local.get(_STATES, ())
    for state in states:
        state.begin()
    return [state.end for state in reversed(states)]


def lose_threads(program: Program) -> None:
    """Forget the native threads of a rank in a fork, which has none of them."""
    for state in program.local.get(_STATES, ()):
        if isinstance(state, ThreadsOfLibrary):
            state.lose()


class CombinedTurn:
    """Several that follow the turns of one rank; the last to enter leaves first."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = turns
        self._reversed = list(reversed(turns))

    def enter(self) -> None:
        """The rank goes on."""
        for turn in self._turns:
            turn.enter()

    def leave(self) -> None:
        """Others may run."""
        for turn in self._reversed:
            turn.leave()


def keep_states_of_process(
    program: Program, state: LibraryState | None, other: LibraryState | None
) -> Turn | None:
    """Give a process of a rank its own states, with one of them replaced."""
    assert program.process_of is not None, "a process"
    of_rank: Sequence[LibraryState] = program.process_of.local.get(_STATES, ())
    new = [library.state_of(program) for library in in_use()]
    states = [*new, *of_rank[len(new) :]]
    if state is not None and other is not None:
        states = [other if each is state else each for each in states]
    return keep_states(program, states)


def set_by(program: Program) -> Iterator[object]:
    """Yield what a rank has set of libraries, with the names; called in its turn."""
    for state in program.local.get(_STATES, ()):
        settings = getattr(state, "settings", None)
        if settings is not None:
            yield from settings()


def keep_states(program: Program, states: Sequence[LibraryState]) -> Turn | None:
    """Attach states to a rank; return the hooks of its turns."""
    program.local[_STATES] = states
    if len(states) < 2:
        return states[0].turn if states else None
    return CombinedTurn([state.turn for state in states])


# ---- patches of other libraries, applied when a program imports them, and tqdm's bars ----


def tqdm_patches(module: ModuleType) -> list[tuple[Any, str, Any]]:
    """Return the patches of `tqdm.std`."""
    kind: Any = module.__dict__["tqdm"]
    return [(kind, "_lock", threading.RLock()), (kind, "_instances", _BarsOfRank(kind._instances))]  # noqa: SLF001 - there is no public way


class _BarsOfRank:
    """The set of progress bars of the running rank."""

    def __init__(self, outside: WeakSet[Any]) -> None:
        self._outside = outside

    def _own(self) -> WeakSet[Any]:
        program = rank_program()
        if program is None:
            return self._outside
        own: WeakSet[Any] = program.local.setdefault("bars of tqdm", WeakSet())
        return own

    def __iter__(self) -> Iterator[Any]:
        return iter(self._own())

    def __len__(self) -> int:
        return len(self._own())

    def __contains__(self, bar: object) -> bool:
        return bar in self._own()

    def add(self, bar: object) -> None:
        """Add a bar."""
        self._own().add(bar)

    def remove(self, bar: object) -> None:
        """Remove a bar; KeyError if it is not there."""
        self._own().remove(bar)

    def copy(self) -> WeakSet[Any]:
        """Return the bars, for the thread that looks every 10 s whether one stands still."""
        return self._own().copy()


# ---- State that Hypothesis keeps per thread ----
# Ranks share a thread. With its own idea of what runs on that thread, Hypothesis takes a
# property of one rank for nested in another's. A rank starts with none of its caller's, as a
# process would.


def of_variables(module: ModuleType) -> Patches:
    """Return the patches of Hypothesis's dynamically scoped variables."""
    kind = module.__dict__["DynamicVariable"]

    def data(self: Any) -> Any:  # noqa: ANN401 - a variable and its storage
        program = rank_program()
        if program is None:
            return vars(self)["data"]
        return program.local.setdefault(f"hypothesis {id(self)}", SimpleNamespace())

    return [(kind, "data", property(data, lambda self, value: vars(self).update(data=value)))]


def of_thread_locals(module: ModuleType) -> Patches:
    """Return the patches of Hypothesis's thread-local objects."""
    kind = module.__dict__["ThreadLocal"]
    original_get: Callable[..., Any] = kind.__getattr__
    original_set: Callable[..., None] = kind.__setattr__

    @functools.wraps(original_get)
    def get(self: Any, name: str) -> Any:  # noqa: ANN401 - any attribute
        program = rank_program()
        makers = vars(self).get("_ThreadLocal__kwargs", {})
        if program is None or name not in makers:
            return original_get(self, name)
        return program.local.setdefault(f"hypothesis {id(self)} {name}", makers[name]())

    @functools.wraps(original_set)
    def put(self: Any, name: str, value: object) -> None:  # noqa: ANN401 - any attribute
        program = rank_program()
        if program is None or name not in vars(self).get("_ThreadLocal__kwargs", {}):
            original_set(self, name, value)
        else:
            program.local[f"hypothesis {id(self)} {name}"] = value

    return [(kind, "__getattr__", get), (kind, "__setattr__", put)]


class _Threading:
    """The module `threading` in which each rank is a thread."""

    @staticmethod
    def get_ident() -> int:
        """Return a number that no other thread or rank has."""
        program = rank_program()
        return threading.get_ident() if program is None else id(program)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any value
        """Return an attribute of the module."""
        return getattr(threading, name)


def of_core(module: ModuleType) -> Patches:
    """Return the patches of Hypothesis's checks for concurrent calls."""
    return [(module, "threading", _Threading())] if "threading" in vars(module) else []


# ---- import hooks: patches of modules that are applied when a program imports them ----


class ImportWatcher(MetaPathFinder):
    """Calls `install` for modules that are imported while it is on `sys.meta_path`.

    Args:
        names: Which ones.
        install: Called with each, as soon as it is there, and with whether that was late.
        check: Called with a name before anything of the module is executed; it may raise.
    """

    def __init__(
        self,
        names: Mapping[str, object],
        install: Callable[[ModuleType, bool], None],
        check: Callable[[str], None] | None = None,
    ) -> None:
        self._names, self._install, self._check = names, install, check
        self._awaited: set[str] = set()
        self._is_asking = False

    def watch(self, more: Sequence[str] = ()) -> None:
        """Install what is there, and wait for the rest and for `more`."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        names = dict.fromkeys((*self._names, *more))
        self._awaited = {*names}
        for name in names:
            if name in sys.modules and not isinstance(sys.modules[name], DeferredModule):
                self._install(sys.modules[name], False)

    def stop(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, with the installation after its execution."""
        del path, target
        if fullname not in self._awaited or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = find_spec(fullname)
        finally:
            self._is_asking = False
        if spec is None or spec.loader is None:
            return spec
        if self._check is not None:
            self._check(fullname)
        spec.loader = _Then(spec.loader, self._installed)
        return spec

    def _installed(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            self._install(module, True)


class _Then(Loader):
    """Loads a module as its own loader does, which others may share, and then calls `then`."""

    def __init__(self, loader: Any, then: Callable[[ModuleType], None]) -> None:  # noqa: ANN401 - a loader
        self._loader, self._then = loader, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module as its own loader does."""
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Execute it, and leave its own loader in its place."""
        assert module.__spec__ is not None, "it has been found"
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any value
        """Return an attribute of the module's own loader."""
        return getattr(self._loader, name)
