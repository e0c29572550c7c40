"""A collective algorithm as plain data: rounds of steps between chunks of buffers.

Start reading at `Round`, then `Schedule`. An algorithm is a pure function that returns a
`Schedule`; data movement, the order of reduction and time are all derived from it by `play`.

Rules that every schedule keeps:

* A step moves `count` consecutive chunks of one rank's buffer to another's. A step from a rank to
  itself is local and costs no time; of no chunks, it is there only for its lanes.
* Steps of a round read what earlier rounds left: no step reads a chunk that another step of the
  same round writes (with `in_place_safe`, also when OUTPUT lies over INPUT).
* Steps of a round that write the same chunk are applied in their order and written once.
* Nothing reads an INPUT chunk that has been written through an OUTPUT that may alias it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

IntArray: TypeAlias = npt.NDArray[np.int64]


class Buffer(IntEnum):
    """The buffer of a chunk; SCRATCH belongs to the collective."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2


class Op(IntEnum):
    """The effect of arriving elements: COPY replaces, REDUCE combines with the operand."""

    COPY = 0
    REDUCE = 1


class Round(NamedTuple):
    """Steps that happen side by side; all arrays have one entry per step.

    Attributes:
        src: Rank that sends.
        dst: Rank that receives; equal to `src` for a local step.
        src_buffer: `Buffer` that is read.
        src_chunk: First chunk that is read.
        dst_buffer: `Buffer` that is written.
        dst_chunk: First chunk that is written.
        count: Number of consecutive chunks.
        op: `Op`. COPY: dst = src. REDUCE: dst = operand (+) src.
        channel: Lane of the step on both ranks; if there is `dst_channel`, on the sender only.
        operand_buffer: `Buffer` of the REDUCE operand on `dst`; None means the destination chunk.
        operand_chunk: First chunk of the operand; None together with `operand_buffer`.
        fan: Steps of equal id >= 0 are one step inside a switch (a multicast, or an in-switch
            reduction): they load a link that they share once. None means no such steps.
        dst_channel: Lane of the step on the receiver, if that is another one. What a local step
            leaves on it then comes after all that its own lane has done.
    """

    src: IntArray
    dst: IntArray
    src_buffer: IntArray
    src_chunk: IntArray
    dst_buffer: IntArray
    dst_chunk: IntArray
    count: IntArray  # type: ignore[assignment]  # Hides tuple.count, which is unused.
    op: IntArray
    channel: IntArray
    operand_buffer: IntArray | None = None
    operand_chunk: IntArray | None = None
    fan: IntArray | None = None
    dst_channel: IntArray | None = None

    @property
    def num_steps(self) -> int:
        """Number of steps of the round."""
        return len(self.src)


@dataclass(frozen=True, eq=False)
class ChunkTable:
    """The chunks of one buffer, in elements.

    Shapes: (C chunks, n ranks)
        start, size: [C] when all ranks share them, or [n, C]

    Attributes:
        start: First element of each chunk.
        size: Number of elements of each chunk; zero is normal.
    """

    start: IntArray
    size: IntArray

    @classmethod
    def from_sizes(cls, size: npt.ArrayLike) -> Self:
        """Return chunks of the given sizes, packed one after the other."""
        sizes = np.asarray(size, dtype=np.int64)
        return cls(np.cumsum(sizes, axis=-1) - sizes, sizes)

    @classmethod
    def split(cls, count: int, num_chunks: int) -> Self:
        """Return `num_chunks` chunks over `count` elements; the first are one larger if uneven."""
        base, extra = divmod(count, num_chunks)
        sizes = np.full(num_chunks, base, dtype=np.int64)
        sizes[:extra] += 1
        return cls.from_sizes(sizes)

    @property
    def num_chunks(self) -> int:
        """Number of chunks on each rank."""
        return int(self.size.shape[-1])

    @cached_property
    def max_size(self) -> int:
        """Elements of the largest chunk."""
        return int(self.size.max(initial=0))

    @cached_property
    def num_elements(self) -> int:
        """Elements that a buffer needs to hold every chunk (of the largest rank)."""
        return int((self.start + self.size).max(initial=0))

    @cached_property
    def is_contiguous(self) -> bool:
        """Whether each chunk begins where the one before it ends."""
        return bool(np.all(self.start[..., 1:] == (self.start + self.size)[..., :-1]))

    def cut(self, first: int, limit: int, *, packed: bool = False) -> Self:
        """Return elements `[first, first + limit)` of every chunk, clipped to the chunk.

        This is how loops (and the cache blocks of `play_data`) advance: loop `i` moves the i-th
        slice of every chunk, and the last slices of short chunks are short or empty.

        Args:
            first: First element of the slice inside each chunk.
            limit: Number of elements of the slice.
            packed: Put the slices next to each other instead of leaving them where they are; for
                SCRATCH, whose content never outlives a loop.
        """
        size = np.clip(self.size - first, 0, limit)
        if packed:
            slots = np.arange(self.num_chunks, dtype=np.int64) * min(limit, self.max_size)
            return type(self)(np.broadcast_to(slots, size.shape), size)
        return type(self)(self.start + np.minimum(first, self.size), size)


