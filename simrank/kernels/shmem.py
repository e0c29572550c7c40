"""SHMEM functions of kernels: torch's NVSHMEM and rocSHMEM names, done on symmetric memory.

A pointer of this rank's part stands for the same place in a peer's. A put returns when the source
may be reused; a fence, a quiet or a signal comes after what was put before.

Source:
    torch 2.13, `torch/distributed/_symmetric_memory/_nvshmem_triton.py`; NVSHMEM 3 API.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from simrank.distributed.symmetric_memory import counterpart
from simrank.engine import Handle
from simrank.errors import UnsupportedError
from simrank.kernels import machine, memory, types
from simrank.kernels.block import Block, addresses, as_block, constant
from simrank.kernels.language.atomics import Order, modify
from simrank.kernels.waits import Conduct
from simrank.ranks import require_rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.engine import Engine
    from simrank.kernels.types import ElementType

Array = np.ndarray[Any, Any]
MODULES = (
    "torch.distributed._symmetric_memory._nvshmem_triton",
    "torch.distributed._symmetric_memory._rocshmem_triton",
)
_COMPARISONS = (operator.eq, operator.ne, operator.gt, operator.ge, operator.lt, operator.le)
_SET, _ADD = 0, 5  # NVSHMEM_SIGNAL_SET and NVSHMEM_SIGNAL_ADD
_STATUS = 0


def _number(value: Any) -> int:
    return int(value)


def _at_peer(pointer: Any, pe: Any) -> int:
    """Return the address at a peer of what a pointer points to here."""
    address = _number(Block(addresses(pointer), types.int64) if _is_pointer(pointer) else pointer)
    space = machine.now().device.memory.space
    storage = space.find(address)
    if storage is None:
        raise ValueError(f"address {address:#x} is of no allocation")
    peer = _number(pe)
    if peer == require_rank("a SHMEM function").rank:
        return address
    return counterpart(storage, peer).address + address - storage.address


def _is_pointer(value: Any) -> bool:
    return type(value) is Block and value.element.kind == "p"


def _own(pointer: Any) -> int:
    return _number(Block(addresses(pointer), types.int64) if _is_pointer(pointer) else pointer)


def _range(address: int, count: int, element: ElementType) -> Block:
    places = address + np.arange(count, dtype=np.int64) * element.itemsize
    return Block(places.reshape(1, -1), types.pointer_to(element))


def _copy(target: int, source: int, count: int, element: ElementType) -> None:
    if count <= 0:
        return
    values = memory.load(_range(source, count, element), None, None)
    memory.store(_range(target, count, element), values, None)


def _alone() -> Any:
    """Return how the one program that runs waits and publishes."""
    sync = machine.now().sync
    if sync is None:
        raise memory.PublishedError
    return sync


def put(dest: Block, source: Block, nelems: Any, pe: Any) -> Block:
    """Copy elements from here to a peer."""
    _alone()
    if dest.type != source.type:
        raise ValueError(f"put from {source.type} to {dest.type}")
    _copy(_at_peer(dest, pe), _own(source), _number(nelems), memory.pointee(dest))
    return constant(_STATUS)


def get(dest: Block, source: Block, nelems: Any, pe: Any) -> Block:
    """Copy elements from a peer to here."""
    _alone()
    if dest.type != source.type:
        raise ValueError(f"get from {source.type} to {dest.type}")
    _copy(_own(dest), _at_peer(source, pe), _number(nelems), memory.pointee(dest))
    return constant(_STATUS)


def putmem_signal_block(
    dst: Any, src: Any, size_bytes: Any, signal: Any, sig_val: Any, sig_op: Any, pe: Any
) -> Block:
    """Copy bytes to a peer, then change a signal there."""
    _alone()
    _copy(_at_peer(dst, pe), _own(src), _number(size_bytes), types.uint8)
    return signal_op(signal, sig_val, sig_op, pe, sem="release")


def signal_op(sig_addr: Any, signal: Any, sig_op: Any, pe: Any, sem: str = "relaxed") -> Block:
    """Set a signal at a peer, or add to it; by itself it waits for no put before it."""
    _alone()
    computes: dict[int, Callable[..., Any]] = {_SET: _replaced, _ADD: np.add}
    kind = _number(sig_op)
    if kind not in computes:
        raise ValueError(f"signal operation {kind}; choices: {_SET} (set), {_ADD} (add)")
    pointer = _range(_at_peer(sig_addr, pe), 1, types.uint64)
    modify(pointer, [as_block(signal)], None, Order(sem, "sys"), computes[kind], wants_old=False)
    return constant(_STATUS)


def _replaced(old: Any, new: Any) -> Any:
    return np.where(True, new, old)


def _unchanged(old: Any) -> Any:
    return old


def _wait(pointer: Any, element: ElementType, cmp: Any, cmp_val: Any) -> Block:
    sync, kind, wanted = _alone(), _number(cmp), _number(cmp_val)
    if not 0 <= kind < len(_COMPARISONS):
        raise ValueError(f"comparison {kind}; choices: 0 to {len(_COMPARISONS) - 1}")
    flag = _range(_own(pointer), 1, element)

    def holds() -> Block:
        found = modify(flag, [], None, Order("acquire", "sys"), _unchanged)
        value = int(np.asarray(found.values).reshape(-1)[0])
        return Block(np.bool_(_COMPARISONS[kind](value, wanted)), types.int1)

    sync.wait_until(holds, None, for_value=_COMPARISONS[kind] is operator.eq)
    return constant(_STATUS)


def wait_until(ivar: Any, cmp_op: Any, cmp_val: Any) -> Block:
    """Wait until a 32-bit variable of this rank compares as wanted."""
    return _wait(ivar, types.int32, cmp_op, cmp_val)


def signal_wait_until(signal: Any, cmp: Any, cmp_val: Any) -> Block:
    """Wait until a signal of this rank compares as wanted."""
    return _wait(signal, types.uint64, cmp, cmp_val)


def fence() -> Block:
    """Let what is put from now on arrive after what was put before."""
    _alone().fence()
    return constant(_STATUS)


def my_pe() -> Block:
    """Return this rank."""
    rank = require_rank("my_pe").rank
    assert rank is not None, "it is a rank"
    return constant(rank)


def n_pes() -> Block:
    """Return the number of ranks."""
    return constant(require_rank("n_pes").world_size)


class _Barrier(Handle):
    """One barrier of all ranks' kernels."""

    __slots__ = ("came", "clock", "number", "total")

    def __init__(self, number: int, total: int) -> None:
        super().__init__()
        self.number = number
        self.total = total
        self.came: set[int | None] = set()
        self.clock: dict[int, int] = {}  # For race checks: what the programs that came are behind.

    def describe(self) -> str:
        """Return what it is and how many are there."""
        return f"barrier_all #{self.number} in a kernel: {len(self.came)} of {self.total} ranks"


