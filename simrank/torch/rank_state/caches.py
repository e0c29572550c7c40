"""Caches and trackers of torch, one per rank.

A shared cache would return the current device, or the place in a mesh, of the rank that filled it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import MutableMapping, MutableSet
from importlib import import_module
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from simrank.isolation.private_modules import private_modules
from simrank.isolation.torch_settings import Setting
from simrank.ranks.current import rank_program
from simrank.torch.rank_state.settings import noting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from simrank.ranks import Program

    Patches = list[tuple[Any, str, Any]]


_FAKE_TENSORS, _RANDOM = -2, -3  # Numbers of settings; see there.
_TRACKER = "_rng_tracker"


def of_fake_tensors(module: Any) -> Patches:
    """Return patches that give each rank a cache of fake tensors: "cuda" is its current device."""
    kind: Any = module.FakeTensorMode

    def put(cache: Any) -> None:
        kind.cache = cache

    setting = Setting(kind, (), lambda: kind.cache, put, fresh=dict)
    return [(kind, "__init__", noting(kind.__init__, _FAKE_TENSORS, setting))]


def of_fsdp_profiler(module: Any) -> Patches:
    """Return patches that give each rank FSDP's profilers, which cannot be entered twice."""
    return [(module.SimpleProfiler, "profiling", RankSet("FSDP's profilers"))]


def of_random(module: Any) -> Patches:
    """Return patches that give each rank DTensor's tracker of random numbers."""

    def put(tracker: Any) -> None:
        vars(module)[_TRACKER] = tracker

    setting = Setting(module, (), lambda: vars(module)[_TRACKER], put, fresh=_nothing)
    kind: Any = vars(module)["_RNGStateTracker"]
    return [(kind, "__init__", noting(kind.__init__, _RANDOM, setting))]


def _nothing() -> None:
    """Return None, the tracker of a new rank."""


def of_meshes(module: Any) -> Patches:
    """Return patches that keep the costs of a mesh per rank: a mesh holds its groups."""
    kind: Any = module.MeshTopoInfo
    return [(kind, "build_from_mesh", staticmethod(cached_by_rank(kind.build_from_mesh)))]


def of_redistribution(module: Any) -> Patches:
    """Return patches that plan redistributions per rank: uneven shards depend on the rank."""
    name = "_gen_transform_infos"
    return [
        (module, "_planner_cache", RankDict("DTensor's planners")),
        (module, name, cached_by_rank(vars(module)[name])),
    ]


def cached_by_rank(original: Any) -> Any:
    """Return a cached function with one cache per rank."""
    limit = original.cache_parameters()["maxsize"]
    key = f"cache of {original.__name__}"

    def own() -> Any:
        program = rank_program()
        if program is None:
            return original
        if key not in program.local:
            program.local[key] = functools.lru_cache(limit)(original.__wrapped__)
        return program.local[key]

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return own()(*args, **kwargs)

    names: dict[str, Callable[[], Any]] = {
        "cache_clear": lambda: own().cache_clear(),
        "cache_info": lambda: own().cache_info(),
    }
    vars(call).update(names)
    return call


class RankDict(MutableMapping[Any, Any]):
    """A dict with one instance per rank.

    Args:
        name: What is kept.
        outside: The main program's; None: a new one.
    """

    def __init__(self, name: str, outside: dict[Any, Any] | None = None) -> None:
        self._name = name
        self._outside = {} if outside is None else outside

    def _own(self) -> dict[Any, Any]:
        program = rank_program()
        return self._outside if program is None else program.local.setdefault(self._name, {})

    def __getitem__(self, key: Any) -> Any:
        """Return a value of the running rank."""
        return self._own()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set a value of the running rank."""
        self._own()[key] = value

    def __delitem__(self, key: Any) -> None:
        """Delete a value of the running rank."""
        del self._own()[key]

    def __iter__(self) -> Iterator[Any]:
        """Yield the running rank's keys."""
        return iter(self._own())

    def __len__(self) -> int:
        """Return the number of the running rank's values."""
        return len(self._own())


class RankSet(MutableSet[Any]):
    """A set with one instance per rank.

    Args:
        name: What is kept.
    """

    def __init__(self, name: str) -> None:
        self._members = RankDict(name)

    def __contains__(self, value: object) -> bool:
        """Return whether the running rank's set has a value."""
        return value in self._members

    def __iter__(self) -> Iterator[Any]:
        """Yield the values of the running rank's set."""
        return iter(self._members)

    def __len__(self) -> int:
        """Return the size of the running rank's set."""
        return len(self._members)

    def add(self, value: Any) -> None:
        """Add to the running rank's set."""
        self._members[value] = None

    def discard(self, value: Any) -> None:
        """Remove from the running rank's set."""
        self._members.pop(value, None)


# ---- registries that torch fills once per process ----
# A rank registers under names that another rank has taken. Modules that ranks share, torch's among
# them, register for the process.


def of_registries(module: Any) -> Patches:
    """Return patches of the dicts and lists that a module's functions `register...` fill."""
    names = vars(module)
    functions = [f for n, f in names.items() if "register" in n and isinstance(f, FunctionType)]
    filled = {n for f in functions for n in _names_in(inspect.unwrap(f).__code__) if n in names}
    holders = [v for v in names.values() if type(v).__module__ == module.__name__]
    places = [(module, name, names[name]) for name in sorted(filled)]
    places += [(v, "_registry", vars(v)["_registry"]) for v in holders if "_registry" in vars(v)]
    kinds: dict[type, Any] = {dict: _Registry, list: _RegistryList}
    return [
        (owner, name, kinds[type(value)](f"{module.__name__}.{name}", module.__name__, value))
        for owner, name, value in places
        if type(value) in kinds
    ]


