"""Broadcast and reduce: binomial trees, and chains that pipeline chunks.

Ranks have positions from the root on: position 0 is the root. A chain has one order of ranks per
channel, as rings do: between nodes each channel crosses another rail.

Source:
    binomial: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005, sections 4.2 and 4.4;
    chain: NCCL 2.30 `src/device/broadcast.h` and `reduce.h` (a ring cut at the root).
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from simrank.collectives.algorithms.layout import local_copy
from simrank.collectives.algorithms.ring import MAX_CHANNELS, num_rails, ring_orders
from simrank.collectives.problem import Problem
from simrank.collectives.schedule import (
    Buffer,
    ChunkTable,
    IntArray,
    Op,
    Round,
    Schedule,
    Tables,
)

TREE_OPTIONS: Mapping[str, int] = {}
CHAIN_OPTIONS = {"num_chunks": 0, "num_channels": 0}
CHAIN_CHUNK_BYTES = 512 * 1024  # NCCL 2.30 src/enqueue.cc: chunks of broadcast and reduce.
MAX_CHAIN_CHUNKS = 256  # Assumed: bounds the rounds of one loop; larger chunks cost little more.
MAX_CHAIN_STEPS = 1 << 18  # Assumed: schedules of more are slow to play.


def binomial_broadcast(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Double the number of ranks that hold the data in every round.

    Rounds: ceil(log2(n)), each moving the whole buffer.
    Buffers: no SCRATCH; the root sends from INPUT.
    """
    table = ChunkTable.split(problem.count, 1)
    order = _from_root(problem)

    def rounds() -> Iterator[Round]:
        yield _root_copy(problem, 1)
        reach = 1
        while reach < problem.world_size:
            src = np.arange(min(reach, problem.world_size - reach), dtype=np.int64)
            zeros = np.zeros_like(src)
            yield _forward(order, src, src + reach, chunk=zeros, channel=zeros)
            reach *= 2

    num_rounds = (problem.world_size - 1).bit_length()
    tables = Tables(table, table)
    return _schedule(
        problem, "binomial", options, rounds=rounds, num_rounds=num_rounds, tables=tables
    )


