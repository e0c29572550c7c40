"""Recursive halving and doubling: exchange with partners at power-of-two distances.

Source:
    Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
    IJHPCA 19(1), 2005, sections 4.1 (all_gather), 4.5 (reduce_scatter) and 4.6 (all_reduce).
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from simrank.collectives.algorithms.layout import gathered_tables, local_copy, local_only
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

OPTIONS: Mapping[str, int] = {}


def is_power_of_two(world_size: int) -> bool:
    """Return whether every distance up to `world_size` has a partner for every rank."""
    return world_size & (world_size - 1) == 0


def all_reduce(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Rabenseifner's algorithm: recursive halving, then recursive doubling, neighbours first.

    Any number of ranks: of the first 2 * (n - p) ranks, p the largest power of two <= n, the even
    ones give their data to the odd ones before and get the result after.

    Rounds: 2 * log2(p), and two more that move the whole buffer unless n = p.
    Buffers: no SCRATCH; partial sums are kept in OUTPUT.
    """
    num_ranks = problem.world_size
    num_active = 1 << (num_ranks.bit_length() - 1)
    table = ChunkTable.split(problem.count, num_active)
    if num_ranks == 1:
        return local_only(problem, "halving_doubling", options, table=table)
    num_extra = num_ranks - num_active

    def rounds() -> Iterator[Round]:
        position = np.arange(num_active, dtype=np.int64)
        rank = np.where(position < num_extra, 2 * position + 1, position + num_extra)
        odd = 2 * np.arange(num_extra, dtype=np.int64) + 1
        if num_extra:
            yield _fold_extra(odd, num_active)
        yield from _halve(rank, folded=position < num_extra)
        yield from _double(rank)
        if num_extra:
            yield _copy(odd, odd - 1, chunk=np.zeros_like(odd), count=num_active)

    num_rounds = 2 * (num_active.bit_length() - 1) + 2 * min(1, num_extra)
    tables = Tables(table, table)
    return _schedule(problem, options, num_rounds=num_rounds, rounds=rounds, tables=tables)


