"""Broadcast and reduce: binomial trees, and chains that pipeline chunks.

Ranks are numbered from the root here: position 0 is the root, position p is rank (root + p) mod n.

Source:
    binomial: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005, sections 4.2 and 4.4;
    chain: NCCL 2.30 `src/device/broadcast.h` and `reduce.h` (a ring cut at the root).
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from simrank.collectives.algorithms.layout import local_copy
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
CHAIN_OPTIONS = {"num_chunks": 0}
CHAIN_CHUNK_BYTES = 512 * 1024  # NCCL 2.30 src/enqueue.cc: chunks of broadcast and reduce.
MAX_CHAIN_CHUNKS = 256  # Assumed: bounds the rounds of one loop; larger chunks cost little more.


def binomial_broadcast(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Double the number of ranks that hold the data in every round.

    Rounds: ceil(log2(n)), each moving the whole buffer.
    Buffers: no SCRATCH; the root sends from INPUT.
    """
    table = ChunkTable.split(problem.count, 1)

    def rounds() -> Iterator[Round]:
        yield _root_copy(problem, 1)
        reach = 1
        while reach < problem.world_size:
            src = np.arange(min(reach, problem.world_size - reach), dtype=np.int64)
            yield _forward(problem, src, src + reach, chunk=np.zeros_like(src))
            reach *= 2

    return _schedule(problem, "binomial", options, rounds=rounds, tables=Tables(table, table))


