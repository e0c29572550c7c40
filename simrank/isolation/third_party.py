"""Patches of other libraries, applied when a program imports them, and tqdm's bars.

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
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from simrank.ranks.current import rank_program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    Patches = list[tuple[Any, str, Any]]


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
        self._awaited = {*self._names, *more}
        for name in (*self._names, *more):
            if name in sys.modules:
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
