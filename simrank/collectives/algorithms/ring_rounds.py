"""Rounds of rings for several algorithms: partial sums, then finished chunks."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from simrank.collectives.schedule import Buffer, ChunkTable, IntArray, Op, Phase, Round

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simrank.collectives.problem import Problem

MAX_CHANNELS = 64  # NCCL 2.30 src/include/device.h, MAXCHANNELS.


def num_rails(problem: Problem) -> int:
    """Return the number of rings that share no link between nodes, or on a mesh no link."""
    if _is_small_mesh(problem):
        return len(disjoint_rings(problem.world_size))
    return problem.node_size if problem.num_nodes > 1 else 1


def ring_orders(problem: Problem, num_channels: int) -> IntArray:
    """Return the ranks of each channel in the order of its ring: [channels, ranks].

    On several nodes, channel c visits local ranks c, c + 1, ..., c - 1 of each node in turn, so
    that it enters nodes at another device, and crosses another rail, than its neighbours do.
    """
    size = problem.node_size or problem.world_size
    nodes = np.arange(problem.world_size, dtype=np.int64).reshape(-1, size)
    if problem.num_nodes == 1:
        rings = disjoint_rings(problem.world_size) if _is_small_mesh(problem) else nodes
        return np.resize(rings, (num_channels, problem.world_size))
    # Fewer channels than rails are spread over them.
    shifts = [channel * size // min(size, num_channels) for channel in range(num_channels)]
    return np.stack([np.roll(nodes, -shift, axis=1).reshape(-1) for shift in shifts])


def _is_small_mesh(problem: Problem) -> bool:
    return problem.is_mesh and problem.num_nodes == 1 and 2 < problem.world_size <= MAX_RANKS


class Rings:
    """Arrays that all rounds of a phase share: one entry per channel, ring and position on it.

    Shapes: (C channels, R rings of m ranks each)
        ranks, own: [C, R, m]

    Args:
        ranks: The ranks, in the order of their rings.
        own: The first chunk that belongs to the rank at each position.
        num_chunks: Chunks that a step moves.
        source: Where the ranks' own contributions lie.
    """

    def __init__(
        self,
        ranks: IntArray,
        own: IntArray,
        *,
        num_chunks: int = 1,
        source: Buffer = Buffer.INPUT,
    ) -> None:
        self.num_hops = ranks.shape[-1] - 1
        self.source = source
        self._ranks, self._num_chunks = ranks, num_chunks
        self.src, self.dst = Phase(ranks, self.num_hops).ends
        channels = np.arange(len(ranks), dtype=np.int64)
        self.channel = np.repeat(channels, ranks[0].size)
        self._constants = [np.full(len(self.src), value, dtype=np.int64) for value in range(3)]
        self.count = np.full(len(self.src), num_chunks, dtype=np.int64)
        self._twice = np.concatenate((own, own), axis=-1)

    def const(self, value: int) -> IntArray:
        """Return `value` for each lane: the same array each time, which players recognise."""
        return self._constants[value]

    def chunks(self, shift: int) -> IntArray:
        """Return the chunk that belongs to the rank `shift` positions before, for each lane."""
        first = -shift % (self.num_hops + 1)
        blocks: IntArray = self._twice[..., first : first + self.num_hops + 1]
        return blocks.reshape(-1)

    def slots(self, parity: int) -> IntArray:
        """Return the first SCRATCH chunk of one of each channel's two slots."""
        slots: IntArray = (self.channel * 2 + parity) * self._num_chunks
        return slots

    def slot_table(self, table: ChunkTable) -> ChunkTable:
        """Return the SCRATCH that `reduce_rounds` needs for chunks of a table."""
        return ChunkTable.from_sizes([table.max_size] * (2 * len(self._ranks) * self._num_chunks))

    def phase(self, num_passes: int = 1) -> Phase:
        """Return the phase of some passes around the rings."""
        return Phase(self._ranks, num_passes * self.num_hops, self._num_chunks)


