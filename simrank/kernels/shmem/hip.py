"""What Triton-distributed adds to Triton's library for AMD GPUs: threads, and memory they share.

Source:
    Triton-distributed 0.0.1, `triton/language/extra/hip/libdevice.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.kernels import machine
from simrank.kernels.machine import Order
from simrank.kernels.memory.atomics import modify, replaced, unchanged
from simrank.kernels.running import threads
from simrank.kernels.shmem.table import NOTHING, OF_THREADS, PUBLISHES, READS, Function, all_with
from simrank.kernels.values.block import Block, addresses, as_block
from simrank.kernels.values.types import int1

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.shmem.table import Table
    from simrank.kernels.values.block import Operand

_SCOPES = {"workgroup": "cta", "agent": "gpu", "system": "sys"}
_SEMS = {"acquire": "acquire", "relaxed": "relaxed", "release": "release", "acqrel": "acq_rel"}


def thread_idx(axis: Operand) -> Block:
    """Return the index of each thread."""
    return threads.index_along(int(axis))()


def _access(compute: Callable[..., Any], order: Order, *, each: bool) -> Callable[..., Block]:
    """Return a function of memory that each thread calls for itself.

    Args:
        compute: Returns the new value of the old one and what is given.
        order: How it orders memory.
        each: Whether calls of threads with the same arguments all count.
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
