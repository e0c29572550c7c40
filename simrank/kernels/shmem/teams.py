"""Teams of ranks in kernels: barriers, collectives, multicast addresses of SHMEM libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from simrank.engine import Handle
from simrank.errors import UnsupportedError
from simrank.kernels import machine, memory
from simrank.kernels.running import threads
from simrank.kernels.shmem.api import at_peer, copy, range_of, require_sync, status
from simrank.kernels.values.block import Block, as_block, cast_to, constant
from simrank.ranks import require_rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.engine import Engine
    from simrank.kernels.machine.protocols import Array, Value
    from simrank.kernels.values.block import Operand

WORLD = 0
_NODE = (1, 2)  # NVSHMEM_TEAM_SHARED and NVSHMEMX_TEAM_NODE
_SAME_LOCAL_RANK = 3  # NVSHMEMX_TEAM_SAME_MYPE_NODE: one rank of each node
_KEY = "kernel barriers"


def members(team: Operand) -> tuple[int, ...]:
    """Return the ranks of a team of this rank.

    Raises:
        UnsupportedError: The team is not predefined.
    """
    number, program = int(team), require_rank("a team")
    rank, everyone = program.rank, range(program.world_size)
    assert rank is not None, "it is a rank"
    cluster = machine.now().device.network.cluster
    per_node = cluster.devices_per_node
    if number == WORLD:
        return tuple(everyone)
    if number in _NODE:
        return tuple(other for other in everyone if other // per_node == rank // per_node)
    if number == _SAME_LOCAL_RANK:
        return tuple(other for other in everyone if other % per_node == rank % per_node)
    raise UnsupportedError(
        f"team {number} in a kernel is not supported; supported are 0 (world), 1 and 2 (node) and "
        "3 (one rank of each node)"
    )


def team_my_pe(team: Operand) -> Block:
    """Return this rank's number in a team."""
    return constant(members(team).index(require_rank("team_my_pe").rank or 0))


def team_n_pes(team: Operand) -> Block:
    """Return the number of ranks of a team."""
    return constant(len(members(team)))


def team_translate_pe(src_team: Operand, pe: Operand, dest_team: Operand) -> Block:
    """Translate a rank's number to another team; -1 if the rank is not a member."""
    rank, there = members(src_team)[int(pe)], members(dest_team)
    return constant(there.index(rank) if rank in there else -1)


class _Barrier(Handle):
    """One barrier of kernels of a team."""

    __slots__ = ("came", "clock", "number", "total")

    def __init__(self, number: int, total: int) -> None:
        super().__init__()
        self.number = number
        self.total = total
        self.came: set[int | None] = set()
        # For race checks: joined clocks of the programs in the barrier.
        self.clock: dict[int, int] = {}

    def describe(self) -> str:
        """Return the name and the number of ranks in the barrier."""
        return f"barrier_all #{self.number} in a kernel: {len(self.came)} of {self.total} ranks"


_barriers: WeakKeyDictionary[Any, dict[Any, _Barrier]] = WeakKeyDictionary()


def barrier(team: Operand) -> Block:
    """Wait for a program of every rank of a team; earlier puts are visible afterwards."""
    sync, program, ranks = require_sync(), require_rank("barrier_all"), members(team)
    sync.fence()
    engine: Engine = program.engine
    counts = program.local.setdefault(_KEY, {})
    own = int(team), ranks  # Teams with equal ranks have separate barriers.
    number = counts[own] = counts.get(own, 0) + 1
    of_world = _barriers.setdefault(program.local["world"], {})
    result = of_world.get((own, number))
    if result is None:
        result = of_world[own, number] = _Barrier(number, len(ranks))
    result.came.add(program.rank)
    if sync.races is not None:
        sync.races.meet(result.clock)
    if len(result.came) == result.total:
        del of_world[own, number]
        result.finish(engine)
    else:
        engine.wait(result)
        machine.set_running(sync.programs)
        if sync.races is not None:
            sync.races.meet(result.clock)
    return status()


def barrier_all() -> Block:
    """Wait for a program of every rank; earlier puts are visible afterwards."""
    return barrier(WORLD)


# ---- Collectives ----


