"""Library functions that are replaced in kernels, by module and name.

torch's NVSHMEM and rocSHMEM bindings, and Triton-distributed's additions to Triton.

Source:
    torch 2.13, `torch/distributed/_symmetric_memory`; Triton-distributed 0.0.1,
    `triton_dist/language` and the modules that it adds to `triton.language.extra`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.errors import UnsupportedError
from simrank.kernels import machine
from simrank.kernels.machine import Order
from simrank.kernels.memory.atomics import modify, replaced, unchanged
from simrank.kernels.running import threads
from simrank.kernels.shmem import distributed, externs
from simrank.kernels.shmem.api import NVSHMEM, ROCSHMEM
from simrank.kernels.shmem.functions import COLLECTIVES, of_torch, of_triton_distributed
from simrank.kernels.shmem.table import NOTHING, OF_THREADS, PUBLISHES, READS, Function, all_with
from simrank.kernels.values.block import Block, addresses, as_block
from simrank.kernels.values.types import int1

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.machine import Effects
    from simrank.kernels.shmem.table import Table
    from simrank.kernels.values.block import Operand

_SCOPES = {"workgroup": "cta", "agent": "gpu", "system": "sys"}
_SEMS = {"acquire": "acquire", "relaxed": "relaxed", "release": "release", "acqrel": "acq_rel"}


def thread_idx(axis: Operand) -> Block:
    """Return the index of each thread along an axis."""
    return threads.index_along(int(axis))()


def _access(compute: Callable[..., Any], order: Order, *, each: bool) -> Callable[..., Block]:
    """Return a memory function that each thread calls separately.

    Args:
        compute: Returns the new value, given the old one and the operands.
        order: Memory order.
        each: Whether calls of threads with equal arguments all take effect.
    """

    def call(pointer: Block, *values: Operand) -> Block:
        total = threads.num_threads()
        operands = [as_block(value) for value in values]
        differs = any(threads.varies(block) for block in (pointer, *operands))
        if not total or not (each or differs):
            return modify(pointer, operands, None, order, compute)
        rows = np.broadcast_to(np.atleast_1d(np.asarray(addresses(pointer))), total)
        active = machine.now().active
        mask = None if active is None else Block(active, int1)
        result = modify(Block(rows, pointer.element), operands, mask, order, compute)
        return Block(threads.as_one(result.values), result.element)

    return call


def _accesses() -> Table:
    functions: Table = {}
    for name, sem in _SEMS.items():
        for level, scope in _SCOPES.items():
            order, end = Order(sem, scope), f"{name}_{level}"
            load, store = (_access(c, order, each=False) for c in (unchanged, replaced))
            add = _access(np.add, order, each=True)
            functions |= all_with(READS, {f"load_{end}": load, f"atom_add_{end}": add})
            functions |= all_with(PUBLISHES, {f"store_{end}": store, f"red_add_{end}": add})
    return functions


FUNCTIONS: Table = {
    "thread_idx": Function(thread_idx, OF_THREADS),
    "__syncthreads": Function(threads.sync_threads, NOTHING),
    "syncthreads": Function(threads.sync_threads, NOTHING),
    **_accesses(),
}

# ---- Tables ----

_EXTRA = "triton.language.extra"
_OF_DIST = "triton_dist.language"
TABLES: dict[str, Table] = {
    "torch.distributed._symmetric_memory._nvshmem_triton": of_torch(NVSHMEM) | COLLECTIVES,
    "torch.distributed._symmetric_memory._rocshmem_triton": of_torch(ROCSHMEM),
    f"{_EXTRA}.cuda.libnvshmem_device": of_triton_distributed(NVSHMEM),
    f"{_EXTRA}.hip.librocshmem_device": of_triton_distributed(ROCSHMEM),
    f"{_EXTRA}.libshmem_device": of_triton_distributed(NVSHMEM),
    f"{_OF_DIST}.extra.libshmem_device": of_triton_distributed(NVSHMEM),
    f"{_OF_DIST}.extra.cuda.libnvshmem_device": of_triton_distributed(NVSHMEM),
    f"{_OF_DIST}.distributed_ops": distributed.OPS,
    f"{_OF_DIST}.simt_ops": distributed.SIMT,
    f"{_OF_DIST}.core": all_with(PUBLISHES, externs.FUNCTIONS),
}
# Modules of which only these functions are replaced; the others run from source.
PARTLY: dict[str, Table] = {
    f"{_EXTRA}.cuda.language_extra": distributed.LANGUAGE_EXTRA,
    f"{_OF_DIST}.extra.cuda.language_extra": distributed.LANGUAGE_EXTRA,
    f"{_EXTRA}.hip.libdevice": FUNCTIONS,
}


def _find(function: object) -> Function | None:
    """Return the replacement of a library's function, or None."""
    module, name = _name(function)
    return TABLES.get(module, PARTLY.get(module, {})).get(name)


def _name(function: object) -> tuple[str, str]:
    return getattr(function, "__module__", None) or "", getattr(function, "__name__", "")


def effects(function: object) -> Effects | None:
    """Return the observable effects of a library's function; None for other functions."""
    known = _find(function)
    if known is None:  # An unsupported function raises when a program calls it.
        return PUBLISHES if _name(function)[0] in TABLES else None
    return known.effects


def substitute(function: object) -> Callable[..., Any] | None:
    """Return the replacement of a library's function; None for other functions.

    An unsupported function of a library raises when it is called.
    """
    known, (module, name) = _find(function), _name(function)
    if known is not None:
        return known.run
    if module not in TABLES:
        return None

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedError(
            f"{module}.{name} is not supported; supported are {', '.join(TABLES[module])}"
        )

    return refuse
