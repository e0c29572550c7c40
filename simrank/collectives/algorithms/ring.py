"""Ring algorithms: every rank sends to the next one, once per round.

One ring in the order of ranks crosses between nodes on a single rail. So on several nodes there are
by default as many channels as a node has ranks, each with a share of every chunk and a ring of its
own; and on a node without a switch as many as there are rings that share no link.

Source:
    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    JPDC 69(2), 2009; order of hops as in NCCL 2.30 `src/device/all_reduce.h`, `all_gather.h` and
    `reduce_scatter.h`; one ring per rail as NCCL's graph search finds them (`src/graph/search.cc`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Self

import numpy as np

from simrank.collectives.algorithms.layout import gathered_tables, local_only
from simrank.collectives.problem import Problem
from simrank.collectives.schedule import (
    Buffer,
    ChunkTable,
    IntArray,
    Op,
    Phase,
    Round,
    Schedule,
    Tables,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from simrank.collectives.problem import Problem


# ---- rounds of rings for several algorithms: partial sums, then finished chunks ----

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


# ---- ring algorithms: every rank sends to the next one, once per round ----

OPTIONS = {"num_channels": 0, "num_loops": 1}
MAX_LOOPS = 65_536  # assumed: more would be steps of a few bytes, and rounds for hours


def _rings(problem: Problem, num_channels: int) -> Rings:
    """Return a ring through all ranks per channel; block r of each channel belongs to rank r."""
    orders = ring_orders(problem, num_channels)[:, None, :]
    return Rings(orders, orders * num_channels + np.arange(num_channels)[:, None, None])


def _complete(problem: Problem, options: Mapping[str, int]) -> dict[str, int]:
    """Return the options with the number of channels: by default one for each rail."""
    for name, most in (("num_channels", MAX_CHANNELS), ("num_loops", MAX_LOOPS)):
        if options[name] > most:
            raise ValueError(f"{name} may be at most {most}, got {options[name]}")
    num_channels = options["num_channels"] or min(num_rails(problem), MAX_CHANNELS)
    return {**options, "num_channels": num_channels}


def all_reduce(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Reduce-scatter around the ring, then all-gather around it.

    Rounds: 2 * (n - 1), each moving one chunk of count / n elements per rank.
    Buffers: those of `reduce_rounds`; OUTPUT is written once per chunk.
    """
    options = _complete(problem, options)
    num_ranks, num_channels = problem.world_size, options["num_channels"]
    table = ChunkTable.split(problem.count, num_ranks * num_channels)
    if num_ranks == 1:
        return local_only(problem, "ring", options, table=table)
    rings = _rings(problem, num_channels)

    def rounds() -> Iterator[Round]:
        yield from reduce_rounds(rings, first_shift=0, last=lambda chunk: chunk)
        yield from gather_rounds(rings, first_shift=-1)

    tables = Tables(table, table, rings.slot_table(table))
    return _schedule(problem, options, rings, rounds=rounds, tables=tables)


