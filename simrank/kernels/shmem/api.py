"""SHMEM functions of kernels on symmetric memory; `libraries` maps names to them.

A pointer into this rank's part also identifies the same bytes of a peer's part. A put returns when
its source may be reused; fences, quiets and signals are ordered after earlier puts. If threads of a
program call with different arguments, each call is executed.

Source:
    NVSHMEM 3 API and `nvshmem_constants.h`; rocSHMEM 3 `rocshmem_common.hpp`.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.distributed.symmetric_memory import counterpart
from simrank.kernels import machine, memory
from simrank.kernels.machine import Effects, Order
from simrank.kernels.memory.atomics import modify, replaced, unchanged
from simrank.kernels.running import threads
from simrank.kernels.values import types
from simrank.kernels.values.block import Block, as_block, constant
from simrank.ranks import require_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from simrank.kernels.machine.protocols import Array, Sync, Value
    from simrank.kernels.values.block import Operand
    from simrank.kernels.values.types import ElementType

_STATUS = 0
_WORDS = (types.uint64, types.uint32, types.uint16, types.uint8)


class Codes:
    """Numbers of a library's comparisons and signal operations.

    Attributes:
        comparisons: Comparisons in the order of their numbers, from 0.
        sets: Numbers of signal operations that set.
        adds: Numbers of signal operations that add.
    """

    def __init__(self, comparisons: str, sets: tuple[int, ...], adds: tuple[int, ...]) -> None:
        self.comparisons = [getattr(operator, name) for name in comparisons.split()]
        self.sets = sets
        self.adds = adds


# torch's tests use 0 and 5 where NVSHMEM's header has 9 and 10. torch's docstrings are wrong about
# comparisons 3 and 5, which the library defines as `le` and `ge`.
NVSHMEM = Codes("eq ne gt le lt ge", (0, 9), (5, 10))
ROCSHMEM = Codes("eq ne gt ge lt le", (0,), (1,))


def at_peer(address: int, peer: int) -> int:
    """Return the address at a peer of the same bytes as an address of this rank."""
    storage = machine.now().device.memory.space.find(address)
    if storage is None:
        raise ValueError(f"address {address:#x} is of no allocation")
    if peer == require_rank("a SHMEM function").rank:
        return address
    return counterpart(storage, peer).address + address - storage.address


def range_of(address: int, count: int, element: ElementType) -> Block:
    """Return pointers to consecutive elements."""
    addresses = address + np.arange(count, dtype=np.int64) * element.itemsize
    return Block(addresses.reshape(1, -1), types.pointer_to(element))


def _each(addresses: Array, element: ElementType) -> Block:
    return Block(addresses.astype(np.int64).reshape(1, -1), types.pointer_to(element))


def copy(target: int, source: int, size_bytes: int) -> None:
    """Copy bytes, in the widest words that the addresses allow."""
    if size_bytes <= 0:
        return
    both = target | source | size_bytes
    element = next(word for word in _WORDS if both % word.itemsize == 0)
    count = size_bytes // element.itemsize
    values = memory.load(range_of(source, count, element), None, None)
    memory.store(range_of(target, count, element), values, None)


def require_sync() -> Sync:
    """Return the synchronization state of the single running program."""
    sync = machine.now().sync
    if sync is None:
        raise machine.PublishedError
    return sync


def status() -> Block:
    """Return the status of functions without a result."""
    return constant(_STATUS)


# ---- Puts and gets ----


def putmem(
    dest: Operand, source: Operand, size_bytes: Operand, pe: Operand, *, scope: str = "thread"
) -> Block:
    """Copy bytes from this rank to a peer."""
    require_sync()
    for row in _calls(dest, source, size_bytes, pe, scope=scope):
        copy(at_peer(row[0], row[3]), row[1], row[2])
    return status()


def getmem(
    dest: Operand, source: Operand, size_bytes: Operand, pe: Operand, *, scope: str = "thread"
) -> Block:
    """Copy bytes from a peer to this rank."""
    require_sync()
    for row in _calls(dest, source, size_bytes, pe, scope=scope):
        copy(row[0], at_peer(row[1], row[3]), row[2])
    return status()


def _calls(*arguments: Operand | Value, scope: str) -> list[tuple[int, ...]]:
    """Return the arguments of each call by the threads of a program."""
    columns = threads.of_active(*arguments, scope=scope)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def put(dest: Block, source: Block, nelems: Operand, pe: Operand) -> Block:
    """Copy elements from this rank to a peer."""
    _check_types(dest, source, "put")
    return putmem(dest, source, as_block(nelems) * memory.pointee(dest).itemsize, pe)


def get(dest: Block, source: Block, nelems: Operand, pe: Operand) -> Block:
    """Copy elements from a peer to this rank."""
    _check_types(dest, source, "get")
    return getmem(dest, source, as_block(nelems) * memory.pointee(dest).itemsize, pe)


def _check_types(dest: Block, source: Block, name: str) -> None:
    if dest.type != source.type:
        raise ValueError(f"{name} from {source.type} to {dest.type}")


def p(dest: Block, value: Operand, pe: Operand) -> Block:
    """Write one element at a peer."""
    require_sync()
    values = as_block(value)
    for address, number, peer in _calls(dest, values.values, pe, scope="thread"):
        element = memory.pointee(dest)
        memory.store(range_of(at_peer(address, peer), 1, element), number, None)
    return status()


# ---- Signals ----


def putmem_signal(codes: Codes, scope: str = "thread") -> Callable[..., Block]:
    """Return a function that copies bytes to a peer, then updates a signal there."""
    change = signal_op(codes, sem="release", scope=scope)

    def put_and_signal(
        dst: Operand,
        src: Operand,
        size_bytes: Operand,
        signal: Operand,
        sig_val: Operand,
        sig_op: Operand,
        pe: Operand,
    ) -> Block:
        putmem(dst, src, size_bytes, pe, scope=scope)
        return change(signal, sig_val, sig_op, pe)

    return put_and_signal


def signal_op(codes: Codes, sem: str = "relaxed", scope: str = "thread") -> Callable[..., Block]:
    """Return a function that sets a signal at a peer, or adds to it.

    With the default order it does not wait for earlier puts.
    """

    def change(sig_addr: Operand, signal: Operand, sig_op: Operand, pe: Operand) -> Block:
        require_sync()
        kind = int(sig_op)
        if kind not in codes.sets + codes.adds:
            choices = f"{codes.sets} (set), {codes.adds} (add)"
            raise ValueError(f"signal operation {kind}; choices: {choices}")
        addresses, values, peers = threads.of_active(sig_addr, signal, pe, scope=scope)
        both = zip(addresses.tolist(), peers.tolist(), strict=True)
        there = np.array([at_peer(*pair) for pair in both], np.int64)
        times = 1
        if kind in codes.adds and len(addresses) == 1:
            times = threads.num_calls(scope)
        added = Block(values.astype(np.uint64).reshape(1, -1) * np.uint64(times), types.uint64)
        compute = np.add if kind in codes.adds else replaced
        order = Order(sem, "sys")
        modify(_each(there, types.uint64), [added], None, order, compute, wants_old=False)
        return status()

    return change


def wait_for(
    addresses: Array, element: ElementType, holds: Callable[[Array], Any], *, for_value: bool
) -> None:
    """Wait until each value has met a condition once, not necessarily at the same time.

    Args:
        addresses: Addresses of the values on this rank.
        element: Type of the values.
        holds: Returns which values meet the condition.
        for_value: Whether the condition is equality with one value.
    """
    flags, has_held = _each(addresses, element), np.zeros(len(addresses), bool)

    def look() -> Array:
        result = modify(flags, [], None, Order("acquire", "sys"), unchanged)
        np.logical_or(has_held, holds(np.asarray(result.values).reshape(-1)), out=has_held)
        return has_held

    require_sync().wait_until(look, None, for_value=for_value)


def wait_until(codes: Codes, element: ElementType | None = None) -> Callable[..., Block]:
    """Return a function that waits for a comparison with a variable of this rank.

    Args:
        codes: Codes of the library.
        element: Type of the variable; None: the pointee's type.
    """

    def wait(pointer: Operand, cmp: Operand, cmp_val: Operand) -> Block:
        require_sync()
        kind = int(cmp)
        if not 0 <= kind < len(codes.comparisons):
            raise ValueError(f"comparison {kind}; choices: 0 to {len(codes.comparisons) - 1}")
        own = element or memory.pointee(pointer)
        addresses, wanted = threads.of_active(pointer, cmp_val)
        compare, numbers = codes.comparisons[kind], wanted.astype(own.compute)
        is_equal = compare is operator.eq
        wait_for(addresses, own, lambda result: compare(result, numbers), for_value=is_equal)
        return status()

    return wait


# ---- Order and rank numbers ----


def fence() -> Block:
    """Order later puts after earlier ones."""
    require_sync().fence()
    return status()


def my_pe() -> Block:
    """Return the number of this rank."""
    rank = require_rank("my_pe").rank
    assert rank is not None, "it is a rank"
    return constant(rank)


def n_pes() -> Block:
    """Return the number of ranks."""
    return constant(require_rank("n_pes").world_size)


def remote_ptr(pointer: Block, pe: Operand) -> Block:
    """Return a pointer to the same bytes at a peer; null for an invalid peer."""
    calls, size = _calls(pointer, pe, scope="thread"), require_rank("remote_ptr").world_size
    there = [at_peer(address, peer) if 0 <= peer < size else 0 for address, peer in calls]
    result = np.array(there, np.int64)
    return Block(threads.spread(result), pointer.element)


# ---- tables of library functions with their observable effects ----

PUBLISHES = Effects(publishes=True)
WAITS = Effects(publishes=True, waits=True)
READS = Effects(publishes=True, reads=True)
OF_THREADS = Effects(publishes=True, threads=True)
NOTHING = Effects()


class Function(NamedTuple):
    """An emulated library function.

    Attributes:
        run: The replacement.
        effects: Effects that other programs can observe.
    """

    run: Callable[..., Any]
    effects: Effects


Table = dict[str, Function]


def all_with(effects: Effects, functions: Mapping[str, Callable[..., Any]]) -> Table:
    """Return a table of functions with equal effects."""
    return {name: Function(run, effects) for name, run in functions.items()}
