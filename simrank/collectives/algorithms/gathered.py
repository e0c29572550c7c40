"""Gather and scatter: the root exchanges one message with every other rank, all at once.

Source:
    torch 2.13 `torch/csrc/cuda/nccl.cpp` (gather, scatter: one group of sends and receives).
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from simrank.collectives.problem import Problem
from simrank.collectives.schedule import Buffer, ChunkTable, IntArray, Op, Round, Schedule, Tables

OPTIONS: Mapping[str, int] = {}


def direct_gather(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Return the schedule in which every rank sends its input to the root.

    Rounds: 1, in which all messages share the root's way in.
    Buffers: no SCRATCH; only the root's OUTPUT is written.
    """
    ranks = np.arange(problem.world_size, dtype=np.int64)
    whole, own = _tables(problem)

    def rounds() -> Iterator[Round]:
        for chosen in (ranks == problem.root, ranks != problem.root):
            src = ranks[chosen]
            if len(src):
                yield _copy(src, np.full_like(src, problem.root), np.zeros_like(src), src)

    return _schedule(problem, options, rounds, Tables(own, whole))


def direct_scatter(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Return the schedule in which the root sends each rank its part.

    Rounds: 1, in which all messages share the root's way out.
    Buffers: no SCRATCH; only the root's INPUT is read.
    """
    ranks = np.arange(problem.world_size, dtype=np.int64)
    whole, own = _tables(problem)

    def rounds() -> Iterator[Round]:
        for chosen in (ranks == problem.root, ranks != problem.root):
            dst = ranks[chosen]
            if len(dst):
                yield _copy(np.full_like(dst, problem.root), dst, dst, np.zeros_like(dst))

    return _schedule(problem, options, rounds, Tables(whole, own))


def _tables(problem: Problem) -> tuple[ChunkTable, ChunkTable]:
    """Return the chunks of the root's long buffer and of every rank's short one."""
    sizes = np.full(problem.world_size, problem.count, dtype=np.int64)
    return ChunkTable.from_sizes(sizes), ChunkTable.split(problem.count, 1)


def _copy(src: IntArray, dst: IntArray, src_chunk: IntArray, dst_chunk: IntArray) -> Round:
    zeros = np.zeros_like(src)
    return Round(
        src=src,
        dst=dst,
        src_buffer=zeros + Buffer.INPUT,
        src_chunk=src_chunk,
        dst_buffer=zeros + Buffer.OUTPUT,
        dst_chunk=dst_chunk,
        count=zeros + 1,
        op=zeros + Op.COPY,
        channel=zeros,
    )


def _schedule(
    problem: Problem,
    options: Mapping[str, int],
    rounds: Callable[[], Iterator[Round]],
    tables: Tables,
) -> Schedule:
    return Schedule(
        collective=problem.collective,
        algorithm="direct",
        world_size=problem.world_size,
        rounds=rounds,
        num_rounds=int(problem.world_size > 1),
        input=tables.input,
        output=tables.output,
        root=problem.root,
        synchronizing=False,
        in_place_safe=False,
        options=options,
    )
