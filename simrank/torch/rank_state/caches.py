"""Caches and trackers of torch, one per rank.

A shared cache would return the current device, or the place in a mesh, of the rank that filled it.
"""

from __future__ import annotations

import functools
from collections.abc import MutableMapping, MutableSet
from typing import TYPE_CHECKING, Any

from simrank.ranks.current import rank_program
from simrank.torch import unsupported
from simrank.torch.rank_state.settings import Setting, noting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Patches = list[tuple[Any, str, Any]]


_FAKE_TENSORS, _RANDOM = -2, -3  # Numbers of settings; see there.
_TRACKER = "_rng_tracker"


def of_fake_tensors(module: Any) -> Patches:
    """Return patches that give each rank a cache of fake tensors: "cuda" is its current device."""
    kind: Any = module.FakeTensorMode

    def put(cache: Any) -> None:
        kind.cache = cache

    setting = Setting(kind, (), lambda: kind.cache, put, fresh=dict)
    own = (kind, "__init__", noting(kind.__init__, _FAKE_TENSORS, setting))
    return [own, *unsupported.of_fake_tensors(module)]


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


def of_redistribution(module: Any) -> Patches:
    """Return patches that plan redistributions per rank: uneven shards depend on the rank."""
    name = "_gen_transform_infos"
    return [
        (module, "_planner_cache", RankDict("DTensor's planners")),
        (module, name, _cached_by_rank(vars(module)[name])),
    ]


def _cached_by_rank(original: Any) -> Any:
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
