"""Chunk tables and small rounds that several algorithms share."""

from collections.abc import Iterator, Mapping

import numpy as np

from simrank.collectives.problem import Problem
from simrank.collectives.schedule import Buffer, ChunkTable, IntArray, Op, Round, Schedule


def split_sizes(sizes: IntArray, num_parts: int) -> IntArray:
    """Return each size split into `num_parts` nearly equal parts.

    Shapes:
        sizes: [...]
        returns: [..., num_parts]
    """
    base, extra = np.divmod(sizes, num_parts)
    parts = np.arange(num_parts, dtype=np.int64)
    return base[..., None] + (parts < extra[..., None])


def gathered_tables(problem: Problem, num_parts: int = 1) -> tuple[ChunkTable, ChunkTable]:
    """Return the tables of the long and the short buffer of all_gather and reduce_scatter.

    Args:
        problem: Its splits, if any, are the sizes of the ranks' blocks.
        num_parts: Chunks per block.

    Returns:
        The long buffer, whose chunk `block * num_parts + part` belongs to rank `block`, and the
        short one with `num_parts` chunks (per rank if the blocks are uneven).
    """
    num_ranks = problem.world_size
    if problem.splits is None:
        parts = split_sizes(np.array([problem.count], dtype=np.int64), num_parts)
        return ChunkTable.from_sizes(np.tile(parts[0], num_ranks)), ChunkTable.from_sizes(parts[0])
    parts = split_sizes(np.array(problem.splits, dtype=np.int64), num_parts)
    return ChunkTable.from_sizes(parts.reshape(-1)), ChunkTable.from_sizes(parts)


def local_copy(ranks: IntArray, dst_chunk: IntArray, *, src_chunk: IntArray | None = None) -> Round:
    """Return a round in which each rank copies one INPUT chunk to one of its OUTPUT chunks.

    Args:
        ranks: The ranks that copy.
        dst_chunk: Chunk of OUTPUT, per rank.
        src_chunk: Chunk of INPUT, per rank; chunk 0 by default.
    """
    zeros = np.zeros_like(ranks)
    return Round(
        src=ranks,
        dst=ranks,
        src_buffer=zeros + Buffer.INPUT,
        src_chunk=zeros if src_chunk is None else src_chunk,
        dst_buffer=zeros + Buffer.OUTPUT,
        dst_chunk=dst_chunk,
        count=zeros + 1,
        op=zeros + Op.COPY,
        channel=zeros,
    )


def local_only(
    problem: Problem, algorithm: str, options: Mapping[str, int], *, table: ChunkTable
) -> Schedule:
    """Return the schedule of a group of one rank: its input is its output.

    Args:
        problem: A problem with `world_size` 1.
        algorithm: Name to give the schedule.
        options: Options to record.
        table: Chunks of INPUT and of OUTPUT.
    """

    def rounds() -> Iterator[Round]:
        chunks = np.arange(table.num_chunks, dtype=np.int64)
        yield local_copy(np.zeros_like(chunks), chunks, src_chunk=chunks)

    return Schedule(
        collective=problem.collective,
        algorithm=algorithm,
        world_size=1,
        rounds=rounds,
        num_rounds=0,
        input=table,
        output=table,
        options=options,
    )
