"""Direct algorithms: every rank reads from all other ranks at once.

Source:
    one-shot and two-shot all_reduce as in TensorRT-LLM's and vLLM's custom all_reduce kernels;
    sums accumulate in float32 in rank order, so every rank gets the same bits.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from simrank.collectives.algorithms.layout import gathered_tables, local_copy, local_only
from simrank.collectives.problem import Problem
from simrank.collectives.schedule import Buffer, ChunkTable, IntArray, Op, Round, Schedule, Tables

OPTIONS: Mapping[str, int] = {}
MAX_WORLD_SIZE = 1024  # Assumed: a round has n * n steps, a million of them here.


def admits(world_size: int) -> bool:
    """Return whether the n * n steps of a round are few enough."""
    return world_size <= MAX_WORLD_SIZE


def one_shot_all_reduce(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Return the schedule in which every rank reads all inputs and reduces them.

    Rounds: 1, in which every rank receives n - 1 whole inputs.
    Buffers: no SCRATCH; an INPUT under OUTPUT is copied first.
    """
    table = ChunkTable.split(problem.count, 1)
    src, dst = _pairs(problem.world_size)

    def rounds() -> Iterator[Round]:
        yield _reduce_round(src, dst, src_chunk=np.zeros_like(src), dst_chunk=np.zeros_like(src))

    return Schedule(
        collective=problem.collective,
        algorithm="one_shot",
        world_size=problem.world_size,
        rounds=rounds,
        num_rounds=min(1, problem.world_size - 1),
        input=table,
        output=table,
        in_place_safe=False,
        wide=True,
        options=options,
    )


def two_shot_all_reduce(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Return the schedule in which every rank reduces one chunk, then reads the other chunks.

    Rounds: 2, in each of which every rank receives n - 1 chunks of count / n elements.
    Buffers: no SCRATCH.
    """
    table = ChunkTable.split(problem.count, problem.world_size)
    if problem.world_size == 1:
        return local_only(problem, "two_shot", options, table=table)
    src, dst = _pairs(problem.world_size)

    def rounds() -> Iterator[Round]:
        yield _reduce_round(src, dst, src_chunk=dst, dst_chunk=dst)
        other = src != dst
        yield _copy_round(src[other], dst[other], Buffer.OUTPUT, src_chunk=src[other])

    return _schedule(problem, "two_shot", options, rounds=rounds, tables=Tables(table, table))


def all_gather(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Return the schedule in which every rank copies all inputs.

    Rounds: 1, in which every rank receives n - 1 chunks of count elements.
    Buffers: no SCRATCH.
    """
    whole, own = gathered_tables(problem)
    ranks = np.arange(problem.world_size, dtype=np.int64)
    src, dst = _pairs(problem.world_size)
    src, dst = src[src != dst], dst[src != dst]

    def rounds() -> Iterator[Round]:
        yield local_copy(ranks, ranks)
        if problem.world_size > 1:
            yield _copy_round(src, dst, Buffer.INPUT, src_chunk=np.zeros_like(src))

    return _schedule(problem, "direct", options, rounds=rounds, tables=Tables(own, whole))


def reduce_scatter(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Return the schedule in which every rank reduces its chunk of all inputs.

    Rounds: 1, in which every rank receives n - 1 chunks of count elements.
    Buffers: no SCRATCH.
    """
    whole, own = gathered_tables(problem)
    src, dst = _pairs(problem.world_size)

    def rounds() -> Iterator[Round]:
        yield _reduce_round(src, dst, src_chunk=dst, dst_chunk=np.zeros_like(src))

    return _schedule(problem, "direct", options, rounds=rounds, tables=Tables(whole, own))


def _pairs(world_size: int) -> tuple[IntArray, IntArray]:
    """Return sources and destinations of all pairs of ranks, i to i included, by destination."""
    ranks = np.arange(world_size, dtype=np.int64)
    return np.tile(ranks, world_size), np.repeat(ranks, world_size)


def _reduce_round(
    src: IntArray, dst: IntArray, *, src_chunk: IntArray, dst_chunk: IntArray
) -> Round:
    """Return the round that reduces one INPUT chunk of every rank, starting with rank 0's."""
    zeros = np.zeros_like(src)
    return Round(
        src=src,
        dst=dst,
        src_buffer=zeros + Buffer.INPUT,
        src_chunk=src_chunk,
        dst_buffer=zeros + Buffer.OUTPUT,
        dst_chunk=dst_chunk,
        count=zeros + 1,
        op=np.where(src == 0, Op.COPY, Op.REDUCE),
        channel=zeros,
    )


def _copy_round(src: IntArray, dst: IntArray, buffer: Buffer, *, src_chunk: IntArray) -> Round:
    """Return the round that copies a chunk of every source to chunk `src` of OUTPUT."""
    zeros = np.zeros_like(src)
    return Round(
        src=src,
        dst=dst,
        src_buffer=zeros + buffer,
        src_chunk=src_chunk,
        dst_buffer=zeros + Buffer.OUTPUT,
        dst_chunk=src,
        count=zeros + 1,
        op=zeros + Op.COPY,
        channel=zeros,
    )


def _schedule(
    problem: Problem,
    algorithm: str,
    options: Mapping[str, int],
    *,
    rounds: Callable[[], Iterator[Round]],
    tables: Tables,
) -> Schedule:
    num_rounds = 2 if algorithm == "two_shot" else 1
    return Schedule(
        collective=problem.collective,
        algorithm=algorithm,
        world_size=problem.world_size,
        rounds=rounds,
        num_rounds=num_rounds if problem.world_size > 1 else 0,
        input=tables.input,
        output=tables.output,
        wide=True,
        options=options,
    )