def reduce_scatter(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Send partial sums around the ring; the sum of chunk r ends on rank r.

    Rounds: n - 1, each moving one chunk of count elements per rank.
    Buffers: as in `all_reduce`; OUTPUT is written in the last round.
    """
    options = _complete(problem, options)
    num_ranks, num_channels = problem.world_size, options["num_channels"]
    whole, own = gathered_tables(problem, num_channels)
    if num_ranks == 1:
        return local_only(problem, "ring", options, table=whole)
    rings = _rings(problem, num_channels)

    def rounds() -> Iterator[Round]:
        yield from reduce_rounds(rings, first_shift=1, last=lambda _: rings.channel)

    tables = Tables(whole, own, rings.slot_table(whole))
    return _schedule(problem, options, rings, rounds=rounds, tables=tables)


def all_gather(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Pass each rank's input around the ring.

    Rounds: n - 1, each moving one chunk of count elements per rank; own chunks are copied locally.
    Buffers: no SCRATCH.
    """
    options = _complete(problem, options)
    num_ranks, num_channels = problem.world_size, options["num_channels"]
    whole, own = gathered_tables(problem, num_channels)
    if num_ranks == 1:
        return local_only(problem, "ring", options, table=whole)
    rings = _rings(problem, num_channels)

    def rounds() -> Iterator[Round]:
        yield _own_chunks(rings)
        yield from gather_rounds(rings, first_shift=0)

    return _schedule(problem, options, rings, rounds=rounds, tables=Tables(own, whole))


def _own_chunks(rings: Rings) -> Round:
    """Return the local round that puts each rank's input into its position in OUTPUT."""
    return Round(
        src=rings.src,
        dst=rings.src,
        src_buffer=rings.const(Buffer.INPUT),
        src_chunk=rings.channel,
        dst_buffer=rings.const(Buffer.OUTPUT),
        dst_chunk=rings.chunks(0),
        count=rings.const(1),
        op=rings.const(Op.COPY),
        channel=rings.channel,
    )


def _schedule(
    problem: Problem,
    options: Mapping[str, int],
    rings: Rings,
    *,
    rounds: Callable[[], Iterator[Round]],
    tables: Tables,
) -> Schedule:
    passes = 2 if problem.collective == "all_reduce" else 1
    phase = rings.phase(passes)
    return Schedule(
        collective=problem.collective,
        algorithm="ring",
        world_size=problem.world_size,
        rounds=rounds,
        num_rounds=phase.num_rounds,
        input=tables.input,
        output=tables.output,
        scratch=tables.scratch,
        num_loops=options["num_loops"],
        num_channels=options["num_channels"],
        phases=(phase,) if problem.splits is None else (),
        options=options,
    )


# ---- pipelines: the pieces of a part of the data take the same hops, round after round ----

CHUNK_BYTES = 64 * 1024  # Assumed: smaller pieces would be more rounds that save nothing.
MAX_CHUNKS = 32  # Assumed: the last piece comes that much later than the first one.
MAX_STEPS = 20_000  # Assumed: schedules of more are slow to compile, and rounds of them to play.
NO_FAN = -1


@dataclass(frozen=True, slots=True)
class Hops:
    """Steps that every piece of a part of the data takes, on a lane of that part.

    Shapes: (k hops)
        every array: [k]

    Attributes:
        src: Rank that sends.
        dst: Rank that receives.
        src_buffer: `Buffer` that is read.
        dst_buffer: `Buffer` that is written; of SCRATCH, the slot of the part.
        op: `Op`.
        part: Which part of the data.
        begin: Round in which the first piece takes the hop.
        fan: As in `Round`; NO_FAN where a step is alone.
    """

    src: IntArray
    dst: IntArray
    src_buffer: IntArray
    dst_buffer: IntArray
    op: IntArray
    part: IntArray
    begin: IntArray
    fan: IntArray

    @classmethod
    def join(cls, several: Sequence[Self]) -> Self:
        """Return the hops of several, in their order."""
        names = cls.__dataclass_fields__
        return cls(*(np.concatenate([getattr(each, name) for each in several]) for name in names))

    @property
    def num_hops(self) -> int:
        """Number of hops."""
        return len(self.src)

    def num_rounds(self, num_pieces: int) -> int:
        """Return the number of rounds of some pieces."""
        return int(self.begin.max(initial=0)) + num_pieces

    def rounds(self, num_pieces: int) -> Iterator[Round]:
        """Yield the rounds of some pieces; piece p of part q is chunk q * num_pieces + p."""
        has_fans = bool((self.fan != NO_FAN).any())
        for number in range(self.num_rounds(num_pieces)):
            piece = number - self.begin
            now = np.flatnonzero((piece >= 0) & (piece < num_pieces))
            chunk = self.part[now] * num_pieces + piece[now]
            yield Round(
                src=self.src[now],
                dst=self.dst[now],
                src_buffer=self.src_buffer[now],
                src_chunk=chunk,
                dst_buffer=self.dst_buffer[now],
                dst_chunk=np.where(self.dst_buffer[now] == Buffer.SCRATCH, self.part[now], chunk),
                count=np.ones_like(now),
                op=self.op[now],
                channel=self.part[now],
                fan=self.fan[now] if has_fans else None,
            )


def num_pieces(problem: Problem, wanted: int, *, num_parts: int, num_hops: int) -> int:
    """Return into how many pieces to cut each part of the data.

    Args:
        problem: Gives the bytes.
        wanted: What the caller asks for; 0: not many more steps than are worth it.
        num_parts: Parts that the data has.
        num_hops: Steps that each piece takes altogether.
    """
    largest = problem.count * problem.itemsize // (num_parts * CHUNK_BYTES)
    return wanted or max(1, min(largest, MAX_CHUNKS, MAX_STEPS // max(num_hops, 1)))


def node_ranks(problem: Problem) -> IntArray:
    """Return the ranks of each node; where nodes are uneven, a rank is a node of its own.

    Shapes: (N nodes, g ranks on each)
        returns: [N, g]
    """
    ranks = np.arange(problem.world_size, dtype=np.int64)
    return ranks.reshape(-1, problem.node_size or 1)
