"""Pipelines: the pieces of a part of the data take the same hops, round after round.

A hop of the first piece happens in its `begin` round, that of the next piece a round later. So what
a tree or a switch does with a piece is written once, and rounds follow from it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from simrank.collectives.problem import Problem
from simrank.collectives.schedule import Buffer, IntArray, Round

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