_barriers: WeakKeyDictionary[Any, dict[int, _Barrier]] = WeakKeyDictionary()
_KEY = "kernel barriers"


def barrier_all() -> Block:
    """Wait until a program of every rank has come, and what they put before is visible."""
    sync, program = _alone(), require_rank("barrier_all")
    sync.fence()
    engine: Engine = program.engine
    number = program.local[_KEY] = program.local.get(_KEY, 0) + 1
    of_world = _barriers.setdefault(program.local["world"], {})
    barrier = of_world.get(number)
    if barrier is None:
        barrier = of_world[number] = _Barrier(number, program.world_size)
    barrier.came.add(program.rank)
    if sync.races is not None:
        sync.races.meet(barrier.clock)
    if len(barrier.came) == barrier.total:
        del of_world[number]
        barrier.finish(engine)
    else:
        engine.wait(barrier)
        machine.set_running(sync.programs)
        if sync.races is not None:
            sync.races.meet(barrier.clock)
    return constant(_STATUS)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "put": put,
    "get": get,
    "get_nbi": get,
    "putmem_signal_block": putmem_signal_block,
    "wait_until": wait_until,
    "signal_wait_until": signal_wait_until,
    "signal_op": signal_op,
    "fence": fence,
    "quiet": fence,
    "my_pe": my_pe,
    "n_pes": n_pes,
    "barrier_all": barrier_all,
    "sync_all": barrier_all,
}


_WAITS = ("wait_until", "signal_wait_until", "barrier_all", "sync_all")


def conduct(function: Any) -> Conduct | None:
    """Return how a SHMEM function behaves towards other programs; None where it is none."""
    if getattr(function, "__module__", None) not in MODULES:
        return None
    found = Conduct()
    found.publishes = True
    found.waits = getattr(function, "__name__", "") in _WAITS
    return found


def substitute(function: Any) -> Callable[..., Any] | None:
    """Return what stands for a SHMEM function in a kernel; None where it is none.

    One that is not done here is refused by name when it is called.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__name__", "")
    if module not in MODULES:
        return None
    found = FUNCTIONS.get(name)
    if found is not None:
        return found

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedError(
            f"{module}.{name} is not supported; supported are {', '.join(FUNCTIONS)}"
        )

    return refuse
