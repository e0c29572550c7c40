"""Ring algorithms: every rank sends to the next one, once per round.

One ring in the order of ranks crosses between nodes on a single rail. So on several nodes there are
by default as many channels as a node has ranks, each with a share of every chunk and a ring of its
own.

Source:
    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    JPDC 69(2), 2009; order of hops as in NCCL 2.30 `src/device/all_reduce.h`, `all_gather.h` and
    `reduce_scatter.h`; one ring per rail as NCCL's graph search finds them (`src/graph/search.cc`).
"""

from collections.abc import Callable, Iterator, Mapping

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

OPTIONS = {"num_channels": 0, "num_loops": 1}
MAX_LOOPS = 65_536  # assumed: more would be steps of a few bytes, and rounds for hours
MAX_CHANNELS = 64  # NCCL 2.30 src/include/device.h, MAXCHANNELS.


class _RingPositions:
    """Arrays that all rounds of a ring share: one entry per channel and position on its ring.

    On several nodes, channel c visits local ranks c, c + 1, ..., c - 1 of each node in turn, so
    that it enters nodes at another device, and crosses another rail, than its neighbours do.

    Args:
        problem: Its `node_size` says which ranks are on one node.
        num_channels: Number of rings.
    """

    def __init__(self, problem: Problem, num_channels: int) -> None:
        self.world_size, self.num_channels = problem.world_size, num_channels
        self.orders = orders = _orders(problem, num_channels)
        self.src = orders.reshape(-1)
        self.dst = np.roll(orders, -1, axis=1).reshape(-1)
        self.channel = np.repeat(np.arange(num_channels, dtype=np.int64), self.world_size)
        self._constants = [np.full(len(self.src), value, dtype=np.int64) for value in range(3)]
        self._twice = np.concatenate((orders, orders), axis=1)

    def const(self, value: int) -> IntArray:
        """Return `value` for each lane: the same array each time, which players recognise."""
        return self._constants[value]

    def chunks(self, shift: int) -> IntArray:
        """Return the chunk that belongs to the rank `shift` positions before, for each lane."""
        first = -shift % self.world_size
        blocks = self._twice[:, first : first + self.world_size]
        chunks: IntArray = blocks[0]
        if self.num_channels > 1:
            chunks = blocks.reshape(-1) * self.num_channels + self.channel
        return chunks