def broadcastmem(
    team: Operand, dest: Operand, source: Operand, size_bytes: Operand, pe_root: Operand
) -> Block:
    """Copy the root's bytes to every rank of a team."""
    target, own, size = _arguments(dest, source, size_bytes)
    root = members(team)[int(pe_root)]
    barrier(team)
    copy(target, at_peer(own, root), size)
    return barrier(team)


def broadcast(
    team: Operand, dest: Block, source: Block, nelems: Operand, pe_root: Operand
) -> Block:
    """Copy the root's elements to every rank of a team."""
    return broadcastmem(team, dest, source, _size(dest, nelems), pe_root)


def fcollectmem(team: Operand, dest: Operand, source: Operand, size_bytes: Operand) -> Block:
    """Gather every rank's bytes, in the order of the team."""
    target, own, size = _arguments(dest, source, size_bytes)
    barrier(team)
    for index, rank in enumerate(members(team)):
        copy(target + index * size, at_peer(own, rank), size)
    return barrier(team)


def fcollect(team: Operand, dest: Block, source: Block, nelems: Operand) -> Block:
    """Gather every rank's elements, in the order of the team."""
    return fcollectmem(team, dest, source, _size(dest, nelems))


def alltoall(team: Operand, dest: Block, source: Block, nelems_per_pe: Operand) -> Block:
    """Exchange elements: part i of the source goes to rank i of the team."""
    target, own, size = _arguments(dest, source, _size(dest, nelems_per_pe))
    here = int(team_my_pe(team))
    barrier(team)
    for index, rank in enumerate(members(team)):
        copy(target + index * size, at_peer(own, rank) + here * size, size)
    return barrier(team)


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


def reduce(team: Operand, dest: Block, source: Block, nreduce: Operand, operation: str) -> Block:
    """Combine the elements of all ranks of a team in order; each rank gets the result."""
    combine = _OPERATIONS.get(str(operation))
    if combine is None:
        raise ValueError(f"reduction {operation!r}; choices: {', '.join(_OPERATIONS)}")
    element, count = memory.pointee(dest), int(nreduce)
    target, own, _ = _arguments(dest, source, 0)
    barrier(team)
    total: Any = None
    for rank in members(team):
        theirs = memory.load(range_of(at_peer(own, rank), count, element), None, None)
        values = theirs.values if total is None else combine(total, theirs.values)
        total = element.rounded(cast_to(Block(values, theirs.element), element).values)
    barrier(team)
    memory.store(range_of(target, count, element), Block(total, element), None)
    return barrier(team)


def _size(pointer: Block, count: Operand) -> Block:
    return as_block(count) * memory.pointee(pointer).itemsize


def _arguments(*values: Operand) -> list[int]:
    """Return the arguments of a call by a whole block, as integers."""
    return [int(column[0]) for column in threads.of_active(*values, scope="block")]


# ---- multicast addresses: one address for the same bytes at all ranks of a team or group ----
# A team's multicast address is the address of this rank's part with mark bits above all memory; a
# group's is registered in the address space. Only `multimem` instructions accept them.

_MARK = 1 << 61  # assumed: no simulated memory is that large
_TEAM = 56  # lowest bit of the team's number


def multicast_address(own: Value, team: int) -> Value:
    """Return the multicast address of an address, or of an array of addresses."""
    return own | np.int64(_MARK | team << _TEAM)


def members_of(multicast: Array) -> list[Array]:
    """Return the addresses at each rank of the team or group of multicast addresses.

    Raises:
        ValueError: An address is not multicast, or the addresses are in several allocations.
    """
    first, last = int(multicast.min()), int(multicast.max())
    of_group = machine.now().device.memory.space.multicast(first)
    if of_group is not None:
        return [
            multicast - first + (storage.address + of_group.offset) for storage in of_group.storages
        ]
    if not first & _MARK:
        raise ValueError(
            f"address {first:#x} is no multicast address\n"
            "  to fix: give multimem instructions the handle's multicast_ptr, or what "
            "remote_mc_ptr returned"
        )
    team = (first ^ _MARK) >> _TEAM
    own, length = first & ((1 << _TEAM) - 1), last - first
    result = []
    for rank in members(team):
        start = at_peer(own, rank)
        if at_peer(own + length, rank) != start + length:
            raise ValueError("multicast addresses of one instruction are of several allocations")
        result.append(multicast - first + start)
    return result
