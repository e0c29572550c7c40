"""Shared results of DTensor's sharding propagation, for ranks whose meshes are alike.

A process has one cache per thread, so each rank would repeat the same search: four fifths of a
step of a large model without values. It depends on the operator, the placements and the shapes of
its arguments, and the shape of the mesh; not on which ranks the mesh has. Two things do depend on
the rank, and are not shared: local shapes where shards are uneven, and placements with a state.
"""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

import torch

from simrank.ranks.current import rank_program
from simrank.torch.rank_state.caches import cached_by_rank

if TYPE_CHECKING:
    from collections.abc import Callable

    Patches = list[tuple[Any, str, Any]]

_KEY = "DTensor's shardings"
_MOST_KEPT = 1 << 14  # Assumed: a step of a large model has a few hundred.


def of_sharding(module: Any) -> Patches:
    """Return patches of DTensor's search for shardings, and of its cache of shapes by meshes."""
    kind = module.ShardingPropagator
    search, shapes = "propagate_op_sharding_non_cached", "_propagate_tensor_meta_cached"
    return [
        (kind, search, _Shared(module).wrap(getattr(kind, search))),
        (kind, shapes, cached_by_rank(getattr(kind, shapes))),
    ]


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
        shared = self

        @functools.wraps(original)
        def find(self: Any, op_schema: Any) -> Any:
            program = rank_program()
            if program is None or _is_of_rank(self, op_schema):
                return original(self, op_schema)
            context: Any = program.context
            kept: _Kept = context.program.local.setdefault(_KEY, {})
            meshes: list[Any] = []
            try:
                of_args = shared._key(op_schema.args_schema, meshes)
                key = (op_schema.op, of_args, shared._key(op_schema.kwargs_schema, meshes))
                found = kept.get(key)
            except (_Unshared, TypeError):  # TypeError: something cannot be hashed.
                return original(self, op_schema)
            if found is None:
                result = original(self, op_schema)
                if shared._can_be_shared(result, meshes):
                    if len(kept) >= _MOST_KEPT:
                        kept.clear()
                    kept[key] = (result, meshes)
                return result
            return shared._with_meshes(*found, meshes)

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
    adjusters = getattr(propagator, "op_to_scalar_shape_adjuster", ())  # Since torch 2.13.
    return schema.op in propagator.op_to_shape_and_stride_idx or schema.op in adjusters
