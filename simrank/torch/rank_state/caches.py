"""Caches and trackers of torch, one per rank.

A shared cache would return the current device, or the place in a mesh, of the rank that filled it.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import MutableMapping, MutableSet
from typing import TYPE_CHECKING, Any

import torch

from simrank.ranks.current import rank_program
from simrank.torch import unsupported
from simrank.torch.rank_state.settings import Setting, noting

if TYPE_CHECKING:
    from collections.abc import Callable

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


# ---- shared results of DTensor's sharding propagation, for ranks whose meshes are alike ----
# A process has one cache per thread, so each rank would repeat the same search: four fifths of a
# step of a large model without values. It depends on the operator, the placements and the shapes of
# its arguments, and the shape of the mesh; not on which ranks the mesh has. Two things do depend on
# the rank, and are not shared: local shapes where shards are uneven, and placements with a state.

_SHARDINGS = "DTensor's shardings"
_MOST_KEPT = 1 << 14  # Assumed: a step of a large model has a few hundred.


def of_sharding(module: Any) -> list[tuple[Any, str, Any]]:
    """Return the patch of DTensor's search for shardings."""
    kind = module.ShardingPropagator
    name = "propagate_op_sharding_non_cached"
    return [(kind, name, _Shared(module).wrap(getattr(kind, name)))]


_Kept = dict[Any, tuple[Any, list[Any]]]  # A result, and the meshes that it mentions.


class _Unshared(Exception):  # noqa: N818 - a signal, not an error
    """Something depends on the rank."""


class _Shared:
    """The results of all ranks, by what they depend on."""

    def __init__(self, module: Any) -> None:
        self._spec = module.DTensorSpec
        self._schema = module.OpSchema

    def wrap(self, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Return the search, with results shared among ranks."""

        @functools.wraps(original)
        def find(propagator: Any, schema: Any) -> Any:
            program = rank_program()
            if program is None or _is_of_rank(propagator, schema):
                return original(propagator, schema)
            context: Any = program.context
            kept: _Kept = context.program.local.setdefault(_SHARDINGS, {})
            meshes: list[Any] = []
            try:
                of_args = self._key(schema.args_schema, meshes)
                key = (schema.op, of_args, self._key(schema.kwargs_schema, meshes))
                found = kept.get(key)
            except (_Unshared, TypeError):  # TypeError: something cannot be hashed.
                return original(propagator, schema)
            if found is None:
                result = original(propagator, schema)
                if self._can_be_shared(result, meshes):
                    if len(kept) >= _MOST_KEPT:
                        kept.clear()
                    kept[key] = (result, meshes)
                return result
            return self._with_meshes(*found, meshes)

        return find

    def _key(self, value: Any, meshes: list[Any]) -> Any:
        """Return the key of a value, and append the meshes that it mentions."""
        if isinstance(value, self._spec):
            _check_stateless(value.placements)
            order = None if value.use_strided_shard_as_shard_order else value.shard_order
            return (self._number(value.mesh, meshes), value.placements, value.tensor_meta, order)
        if type(value) in (list, tuple):
            return (type(value), *(self._key(each, meshes) for each in value))
        if type(value) is dict:
            return tuple((name, self._key(each, meshes)) for name, each in value.items())
        if isinstance(value, torch.Tensor) or hasattr(value, "mesh") or hasattr(value, "_layout"):
            raise _Unshared
        return (type(value), value)

    @staticmethod
    def _number(mesh: Any, meshes: list[Any]) -> Any:
        for number, known in enumerate(meshes):
            if known is mesh:
                return number
        meshes.append(mesh)
        return (len(meshes), mesh._layout, mesh._device_type, mesh._mesh_dim_names)  # noqa: SLF001

    def _can_be_shared(self, result: Any, meshes: list[Any]) -> bool:
        try:
            self._with_meshes(result, meshes, meshes)
        except _Unshared:
            return False
        return True

    def _with_meshes(self, result: Any, before: list[Any], now: list[Any]) -> Any:
        """Return a result of one rank as another one's."""
        own = {id(old): new for old, new in zip(before, now, strict=True)}
        made = copy.copy(result)
        made.__dict__.pop("mesh", None)  # A cached property.
        made.output_spec = self._as_own(result.output_spec, own)
        made.redistribute_schema = self._as_own(result.redistribute_schema, own)
        return made

    def _as_own(self, value: Any, own: dict[int, Any]) -> Any:
        if isinstance(value, self._spec):
            if id(value.mesh) not in own:
                raise _Unshared
            _check_stateless(value.placements)
            made = copy.copy(value)
            object.__setattr__(made, "mesh", own[id(value.mesh)])
            object.__setattr__(made, "_hash", None)
            return made
        if type(value) in (list, tuple):
            return type(value)(self._as_own(each, own) for each in value)
        if isinstance(value, self._schema):
            made = copy.copy(value)
            made.args_schema = self._as_own(value.args_schema, own)
            made.kwargs_schema = {k: self._as_own(v, own) for k, v in value.kwargs_schema.items()}
            made._recompute_comparison_key()  # noqa: SLF001 - as its constructor does
            return made
        return value


def _check_stateless(placements: Any) -> None:
    """Raise if a placement holds values of the rank, as that of an embedding its mask."""
    for placement in placements:
        kind = type(placement)
        if hasattr(placement, "mask_buffer") or not kind.__module__.startswith("torch."):
            raise _Unshared


def _is_of_rank(propagator: Any, schema: Any) -> bool:
    """Return whether local shapes are part of the result, which depend on the rank."""
    tables = (propagator.op_to_shape_and_stride_idx, propagator.op_to_scalar_shape_adjuster)
    return any(schema.op in table for table in tables)
