"""Triton-distributed's additions to Triton's language: signals, ranks and threads.

Source:
    Triton-distributed 0.0.1, `triton_dist/language` and `lib/Conversion`: the code of its
    operations on NVIDIA GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.errors import UnsupportedError
from simrank.kernels import memory
from simrank.kernels.running import threads
from simrank.kernels.shmem import api
from simrank.kernels.shmem.api import NOTHING, OF_THREADS, PUBLISHES, WAITS, Function, all_with
from simrank.kernels.shmem.teams import multicast_address
from simrank.kernels.values import types
from simrank.kernels.values.block import Block, addresses, constant, scalar_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.shmem.api import Table
    from simrank.kernels.values.block import Operand
    from simrank.kernels.values.types import ElementType

_SIGNALS = {"set": 9, "add": 10}
_SCOPES = ("gpu", "intra_node", "inter_node")


def wait(
    barrierPtrs: Block,  # noqa: N803 - the library's names
    numBarriers: Operand,  # noqa: N803
    scope: str,
    semantic: str,
    waitValue: Operand = 1,  # noqa: N803
) -> Block:
    """Wait until consecutive signals all have a value; return a token.

    Raises:
        ValueError: The pointer is not to 32 or 64-bit integers.
    """
    del scope, semantic  # It always acquires at system scope, which is stronger.
    element = memory.pointee(barrierPtrs)
    if element.kind not in "iu" or element.bits not in (32, 64):
        raise ValueError(f"Unsupported barrierPtrs type {barrierPtrs.type}")
    count, wanted = int(numBarriers), scalar_of(int(waitValue), element)
    first = int(threads.of_active(barrierPtrs, scope="block")[0][0])
    flags = first + np.arange(count, dtype=np.int64) * element.itemsize
    if count:
        api.wait_for(flags, element, lambda result: result == wanted, for_value=True)
    return constant(0)


def consume_token(value: Operand, token: Operand) -> Any:
    """Return a value; its use is ordered after the operation that returned the token."""
    del token  # Lines run in order.
    return value


def rank(axis: Operand = -1) -> Block:
    """Return the number of this rank."""
    del axis
    return api.my_pe()


def num_ranks(axis: Operand = -1) -> Block:
    """Return the number of ranks."""
    del axis
    return api.n_pes()


def symm_at(ptr: Block, rank: Operand) -> Block:
    """Return a pointer to the same bytes at a peer."""
    _check_pointer(ptr)
    return api.remote_ptr(ptr, rank)


def _check_pointer(ptr: Block) -> ElementType:
    """Return the element type of a scalar pointer.

    Raises:
        ValueError: The value is not a scalar pointer; the text is the library's.
    """
    element = memory.pointee(ptr)
    if ptr.shape:
        raise ValueError("only support scalar pointer")
    return element


def notify(
    ptr: Block,
    rank: Operand,
    signal: Operand = 1,
    sig_op: str = "set",
    comm_scope: str = "inter_node",
) -> None:
    """Update a signal at a peer, once per block, ordered after all earlier writes.

    Raises:
        ValueError: The signal is not a 64-bit integer, or an option is unknown; the text is the
            library's.
    """
    element = _check_pointer(ptr)
    if element.kind not in "iu" or element.bits != 64:
        raise ValueError("the dtype of signal ptr should be uint64")
    if sig_op not in _SIGNALS:
        raise ValueError(f"Signal Op {sig_op} not supported")
    if comm_scope not in _SCOPES:
        raise ValueError(f"Comm Scope {comm_scope} not supported")
    change = api.signal_op(api.NVSHMEM, sem="release", scope="block")
    change(ptr, signal, _SIGNALS[sig_op], rank)


def remote_mc_ptr(team: Operand, ptr: Block) -> Block:
    """Return a pointer to the same bytes at all ranks of a team."""
    own = np.asarray(addresses(ptr))
    return Block(multicast_address(own, int(team)), ptr.element)


class SimtRegion:
    """A thread-level region of a kernel."""

    def __enter__(self) -> tuple[Block, Block]:
        """Return the index of each thread and the number of threads."""
        return threads.index_along(0)(), Block(np.int32(threads.num_of_program()), types.int32)

    def __exit__(self, *_: object) -> None:
        """Leave the region."""


def _refused(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedError(f"{name} is not supported")

    return refuse


OPS: Table = (
    all_with(NOTHING, {"consume_token": consume_token, "rank": rank, "num_ranks": num_ranks})
    | all_with(PUBLISHES, {"symm_at": symm_at, "notify": notify})
    | all_with(WAITS, {"wait": wait})
)
SIMT: Table = {
    "simt_exec_region": Function(SimtRegion, OF_THREADS),
    "extract": Function(_refused("extract of an element of a block"), PUBLISHES),
    "insert": Function(_refused("insert of an element into a block"), PUBLISHES),
}
LANGUAGE_EXTRA: Table = {"__syncthreads": Function(threads.sync_threads, NOTHING)}