def _orders(problem: Problem, num_channels: int) -> IntArray:
    """Return the ranks of each channel in the order of its ring: [channels, ranks]."""
    size = problem.node_size or problem.world_size
    nodes = np.arange(problem.world_size, dtype=np.int64).reshape(-1, size)
    if problem.num_nodes == 1:
        return np.tile(nodes, (num_channels, 1))
    # Fewer channels than rails are spread over them.
    shifts = [channel * size // min(size, num_channels) for channel in range(num_channels)]
    return np.stack([np.roll(nodes, -shift, axis=1).reshape(-1) for shift in shifts])


def _complete(problem: Problem, options: Mapping[str, int]) -> dict[str, int]:
    """Return the options with the number of channels: by default one for each rail."""
    num_rails = problem.node_size if problem.num_nodes > 1 else 1
    for name, most in (("num_channels", MAX_CHANNELS), ("num_loops", MAX_LOOPS)):
        if options[name] > most:
            raise ValueError(f"{name} may be at most {most}, got {options[name]}")
    num_channels = options["num_channels"] or min(num_rails, MAX_CHANNELS)
    return {**options, "num_channels": num_channels}


def all_reduce(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Reduce-scatter around the ring, then all-gather around it.

    Rounds: 2 * (n - 1), each moving one chunk of count / n elements per rank.
    Buffers: partial sums travel through two SCRATCH slots per channel (NCCL's connection buffer)
        and are rounded to the storage dtype at each hop; OUTPUT is written once per chunk.
    """
    options = _complete(problem, options)
    num_ranks, num_channels = problem.world_size, options["num_channels"]
    table = ChunkTable.split(problem.count, num_ranks * num_channels)
    if num_ranks == 1:
        return local_only(problem, "ring", options, table=table)
    lanes = _RingPositions(problem, num_channels)

    def rounds() -> Iterator[Round]:
        yield from _reduce_rounds(lanes, first_shift=0, last=lambda chunk: chunk)
        yield from _gather_rounds(lanes, first_shift=-1)

    slots = ChunkTable.from_sizes([table.max_size] * (2 * num_channels))
    return _schedule(problem, options, lanes, rounds=rounds, tables=Tables(table, table, slots))


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
    lanes = _RingPositions(problem, num_channels)

    def rounds() -> Iterator[Round]:
        yield from _reduce_rounds(lanes, first_shift=1, last=lambda _: lanes.channel)

    slots = ChunkTable.from_sizes([whole.max_size] * (2 * num_channels))
    return _schedule(problem, options, lanes, rounds=rounds, tables=Tables(whole, own, slots))


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
    lanes = _RingPositions(problem, num_channels)

    def rounds() -> Iterator[Round]:
        yield _own_chunks(lanes)
        yield from _gather_rounds(lanes, first_shift=0)

    return _schedule(problem, options, lanes, rounds=rounds, tables=Tables(own, whole))


def _reduce_rounds(
    lanes: _RingPositions, *, first_shift: int, last: Callable[[IntArray], IntArray]
) -> Iterator[Round]:
    """Yield n - 1 hops of partial sums; `last` maps a chunk to where its sum is stored."""
    num_hops = lanes.world_size - 1
    slots = [lanes.channel * 2 + parity for parity in (0, 1)]
    for hop in range(num_hops):
        chunk = lanes.chunks(first_shift + hop)
        is_last = hop == num_hops - 1
        yield Round(
            src=lanes.src,
            dst=lanes.dst,
            src_buffer=lanes.const(Buffer.SCRATCH if hop else Buffer.INPUT),
            src_chunk=slots[(hop - 1) % 2] if hop else chunk,
            dst_buffer=lanes.const(Buffer.OUTPUT if is_last else Buffer.SCRATCH),
            dst_chunk=last(chunk) if is_last else slots[hop % 2],
            count=lanes.const(1),
            op=lanes.const(Op.REDUCE),
            channel=lanes.channel,
            operand_buffer=lanes.const(Buffer.INPUT),
            operand_chunk=chunk,
        )


def _gather_rounds(lanes: _RingPositions, *, first_shift: int) -> Iterator[Round]:
    """Yield n - 1 hops that copy finished chunks from OUTPUT to OUTPUT."""
    for hop in range(lanes.world_size - 1):
        chunk = lanes.chunks(first_shift + hop)
        yield Round(
            src=lanes.src,
            dst=lanes.dst,
            src_buffer=lanes.const(Buffer.OUTPUT),
            src_chunk=chunk,
            dst_buffer=lanes.const(Buffer.OUTPUT),
            dst_chunk=chunk,
            count=lanes.const(1),
            op=lanes.const(Op.COPY),
            channel=lanes.channel,
        )


def _own_chunks(lanes: _RingPositions) -> Round:
    """Return the local round that puts each rank's input into its position in OUTPUT."""
    return Round(
        src=lanes.src,
        dst=lanes.src,
        src_buffer=lanes.const(Buffer.INPUT),
        src_chunk=lanes.channel,
        dst_buffer=lanes.const(Buffer.OUTPUT),
        dst_chunk=lanes.chunks(0),
        count=lanes.const(1),
        op=lanes.const(Op.COPY),
        channel=lanes.channel,
    )


def _schedule(
    problem: Problem,
    options: Mapping[str, int],
    lanes: _RingPositions,
    *,
    rounds: Callable[[], Iterator[Round]],
    tables: Tables,
) -> Schedule:
    passes = 2 if problem.collective == "all_reduce" else 1
    num_rounds = passes * (problem.world_size - 1)
    return Schedule(
        collective=problem.collective,
        algorithm="ring",
        world_size=problem.world_size,
        rounds=rounds,
        num_rounds=num_rounds,
        input=tables.input,
        output=tables.output,
        scratch=tables.scratch,
        num_loops=options["num_loops"],
        num_channels=options["num_channels"],
        phases=(Phase(lanes.orders[:, None, :], num_rounds),) if problem.splits is None else (),
        options=options,
    )
