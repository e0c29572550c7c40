"""all_to_all: pairwise, a peer per round, or direct, all peers at once.

Source:
    Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
    IJHPCA 19(1), 2005, section 4.3; zero sizes are not sent, as in torch `all2all_single_unequal`.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from simrank.collectives.problem import Problem
from simrank.collectives.schedule import Buffer, ChunkTable, IntArray, Op, Round, Schedule

OPTIONS: Mapping[str, int] = {}


def all_to_all(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Exchange one chunk with every other rank, one peer per round.

    Rounds: n - 1 after a local one: in round k every rank sends to the rank k positions after it;
        steps without elements are left out.
    Buffers: no SCRATCH; an INPUT under OUTPUT is copied first.
    """
    shifts = np.arange(problem.world_size, dtype=np.int64)
    return _schedule(problem, "pairwise", options, shifts=[shifts[k : k + 1] for k in shifts])


def direct_all_to_all(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Exchange one chunk with every other rank, all of them at once.

    Rounds: 1 after a local one; it uses every link of a mesh, and shares those of a switch.
    Buffers: no SCRATCH; an INPUT under OUTPUT is copied first.
    """
    shifts = np.arange(problem.world_size, dtype=np.int64)
    return _schedule(problem, "direct", options, shifts=[shifts[:1], shifts[1:]])


def _schedule(
    problem: Problem,
    algorithm: str,
    options: Mapping[str, int],
    *,
    shifts: Sequence[IntArray],
) -> Schedule:
    """Return the schedule whose rounds send over the given distances."""
    num_ranks = problem.world_size
    ranks = np.arange(num_ranks, dtype=np.int64)
    matrix: IntArray | None = None
    if problem.splits is None:
        sent = received = ChunkTable.from_sizes(np.full(num_ranks, problem.count))
    else:
        matrix = np.array(problem.splits, dtype=np.int64).reshape(num_ranks, num_ranks)
        sent, received = ChunkTable.from_sizes(matrix), ChunkTable.from_sizes(matrix.T)

    def rounds() -> Iterator[Round]:
        for shift in shifts:
            src = np.repeat(ranks, len(shift))
            dst = (src + np.tile(shift, num_ranks)) % num_ranks
            if matrix is not None:
                filled = matrix[src, dst] > 0
                src, dst = src[filled], dst[filled]
            if len(src):
                yield _exchange(src, dst)

    return Schedule(
        collective=problem.collective,
        algorithm=algorithm,
        world_size=num_ranks,
        rounds=rounds,
        num_rounds=sum(bool(shift.any()) for shift in shifts),
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