def all_gather(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Recursive doubling: exchange all that one holds, at distances 1, 2, 4, ...

    Admits numbers of ranks that are powers of two.

    Rounds: log2(n), moving 1, 2, 4, ... chunks of count elements.
    Buffers: no SCRATCH.
    """
    whole, own = gathered_tables(problem)
    ranks = np.arange(problem.world_size, dtype=np.int64)

    def rounds() -> Iterator[Round]:
        yield local_copy(ranks, ranks)
        distance = 1
        while distance < problem.world_size:
            first = ranks // distance * distance
            yield _copy(ranks, ranks ^ distance, chunk=first, count=distance)
            distance *= 2

    num_rounds = problem.world_size.bit_length() - 1
    tables = Tables(own, whole)
    return _schedule(problem, options, num_rounds=num_rounds, rounds=rounds, tables=tables)


def reduce_scatter(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Recursive halving: send the partner's half, at distances n / 2, ..., 2, 1.

    Admits numbers of ranks that are powers of two.

    Rounds: log2(n), moving n / 2, ..., 2, 1 chunks of count elements.
    Buffers: SCRATCH holds partial sums of the half that a rank keeps in the first round.
    """
    num_ranks = problem.world_size
    whole, own = gathered_tables(problem)
    if num_ranks == 1:
        return local_only(problem, "halving_doubling", options, table=whole)
    ranks = np.arange(num_ranks, dtype=np.int64)

    def rounds() -> Iterator[Round]:
        distance = num_ranks // 2
        while distance:
            yield _halving_round(ranks, distance)
            distance //= 2

    slots = ChunkTable.from_sizes([whole.max_size] * (num_ranks // 2))
    num_rounds = num_ranks.bit_length() - 1
    tables = Tables(whole, own, slots)
    return _schedule(problem, options, num_rounds=num_rounds, rounds=rounds, tables=tables)


def _fold_extra(odd: IntArray, num_chunks: int) -> Round:
    """Return the round in which each odd rank takes over its even neighbour's data."""
    zeros = np.zeros_like(odd)
    return Round(
        src=odd - 1,
        dst=odd,
        src_buffer=zeros + Buffer.INPUT,
        src_chunk=zeros,
        dst_buffer=zeros + Buffer.OUTPUT,
        dst_chunk=zeros,
        count=zeros + num_chunks,
        op=zeros + Op.REDUCE,
        channel=zeros,
        operand_buffer=zeros + Buffer.INPUT,
        operand_chunk=zeros,
    )


def _halve(rank: IntArray, *, folded: np.typing.NDArray[np.bool_]) -> Iterator[Round]:
    """Yield rounds in which each position sends one half of its chunks and sums the other.

    Args:
        rank: Rank of each position.
        folded: Positions whose partial sum is in OUTPUT from the start; others begin with INPUT.
    """
    position = np.arange(len(rank), dtype=np.int64)
    zeros = np.zeros_like(position)
    buffer = np.where(folded, Buffer.OUTPUT, Buffer.INPUT)
    first, distance, count = zeros, 1, len(rank) // 2
    while count:
        # A position keeps the upper half where its bit is set; its partner keeps the other.
        is_upper = (position & distance) > 0
        kept = first + np.where(is_upper, count, 0)
        sent = first + np.where(is_upper, 0, count)
        dst = position ^ distance
        yield Round(
            src=rank,
            dst=rank[dst],
            src_buffer=buffer,
            src_chunk=sent,
            dst_buffer=zeros + Buffer.OUTPUT,
            dst_chunk=sent,
            count=zeros + count,
            op=zeros + Op.REDUCE,
            channel=zeros,
            operand_buffer=buffer[dst],
            operand_chunk=sent,
        )
        first, distance, count, buffer = kept, distance * 2, count // 2, zeros + Buffer.OUTPUT


def _double(rank: IntArray) -> Iterator[Round]:
    """Yield the rounds of `_halve` backwards, each position sending all it has."""
    position = np.arange(len(rank), dtype=np.int64)
    distance, count = len(rank) // 2, 1
    while distance:
        yield _copy(
            rank, rank[position ^ distance], chunk=_kept(position, distance, len(rank)), count=count
        )
        distance, count = distance // 2, count * 2


def _kept(position: IntArray, distance: int, num_chunks: int) -> IntArray:
    """Return the first chunk that each position kept in the halving round at `distance`."""
    first, half, bit = np.zeros_like(position), num_chunks // 2, 1
    while bit <= distance:
        first = first + np.where(position & bit, half, 0)
        half, bit = half // 2, bit * 2
    return first


def _halving_round(ranks: IntArray, distance: int) -> Round:
    """Return the round of a reduce_scatter at `distance`; block b of chunks belongs to rank b."""
    zeros = np.zeros_like(ranks)
    half = len(ranks) // 2
    is_first, is_last = distance == half, distance == 1
    dst = ranks ^ distance
    sent = dst // distance * distance  # First chunk of the half that the partner keeps.
    slot = sent % half
    in_sums = Buffer.INPUT if is_first else Buffer.SCRATCH
    chunk = sent if is_first else slot
    return Round(
        src=ranks,
        dst=dst,
        src_buffer=zeros + in_sums,
        src_chunk=chunk,
        dst_buffer=zeros + (Buffer.OUTPUT if is_last else Buffer.SCRATCH),
        dst_chunk=zeros if is_last else slot,
        count=zeros + distance,
        op=zeros + Op.REDUCE,
        channel=zeros,
        operand_buffer=zeros + in_sums,
        operand_chunk=chunk,
    )


def _copy(src: IntArray, dst: IntArray, *, chunk: IntArray, count: int) -> Round:
    """Return the round that copies finished chunks from OUTPUT to OUTPUT."""
    zeros = np.zeros_like(src)
    return Round(
        src=src,
        dst=dst,
        src_buffer=zeros + Buffer.OUTPUT,
        src_chunk=chunk,
        dst_buffer=zeros + Buffer.OUTPUT,
        dst_chunk=chunk,
        count=zeros + count,
        op=zeros + Op.COPY,
        channel=zeros,
    )


def _schedule(
    problem: Problem,
    options: Mapping[str, int],
    *,
    num_rounds: int,
    rounds: Callable[[], Iterator[Round]],
    tables: Tables,
) -> Schedule:
    return Schedule(
        collective=problem.collective,
        algorithm="halving_doubling",
        world_size=problem.world_size,
        rounds=rounds,
        num_rounds=num_rounds,
        input=tables.input,
        output=tables.output,
        scratch=tables.scratch,
        options=options,
    )