def _names_in(code: CodeType) -> set[str]:
    inner = (_names_in(c) for c in code.co_consts if isinstance(c, CodeType))
    return {*code.co_names}.union(*inner)


def _registering(home: str) -> Program | None:
    """Return the rank that registers something itself; None: torch does, or a shared module."""
    program = rank_program()
    if program is None:
        return None
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - the documented way
    helpers = (home, __name__, "torch.utils._pytree")  # Some take a nest of keys.
    while frame is not None and str(frame.f_globals.get("__name__")) in helpers:
        frame = frame.f_back
    if frame is None or str(frame.f_globals.get("__name__")).startswith("torch."):
        return None
    own = private_modules(program)
    module = None if own is None else own.own(str(frame.f_globals.get("__name__")))
    is_of_rank = module is not None and vars(module) is frame.f_globals
    return program if is_of_rank or frame.f_code.co_name != "<module>" else None


class _Registry(MutableMapping[Any, Any]):
    """A registry of the process, with the entries of the running rank over it.

    Args:
        key: Where a rank keeps its entries.
        home: The module that registers.
        shared: The process's entries.
    """

    def __init__(self, key: str, home: str, shared: dict[Any, Any]) -> None:
        self._key, self._home, self._shared = key, home, shared

    def _own(self) -> dict[Any, Any]:
        program = rank_program()
        return {} if program is None else program.local.get(self._key, {})

    def __getitem__(self, key: Any) -> Any:
        """Return an entry of the running rank or of the process."""
        own = self._own()
        return own[key] if key in own else self._shared[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        """Add an entry for the rank or for the process."""
        program = _registering(self._home)
        own = self._shared if program is None else program.local.setdefault(self._key, {})
        own[key] = value

    def __delitem__(self, key: Any) -> None:
        """Remove an entry."""
        del (own if key in (own := self._own()) else self._shared)[key]

    def __iter__(self) -> Iterator[Any]:
        """Yield the keys."""
        return iter({**self._shared, **self._own()})

    def __len__(self) -> int:
        """Return the number of entries."""
        return len({**self._shared, **self._own()})


class _RegistryList(list[Any]):
    """A list that a process fills; a rank that appends to it has its own from then on."""

    def __init__(self, key: str, home: str, shared: list[Any]) -> None:
        super().__init__(shared)
        self._key, self._home, self._shared = key, home, shared

    def _own(self) -> list[Any]:
        program = rank_program()
        return self._shared if program is None else program.local.get(self._key, self._shared)

    def append(self, value: Any) -> None:
        """Add an entry."""
        program = _registering(self._home)
        if program is None:
            self._shared.append(value)
        else:
            program.local.setdefault(self._key, [*self._shared]).append(value)

    def sort(self, **options: Any) -> None:
        """Sort the entries."""
        self._own().sort(**options)

    def __iter__(self) -> Iterator[Any]:
        """Yield the entries."""
        return iter(self._own())

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._own())


_OPAQUE = "torch._library.opaque_object"
_opaque_of_ranks: set[str] = set()
_IMPORTED_WITH_TORCH = ("torch.serialization", "torch.distributed.rendezvous", _OPAQUE)


def patches() -> Patches:
    """Return patches of the registries that are imported with torch."""
    found = [each for name in _IMPORTED_WITH_TORCH for each in of_registries(import_module(name))]
    return [*found, _of_opaque_types()]


def _of_opaque_types() -> tuple[Any, str, Any]:
    """Return the patch of the registry in C++, which keeps the names of opaque types, too."""
    bindings: Any = import_module("torch._C")
    original = bindings._register_opaque_type  # noqa: SLF001 - torch's name

    @functools.wraps(original)
    def register(name: str) -> None:
        program = _registering(_OPAQUE)
        own = set() if program is None else program.local.setdefault("opaque types", set())
        if program is None or name in own or name not in _opaque_of_ranks:
            original(name)
        own.add(name)
        if rank_program() is not None:  # A package may become private while a rank imports it.
            _opaque_of_ranks.add(name)

    return bindings, original.__name__, register


# ---- How DTensors dispatch operators ----
# torch keeps them in one dictionary of the process. A rank that left its block took them away
# from one that was in the midst of it.

_NAME = "_custom_op_handlers"
_KEY = "handlers of DTensor"  # In `Program.local`.


def of_dtensors(module: Any) -> Patches:
    """Return patches that give each rank the handlers of DTensor's dispatcher."""
    dispatcher: Any = module.DTensor._op_dispatcher  # noqa: SLF001 - torch's name
    return [(type(dispatcher), _NAME, property(_get, _set))]


def _get(dispatcher: Any) -> dict[Any, Any]:
    """Return the rank's dictionary, which C++ reads; it begins as a copy of the process's."""
    program = rank_program()
    outside: dict[Any, Any] = vars(dispatcher)[_NAME]
    if program is None:
        return outside
    own: dict[Any, Any] | None = program.local.get(_KEY)
    if own is None:
        own = program.local[_KEY] = dict(outside)
    return own


def _set(dispatcher: Any, handlers: dict[Any, Any]) -> None:
    program = rank_program()
    if program is None:
        vars(dispatcher)[_NAME] = handlers
    else:
        program.local[_KEY] = dict(handlers)