def reduce_rounds(
    rings: Rings, *, first_shift: int, last: Callable[[IntArray], IntArray]
) -> Iterator[Round]:
    """Yield hops of partial sums through SCRATCH; `last` maps a chunk to the place of its sum.

    Buffers: partial sums travel through two SCRATCH slots per channel (NCCL's connection buffer)
        and are rounded to the storage dtype at each hop; OUTPUT is written in the last one.
    """
    slots = [rings.slots(parity) for parity in (0, 1)]
    for hop in range(rings.num_hops):
        chunk = rings.chunks(first_shift + hop)
        is_last = hop == rings.num_hops - 1
        yield Round(
            src=rings.src,
            dst=rings.dst,
            src_buffer=rings.const(Buffer.SCRATCH if hop else rings.source),
            src_chunk=slots[(hop - 1) % 2] if hop else chunk,
            dst_buffer=rings.const(Buffer.OUTPUT if is_last else Buffer.SCRATCH),
            dst_chunk=last(chunk) if is_last else slots[hop % 2],
            count=rings.count,
            op=rings.const(Op.REDUCE),
            channel=rings.channel,
            operand_buffer=rings.const(rings.source),
            operand_chunk=chunk,
        )


def gather_rounds(rings: Rings, *, first_shift: int) -> Iterator[Round]:
    """Yield hops that copy finished chunks from OUTPUT to OUTPUT."""
    for hop in range(rings.num_hops):
        chunk = rings.chunks(first_shift + hop)
        yield Round(
            src=rings.src,
            dst=rings.dst,
            src_buffer=rings.const(Buffer.OUTPUT),
            src_chunk=chunk,
            dst_buffer=rings.const(Buffer.OUTPUT),
            dst_chunk=chunk,
            count=rings.count,
            op=rings.const(Op.COPY),
            channel=rings.channel,
        )


# ---- Rings through all ranks that have no directed link in common ----
# On n devices of which each has a link to each other one, n - 1 directed rings use every link
# once, but for 4 and 6 devices, where n - 2 do.
#
# Source: Tillson, "A Hamiltonian decomposition of K*_2m, 2m >= 8", JCT B 29(1), 1980; found
# here by a search, which takes milliseconds up to 16 devices.

MAX_RANKS = 16  # Assumed: no node has more devices without a switch.
_WITHOUT_DECOMPOSITION = (4, 6)
_MAX_STEPS = 100_000  # Then it restarts, in another order.


@lru_cache(maxsize=MAX_RANKS)
def disjoint_rings(num_ranks: int) -> IntArray:
    """Return rings of which no two send from one rank to the same other one.

    Shapes: (C rings, n ranks)
        returns: [C, n]

    Args:
        num_ranks: n, from 2 to `MAX_RANKS`.
    """
    num_rings = num_ranks - (2 if num_ranks in _WITHOUT_DECOMPOSITION else 1)
    seed = 0
    while True:
        found = _Search(num_ranks, num_rings, seed).run()
        if found is not None:
            return np.array(found, dtype=np.int64)
        seed += 1


class _Search:
    """Depth first: a ring is extended by the rank from which the fewest links are left."""

    def __init__(self, num_ranks: int, num_rings: int, seed: int) -> None:
        self._num_ranks, self._num_rings = num_ranks, num_rings
        self._free = [set(range(num_ranks)) - {rank} for rank in range(num_ranks)]
        self._rings: list[list[int]] = []
        self._tie = np.random.default_rng(seed).random
        self._steps_left = _MAX_STEPS

    def run(self) -> list[list[int]] | None:
        """Return the rings, or None if it took too long."""
        return self._rings if self._extend([0]) else None

    def _extend(self, ring: list[int]) -> bool:
        self._steps_left -= 1
        if self._steps_left < 0:
            return False
        if len(ring) == self._num_ranks:
            return self._close(ring)
        following = sorted(
            self._free[ring[-1]].difference(ring),
            key=lambda rank: (len(self._free[rank]), self._tie()),
        )
        return any(self._extend([*ring, rank]) for rank in following)

    def _close(self, ring: list[int]) -> bool:
        links = list(zip(ring, [*ring[1:], ring[0]], strict=True))
        if links[-1][1] not in self._free[links[-1][0]]:
            return False
        for tail, head in links:
            self._free[tail].remove(head)
        self._rings.append(ring)
        if len(self._rings) == self._num_rings or self._extend([0]):
            return True
        self._rings.pop()
        for tail, head in links:
            self._free[tail].add(head)
        return False