NO_CHUNKS = ChunkTable.from_sizes([])


class Tables(NamedTuple):
    """Chunk tables in the order of `Buffer`."""

    input: ChunkTable
    output: ChunkTable
    scratch: ChunkTable = NO_CHUNKS


class Phase(NamedTuple):
    """Rounds in which every rank sends once on each channel, to the next rank of its ring.

    Steps are listed channel by channel, ring by ring and in the order of the ring, the same in all
    rounds. Each is as long as the largest (shorter ones are padded in time, as NCCL's aligned
    chunks are). This permits closed forms.

    Shapes: (C channels, R rings of m ranks each)
        rings: [C, R, m]

    Attributes:
        rings: The ranks; each is on one ring of every channel.
        num_rounds: How many.
        num_chunks: Chunks that a step moves: those from a multiple of that number on.
    """

    rings: IntArray
    num_rounds: int
    num_chunks: int = 1

    @property
    def ends(self) -> tuple[IntArray, IntArray]:
        """Senders and receivers of the steps."""
        return self.rings.reshape(-1), np.roll(self.rings, -1, axis=-1).reshape(-1)

    def step_elements(self, tables: Tables) -> int:
        """Return the elements of a step."""
        sizes = [tables.input.size, tables.output.size]
        if self.num_chunks > 1:
            sizes = [np.add.reduceat(each, self._first_chunks(each), axis=-1) for each in sizes]
        return int(max(each.max(initial=0) for each in sizes))

    def _first_chunks(self, size: IntArray) -> IntArray:
        return np.arange(0, size.shape[-1], self.num_chunks)


