"""Pairwise all_to_all: in round k every rank sends to the rank k places after it.

Source:
    Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
    IJHPCA 19(1), 2005, section 4.3; zero sizes are not sent, as in torch `all2all_single_unequal`.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from simrank.collectives.problem import Problem
from simrank.collectives.schedule import Buffer, ChunkTable, IntArray, Op, Round, Schedule

OPTIONS: Mapping[str, int] = {}


def all_to_all(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Exchange one chunk with every other rank, one peer per round.

    Rounds: n - 1 after a local one; steps without elements are left out.
    Buffers: no SCRATCH; an INPUT under OUTPUT is copied first.
    """
    num_ranks = problem.world_size
    ranks = np.arange(num_ranks, dtype=np.int64)
    matrix: IntArray | None = None
    if problem.splits is None:
        sent = received = ChunkTable.from_sizes(np.full(num_ranks, problem.count))
    else:
        matrix = np.array(problem.splits, dtype=np.int64).reshape(num_ranks, num_ranks)
        sent, received = ChunkTable.from_sizes(matrix), ChunkTable.from_sizes(matrix.T)

    def rounds() -> Iterator[Round]:
        for shift in range(num_ranks):
            src, dst = ranks, (ranks + shift) % num_ranks
            if matrix is not None:
                filled = matrix[src, dst] > 0
                src, dst = src[filled], dst[filled]
            yield _exchange(src, dst)

    return Schedule(
        collective=problem.collective,
        algorithm="pairwise",
        world_size=num_ranks,
        rounds=rounds,
        num_rounds=num_ranks - 1,
        input=sent,
        output=received,
        # Empty messages are not sent, so an uneven one need not join everyone.
        synchronizing=matrix is None,
        in_place_safe=False,
        options=options,
    )


def _exchange(src: IntArray, dst: IntArray) -> Round:
    zeros = np.zeros_like(src)
    return Round(
        src=src,
        dst=dst,
        src_buffer=zeros + Buffer.INPUT,
        src_chunk=dst,
        dst_buffer=zeros + Buffer.OUTPUT,
        dst_chunk=src,
        count=zeros + 1,
        op=zeros + Op.COPY,
        channel=zeros,
    )