def binomial_reduce(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Halve the number of ranks that hold a partial sum in every round.

    Rounds: ceil(log2(n)), each moving the whole buffer.
    Buffers: SCRATCH holds the partial sum on every rank but the root.
    """
    table = ChunkTable.split(problem.count, 1)
    order = _from_root(problem)

    def rounds() -> Iterator[Round]:
        if problem.world_size == 1:
            yield _root_copy(problem, 1)
        reach = 1
        while reach < problem.world_size:
            src = np.arange(reach, problem.world_size, 2 * reach, dtype=np.int64)
            zeros = np.zeros_like(src)
            # A rank that receives at all does so in the first round, from the position after it.
            has_sum = (src + 1 < problem.world_size) & (reach > 1)
            yield _fold(
                order,
                src,
                src - reach,
                chunks=(zeros, zeros, zeros),
                channel=zeros,
                from_scratch=has_sum,
                operand_is_input=reach == 1,
            )
            reach *= 2

    num_rounds = (problem.world_size - 1).bit_length()
    tables = Tables(table, table, table)
    return _schedule(
        problem, "binomial", options, rounds=rounds, num_rounds=num_rounds, tables=tables
    )


def chain_broadcast(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Pass chunks from position to position, several on their way at once.

    Rounds: n - 2 + m for m chunks per channel (option num_chunks; by default chunks of 512 KiB).
    Buffers: no SCRATCH.
    """
    options = _complete_chain(problem, options)
    chains = _Chains(problem, options)
    table = ChunkTable.split(problem.count, chains.total_chunks)

    def rounds() -> Iterator[Round]:
        yield _root_copy(problem, chains.total_chunks)
        for number in range(chains.num_rounds):
            src, chunk, channel = chains.active(number)
            yield _forward(chains.order, src, src + 1, chunk=chunk, channel=channel)

    tables = Tables(table, table)
    return _schedule(
        problem, "chain", options, rounds=rounds, num_rounds=chains.num_rounds, tables=tables
    )


def chain_reduce(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Pass partial sums from the last position towards the root, several chunks at once.

    Rounds: n - 2 + m for m chunks per channel (option num_chunks; by default chunks of 512 KiB).
    Buffers: two SCRATCH slots per channel on every rank but the root.
    """
    options = _complete_chain(problem, options)
    chains = _Chains(problem, options)
    table = ChunkTable.split(problem.count, chains.total_chunks)
    last = problem.world_size - 1

    def rounds() -> Iterator[Round]:
        if last == 0:
            yield _root_copy(problem, chains.total_chunks)
        for number in range(chains.num_rounds):
            hop, chunk, channel = chains.active(number)
            slot = 2 * channel + chunk % 2
            yield _fold(
                chains.order,
                last - hop,
                last - hop - 1,
                chunks=(chunk, np.where(hop == 0, chunk, slot), slot),
                channel=channel,
                from_scratch=hop > 0,
                operand_is_input=True,
            )

    slots = ChunkTable.from_sizes([table.max_size] * (2 * options["num_channels"]))
    tables = Tables(table, table, slots)
    return _schedule(
        problem, "chain", options, rounds=rounds, num_rounds=chains.num_rounds, tables=tables
    )


def _complete_chain(problem: Problem, options: Mapping[str, int]) -> dict[str, int]:
    """Return the options with defaults: a channel per rail, and the chunk size."""
    if options["num_channels"] > MAX_CHANNELS:
        given = options["num_channels"]
        raise ValueError(f"num_channels may be at most {MAX_CHANNELS}, got {given}")
    num_channels = options["num_channels"] or min(num_rails(problem), MAX_CHANNELS)
    wanted = -(-problem.count * problem.itemsize // (CHAIN_CHUNK_BYTES * num_channels))
    most = MAX_CHAIN_STEPS // (num_channels * max(problem.world_size - 1, 1))
    num_chunks = options["num_chunks"] or max(1, min(wanted, MAX_CHAIN_CHUNKS, most))
    return {"num_chunks": num_chunks, "num_channels": num_channels}


class _Chains:
    """One chain per channel: its ring, cut at the root.

    Shapes: (C channels, n ranks)
        order: [C, n]

    Attributes:
        order: Rank at each position.
        total_chunks: Chunks of all channels; one channel's are together.
        num_rounds: Until the last chunk has passed the last hop.
    """

    def __init__(self, problem: Problem, options: Mapping[str, int]) -> None:
        num_channels, self._num_chunks = options["num_channels"], options["num_chunks"]
        orders = ring_orders(problem, num_channels)
        begins = (orders == problem.root).argmax(axis=1)
        self.order = np.stack(
            [np.roll(order, -begin) for order, begin in zip(orders, begins, strict=True)]
        )
        self._num_hops = problem.world_size - 1
        self.total_chunks = num_channels * self._num_chunks
        self.num_rounds = self._num_hops - 1 + self._num_chunks if self._num_hops else 0

    def active(self, number: int) -> tuple[IntArray, IntArray, IntArray]:
        """Return the hops that carry a chunk in a round, the chunk, and the channel of each.

        Hop h of a channel carries its chunk `number - h`.
        """
        first = max(0, number - self._num_chunks + 1)
        hops = np.arange(first, min(number + 1, self._num_hops), dtype=np.int64)
        channel = np.repeat(np.arange(len(self.order), dtype=np.int64), len(hops))
        hop = np.tile(hops, len(self.order))
        return hop, channel * self._num_chunks + number - hop, channel


def _from_root(problem: Problem) -> IntArray:
    """Return the ranks from the root on, as the order of one channel: [1, n]."""
    return np.roll(np.arange(problem.world_size, dtype=np.int64), -problem.root)[None]


def _root_copy(problem: Problem, num_chunks: int) -> Round:
    chunks = np.arange(num_chunks, dtype=np.int64)
    return local_copy(np.full_like(chunks, problem.root), chunks, src_chunk=chunks)


def _forward(
    order: IntArray, src: IntArray, dst: IntArray, *, chunk: IntArray, channel: IntArray
) -> Round:
    """Return the round that copies a chunk from each position in `src` to the one in `dst`."""
    zeros = np.zeros_like(src)
    return Round(
        src=order[channel, src],
        dst=order[channel, dst],
        src_buffer=np.where(src == 0, Buffer.INPUT, Buffer.OUTPUT),
        src_chunk=chunk,
        dst_buffer=zeros + Buffer.OUTPUT,
        dst_chunk=chunk,
        count=zeros + 1,
        op=zeros + Op.COPY,
        channel=channel,
    )


def _fold(  # noqa: PLR0913 - all of it is per step
    order: IntArray,
    src: IntArray,
    dst: IntArray,
    *,
    chunks: tuple[IntArray, IntArray, IntArray],
    channel: IntArray,
    from_scratch: IntArray | np.typing.NDArray[np.bool_],
    operand_is_input: bool,
) -> Round:
    """Return the round that reduces a chunk of each position in `src` into the one in `dst`.

    Args:
        order: [C, n] the rank at each position of each channel.
        src: Positions that send.
        dst: Positions that receive.
        chunks: Number of the chunk, where the sender keeps it, and its slot in SCRATCH of a
            receiver.
        channel: Of each step.
        from_scratch: Whether a sender holds a partial sum; else it sends its INPUT.
        operand_is_input: The receiver adds its INPUT; else what it has summed so far.
    """
    zeros = np.zeros_like(src)
    chunk, src_chunk, slot = chunks
    dst_buffer = np.where(dst == 0, Buffer.OUTPUT, Buffer.SCRATCH)
    dst_chunk = np.where(dst == 0, chunk, slot)
    return Round(
        src=order[channel, src],
        dst=order[channel, dst],
        src_buffer=np.where(from_scratch, Buffer.SCRATCH, Buffer.INPUT),
        src_chunk=src_chunk,
        dst_buffer=dst_buffer,
        dst_chunk=dst_chunk,
        count=zeros + 1,
        op=zeros + Op.REDUCE,
        channel=channel,
        operand_buffer=zeros + Buffer.INPUT if operand_is_input else dst_buffer,
        operand_chunk=chunk if operand_is_input else dst_chunk,
    )


def _schedule(
    problem: Problem,
    algorithm: str,
    options: Mapping[str, int],
    *,
    rounds: Callable[[], Iterator[Round]],
    num_rounds: int,
    tables: Tables,
) -> Schedule:
    """Return a rooted schedule."""
    return Schedule(
        collective=problem.collective,
        algorithm=algorithm,
        world_size=problem.world_size,
        rounds=rounds,
        num_rounds=num_rounds,
        input=tables.input,
        output=tables.output,
        scratch=tables.scratch,
        root=problem.root,
        num_channels=options.get("num_channels", 1),
        synchronizing=False,
        options=options,
    )