@dataclass(frozen=True, eq=False)
class Schedule:
    """The steps of one collective algorithm, for one number of ranks and one size.

    A step moves the smallest of its source, destination and operand chunks: SCRATCH slots may be
    as large as the largest chunk that visits them.

    Attributes:
        collective: For example "all_reduce".
        algorithm: Name in the table of algorithms.
        world_size: Number of ranks.
        rounds: Returns a fresh iterator over the rounds of one loop.
        num_rounds: Rounds of one loop that move data between ranks.
        input: Chunks of INPUT.
        output: Chunks of OUTPUT.
        scratch: Chunks of SCRATCH.
        root: Root rank of a rooted collective, else None.
        num_loops: How often the rounds are repeated, each time on the next slice of every chunk
            (see `loop_elements`).
        num_channels: Channels of the library that it stands for; lanes per rank, if `num_lanes` is
            0.
        num_lanes: Lanes per rank, where those are not channels.
        phases: What its rounds are, if all of them that move data are those of rings, one phase
            after the other; with several phases there is one loop. Else none.
        synchronizing: Every rank's completion depends on every rank's arrival.
        in_place_safe: OUTPUT may lie over INPUT where torch allows it; else INPUT is copied first.
        wide: Steps of a round onto one chunk accumulate in float32 and are rounded once; else they
            are rounded to the storage dtype after each step.
        options: The options that the algorithm was built with, defaults included.
    """

    collective: str
    algorithm: str
    world_size: int
    rounds: Callable[[], Iterator[Round]]
    num_rounds: int
    input: ChunkTable
    output: ChunkTable
    scratch: ChunkTable = NO_CHUNKS
    root: int | None = None
    num_loops: int = 1
    num_channels: int = 1
    num_lanes: int = 0
    phases: tuple[Phase, ...] = ()
    synchronizing: bool = True
    in_place_safe: bool = True
    wide: bool = False
    options: Mapping[str, int] = field(default_factory=dict)

    @property
    def tables(self) -> Tables:
        """Chunk tables in the order of `Buffer`."""
        return Tables(self.input, self.output, self.scratch)

    @property
    def max_chunk(self) -> int:
        """Elements of the largest chunk that INPUT or OUTPUT has."""
        return max(self.input.max_size, self.output.max_size)

    @property
    def loop_elements(self) -> int:
        """Elements of each chunk that one loop moves; the last loop may have fewer left."""
        return max(1, -(-self.max_chunk // self.num_loops))

    def loop_tables(self, loop: int) -> Tables:
        """Return the chunk tables of loop number `loop`, in the order of `Buffer`."""
        if self.num_loops == 1:
            return self.tables
        return cut_tables(self, loop * self.loop_elements, self.loop_elements)

    def materialise(self) -> list[Round]:
        """Return the rounds of one loop as a list (for import, export and tests)."""
        return list(self.rounds())


def cut_tables(schedule: Schedule, first: int, limit: int) -> Tables:
    """Return the tables of a schedule cut to elements `[first, first + limit)` of every chunk."""
    return Tables(
        schedule.input.cut(first, limit),
        schedule.output.cut(first, limit),
        schedule.scratch.cut(first, limit, packed=True),
    )


def step_elements(tables: Tables, steps: Round) -> IntArray:
    """Return the number of elements of each step of a round.

    Args:
        tables: Chunk tables in the order of `Buffer`.
        steps: The round.
    """
    moved = _extent(tables, (steps.src, steps.src_buffer, steps.src_chunk), steps.count)
    moved = np.minimum(
        moved, _extent(tables, (steps.dst, steps.dst_buffer, steps.dst_chunk), steps.count)
    )
    if steps.operand_buffer is not None and steps.operand_chunk is not None:
        operand = (steps.dst, steps.operand_buffer, steps.operand_chunk)
        # The operand of a COPY step is not used, and may be any chunk.
        held = _extent(tables, operand, steps.count)
        moved = np.where(steps.op == Op.REDUCE, np.minimum(moved, held), moved)
    return moved


def crosses_links(steps: Round) -> npt.NDArray[np.bool_]:
    """Return the steps that use links: between ranks, and a rank's own share of a fan."""
    between: npt.NDArray[np.bool_] = steps.src != steps.dst
    return between if steps.fan is None else between | (steps.fan >= 0)


def _extent(
    tables: Tables,
    first: tuple[IntArray, IntArray, IntArray],
    count: IntArray,
) -> IntArray:
    """Return the elements of `count` chunks from `first` on: (rank, buffer, chunk)."""
    rank, buffer, chunk = first
    total = np.zeros(len(rank), dtype=np.int64)
    for number, table in enumerate(tables):
        chosen = buffer == number
        if not chosen.any():
            continue
        size = table.size
        sums = np.zeros((*size.shape[:-1], size.shape[-1] + 1), dtype=np.int64)
        np.cumsum(size, axis=-1, out=sums[..., 1:])
        begin, end = chunk[chosen], (chunk + count)[chosen]
        if size.ndim == 1:
            total[chosen] = sums[end] - sums[begin]
        else:
            total[chosen] = sums[rank[chosen], end] - sums[rank[chosen], begin]
    return total


# ---- Steps of several chunks as steps of one ----


def one_chunk_steps(steps: Round) -> Round:
    """Return the round with each step of several chunks as several steps of one."""
    if bool((steps.count == 1).all()):
        return steps
    offset = spread(np.zeros_like(steps.count), steps.count)
    repeated = Round(
        *(None if column is None else np.repeat(column, steps.count) for column in steps)  # type: ignore[arg-type]
    )
    operand = repeated.operand_chunk
    return repeated._replace(
        src_chunk=repeated.src_chunk + offset,
        dst_chunk=repeated.dst_chunk + offset,
        count=np.ones_like(offset),
        operand_chunk=None if operand is None else operand + offset,
    )


def spread(first: IntArray, sizes: IntArray) -> IntArray:
    """Return the numbers `first[i], ..., first[i] + sizes[i] - 1` for each i, one after another."""
    if len(sizes) and bool(np.all(sizes == sizes[0])):
        return (first[:, None] + np.arange(sizes[0])).ravel()
    before = np.cumsum(sizes) - sizes
    return np.repeat(first - before, sizes) + np.arange(int(sizes.sum()))