def binomial_reduce(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Halve the number of ranks that hold a partial sum in every round.

    Rounds: ceil(log2(n)), each moving the whole buffer.
    Buffers: SCRATCH holds the partial sum on every rank but the root.
    """
    table = ChunkTable.split(problem.count, 1)

    def rounds() -> Iterator[Round]:
        if problem.world_size == 1:
            yield _root_copy(problem, 1)
        reach = 1
        while reach < problem.world_size:
            src = np.arange(reach, problem.world_size, 2 * reach, dtype=np.int64)
            zeros = np.zeros_like(src)
            # Whoever receives at all received in the first round, from the position after it.
            has_sum = (src + 1 < problem.world_size) & (reach > 1)
            yield _fold(
                problem,
                src,
                src - reach,
                chunks=(zeros, zeros, zeros),
                from_scratch=has_sum,
                operand_is_input=reach == 1,
            )
            reach *= 2

    return _schedule(
        problem, "binomial", options, rounds=rounds, tables=Tables(table, table, table)
    )


def chain_broadcast(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Pass chunks from position to position, several on their way at once.

    Rounds: n - 2 + m for m chunks (option num_chunks; by default chunks of 512 KiB).
    Buffers: no SCRATCH.
    """
    num_chunks = _num_chunks(problem, options)
    table = ChunkTable.split(problem.count, num_chunks)

    def rounds() -> Iterator[Round]:
        yield _root_copy(problem, num_chunks)
        for number in range(_chain_rounds(problem, num_chunks)):
            src = _active(number, problem.world_size - 1, num_chunks)
            yield _forward(problem, src, src + 1, chunk=number - src)

    options = {**options, "num_chunks": num_chunks}
    return _schedule(problem, "chain", options, rounds=rounds, tables=Tables(table, table))


def chain_reduce(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Pass partial sums from the last position towards the root, several chunks at once.

    Rounds: n - 2 + m for m chunks (option num_chunks; by default chunks of 512 KiB).
    Buffers: two SCRATCH slots on every rank but the root.
    """
    num_chunks = _num_chunks(problem, options)
    table = ChunkTable.split(problem.count, num_chunks)
    last = problem.world_size - 1

    def rounds() -> Iterator[Round]:
        if last == 0:
            yield _root_copy(problem, num_chunks)
        for number in range(_chain_rounds(problem, num_chunks)):
            hop = _active(number, last, num_chunks)
            src, chunk = last - hop, number - hop
            yield _fold(
                problem,
                src,
                src - 1,
                chunks=(chunk, np.where(hop == 0, chunk, chunk % 2), chunk % 2),
                from_scratch=hop > 0,
                operand_is_input=True,
            )

    slots = ChunkTable.from_sizes([table.max_size] * 2)
    options = {**options, "num_chunks": num_chunks}
    return _schedule(problem, "chain", options, rounds=rounds, tables=Tables(table, table, slots))


def _num_chunks(problem: Problem, options: Mapping[str, int]) -> int:
    wanted = -(-problem.count * problem.itemsize // CHAIN_CHUNK_BYTES)
    return options["num_chunks"] or max(1, min(wanted, MAX_CHAIN_CHUNKS))


def _chain_rounds(problem: Problem, num_chunks: int) -> int:
    return problem.world_size - 2 + num_chunks if problem.world_size > 1 else 0


def _active(number: int, num_hops: int, num_chunks: int) -> IntArray:
    """Return the hops of a chain that carry a chunk in round `number`: hop h has chunk number-h."""
    return np.arange(max(0, number - num_chunks + 1), min(number + 1, num_hops), dtype=np.int64)


def _rank(problem: Problem, position: IntArray) -> IntArray:
    return (position + problem.root) % problem.world_size


def _root_copy(problem: Problem, num_chunks: int) -> Round:
    chunks = np.arange(num_chunks, dtype=np.int64)
    return local_copy(np.full_like(chunks, problem.root), chunks, src_chunk=chunks)


def _forward(problem: Problem, src: IntArray, dst: IntArray, *, chunk: IntArray) -> Round:
    """Return the round that copies a chunk from each position in `src` to the one in `dst`."""
    zeros = np.zeros_like(src)
    return Round(
        src=_rank(problem, src),
        dst=_rank(problem, dst),
        src_buffer=np.where(src == 0, Buffer.INPUT, Buffer.OUTPUT),
        src_chunk=chunk,
        dst_buffer=zeros + Buffer.OUTPUT,
        dst_chunk=chunk,
        count=zeros + 1,
        op=zeros + Op.COPY,
        channel=zeros,
    )


def _fold(
    problem: Problem,
    src: IntArray,
    dst: IntArray,
    *,
    chunks: tuple[IntArray, IntArray, IntArray],
    from_scratch: IntArray | np.typing.NDArray[np.bool_],
    operand_is_input: bool,
) -> Round:
    """Return the round that reduces a chunk of each position in `src` into the one in `dst`.

    Args:
        problem: Gives the root.
        src: Positions that send.
        dst: Positions that receive.
        chunks: Number of the chunk, where the sender keeps it, and its slot in SCRATCH of a
            receiver.
        from_scratch: Whether a sender holds a partial sum; else it sends its INPUT.
        operand_is_input: The receiver adds its INPUT; else what it has summed so far.
    """
    zeros = np.zeros_like(src)
    chunk, src_chunk, slot = chunks
    dst_buffer = np.where(dst == 0, Buffer.OUTPUT, Buffer.SCRATCH)
    dst_chunk = np.where(dst == 0, chunk, slot)
    return Round(
        src=_rank(problem, src),
        dst=_rank(problem, dst),
        src_buffer=np.where(from_scratch, Buffer.SCRATCH, Buffer.INPUT),
        src_chunk=src_chunk,
        dst_buffer=dst_buffer,
        dst_chunk=dst_chunk,
        count=zeros + 1,
        op=zeros + Op.REDUCE,
        channel=zeros,
        operand_buffer=zeros + Buffer.INPUT if operand_is_input else dst_buffer,
        operand_chunk=chunk if operand_is_input else dst_chunk,
    )


def _schedule(
    problem: Problem,
    algorithm: str,
    options: Mapping[str, int],
    *,
    rounds: Callable[[], Iterator[Round]],
    tables: Tables,
) -> Schedule:
    """Return a rooted schedule."""
    num_rounds = (problem.world_size - 1).bit_length()
    if algorithm == "chain":
        num_rounds = _chain_rounds(problem, options["num_chunks"])
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
        synchronizing=False,
        options=options,
    )
