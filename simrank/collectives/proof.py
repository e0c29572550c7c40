"""Proof that a schedule computes its collective, from the contributions to each chunk.

What a chunk holds is a multiset of input chunks: a copy passes it on, a reduction adds two of them,
and a contribution that is counted twice is as wrong as one that is missing. The rounds are run on
these as `play_data` runs them on values, and as `schedule` rules: steps of one round happen side by
side, those onto one chunk are applied in their order and written once. So a proof holds for all
data, dtypes and reductions that are associative and commutative; it is of the problem that it was
given, as algorithms may choose other steps for other sizes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from simrank.collectives.bounds import busbw_factor
from simrank.collectives.reference import pieces
from simrank.collectives.schedule import Buffer, Op, one_chunk_steps, step_elements
from simrank.errors import ranks_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simrank.collectives.problem import Problem
    from simrank.collectives.reference import Piece
    from simrank.collectives.schedule import ChunkTable, IntArray, Round, Schedule

Content: TypeAlias = dict[tuple[int, int], int]
"""How often each input chunk (rank, chunk) is in a value."""

_SHOWN_CHUNKS = 4  # Of a content in a message; more of them say no more.
_LARGE = {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"}


@dataclass(frozen=True, slots=True)
class Flaw:
    """The first flaw of a schedule, in the order of rounds.

    Attributes:
        what: One line.
        rank: Whose chunk is wrong.
        buffer: Where it lies.
        chunk: Its number.
        round_number: The round that does wrong, from 0; None: what is left at the end is wrong.
        holds: What the chunk holds, in words; None if not written.
        expected: What it should hold, in words; None where a step is wrong, not its result.
        num_wrong: How many chunks are wrong at the end.
    """

    what: str
    rank: int
    buffer: Buffer
    chunk: int
    round_number: int | None = None
    holds: str | None = None
    expected: str | None = None
    num_wrong: int = 0

    def __str__(self) -> str:
        """Return the text of a report."""
        return self.what


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of a proof.

    Attributes:
        flaw: What is wrong with it; None: it is proved.
        num_rounds: Rounds with steps between ranks.
        num_steps: Steps between ranks.
        busiest_bytes: The most bytes that a rank sends, or receives.
        bound_bytes: The bytes that some rank must send or receive with any algorithm; None where a
            switch reduces or copies, or sizes are uneven.
    """

    flaw: Flaw | None
    num_rounds: int
    num_steps: int
    busiest_bytes: int
    bound_bytes: float | None


def prove(
    schedule: Schedule, problem: Problem, on_round: Callable[[int], None] | None = None
) -> Proof:
    """Prove that a schedule computes its collective, or find the first flaw.

    Args:
        schedule: What to prove.
        problem: What it should solve; the one that it was built for.
        on_round: Called with the number of each round, from 0, before it is run.
    """
    memory, traffic = _Memory(schedule), _Traffic(schedule.world_size)
    flaw = None
    for number, steps in enumerate(schedule.rounds()):
        if on_round is not None:
            on_round(number)
        traffic.add(steps, step_elements(schedule.tables, steps))
        if flaw is None and steps.num_steps:
            flaw = _play(memory, one_chunk_steps(steps), number)
    if flaw is None:
        flaw = _first_wrong(memory, problem)
    bound = None
    if problem.splits is None and not traffic.has_fans:
        large = problem.collective in _LARGE
        size = problem.count * (problem.world_size if large else 1) * problem.itemsize
        alone = problem.world_size == 1
        bound = 0.0 if alone else busbw_factor(problem.collective, problem.world_size) * size
    busiest = int(traffic.elements.max()) * problem.itemsize
    return Proof(flaw, traffic.num_rounds, traffic.num_steps, busiest, bound)


class _Memory:
    """The contents of every chunk of every rank.

    Attributes:
        schedule: Whose chunks.
        held: Per chunk its content; None: not written.
        filled: Per chunk how many elements hold it; SCRATCH chunks may be longer.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._num_chunks = np.array([table.num_chunks for table in schedule.tables])
        sizes = self._num_chunks * schedule.world_size
        self._bases = np.cumsum(sizes) - sizes
        num_inputs, num_chunks = int(sizes[Buffer.INPUT]), schedule.input.num_chunks
        inputs = [{divmod(slot, num_chunks): 1} for slot in range(num_inputs)]
        self.held: list[Content | None] = [*inputs, *[None] * (int(sizes.sum()) - num_inputs)]
        self.filled = np.zeros(len(self.held), np.int64)
        shape = (schedule.world_size, num_chunks)
        self.filled[:num_inputs] = np.broadcast_to(schedule.input.size, shape).ravel()

    def slots(self, rank: IntArray, buffer: IntArray, chunk: IntArray) -> IntArray:
        """Return the numbers of chunks among those of all buffers and ranks."""
        slots: IntArray = self._bases[buffer] + rank * self._num_chunks[buffer] + chunk
        return slots

    def output_slot(self, rank: int, chunk: int) -> int:
        """Return the number of one chunk of OUTPUT."""
        return int(self._bases[Buffer.OUTPUT] + rank * self._num_chunks[Buffer.OUTPUT] + chunk)

    def place(self, slot: int) -> tuple[int, Buffer, int]:
        """Return rank, buffer and chunk of a number that `slots` returned."""
        buffer = Buffer(int(np.searchsorted(self._bases, slot, side="right")) - 1)
        rank, chunk = divmod(slot - int(self._bases[buffer]), int(self._num_chunks[buffer]))
        return rank, buffer, chunk

    def is_short(self, slot: int, num_elements: int) -> bool:
        """Return whether a write would leave the end of an older value behind it."""
        return bool(slot < self._bases[Buffer.SCRATCH] and num_elements < self.filled[slot])


@dataclass(slots=True)
class _Write:
    """The write of a round to one chunk.

    Attributes:
        operand: Chunk that the arriving ones are added to; None after a COPY.
        sources: Chunks that are copied or added, in order.
        num_elements: How many elements are written.
    """

    operand: int | None
    sources: list[int]
    num_elements: int


def _play(memory: _Memory, steps: Round, number: int) -> Flaw | None:
    """Run one round; return its first flaw."""
    wanted = step_elements(memory.schedule.tables, steps)
    slots = memory.slots(steps.dst, steps.dst_buffer, steps.dst_chunk)
    sources = memory.slots(steps.src, steps.src_buffer, steps.src_chunk)
    operands = slots
    if steps.operand_buffer is not None and steps.operand_chunk is not None:
        operands = memory.slots(steps.dst, steps.operand_buffer, steps.operand_chunk)
    moved = np.minimum(wanted, memory.filled[sources])
    writes: dict[int, _Write] = {}
    columns = (slots, sources, operands, steps.op, wanted, moved)
    for slot, source, operand, op, want, size in zip(*(c.tolist() for c in columns), strict=True):
        is_copy = op == Op.COPY
        for read in (source,) if is_copy else (source, operand):
            if want and memory.held[read] is None and not (read == slot and slot in writes):
                return _unwritten(memory, read, slot, number)
        known = writes.get(slot)
        if known is None:
            writes[slot] = _Write(None if is_copy else operand, [source], size)
        elif is_copy or operand not in (slot, known.operand):
            return _conflict(memory, slot, number, is_copy=is_copy)
        else:
            known.sources.append(source)
            known.num_elements = min(known.num_elements, size)
    return _apply(memory, writes, number)


def _apply(memory: _Memory, writes: dict[int, _Write], number: int) -> Flaw | None:
    """Apply the writes of a round at once."""
    results = {}
    for slot, write in writes.items():
        reads = write.sources
        if write.operand is not None:
            reads = [write.operand, *reads]
            write.num_elements = min(write.num_elements, int(memory.filled[write.operand]))
        for read in reads:
            is_own = read == slot and read == write.operand
            if read in writes and not is_own and memory.filled[read]:
                return _race(memory, read, number)
        if memory.is_short(slot, write.num_elements) and write.num_elements:
            return _short(memory, slot, write.num_elements, number)
        results[slot] = _sum([memory.held[read] or {} for read in reads])
    for slot, content in results.items():
        if writes[slot].num_elements or memory.held[slot] is None:
            memory.held[slot] = content
            memory.filled[slot] = writes[slot].num_elements
    return None


def _sum(contents: list[Content]) -> Content:
    """Return the contributions of several values together."""
    if len(contents) == 1:
        return contents[0]
    ordered = sorted(contents, key=len, reverse=True)  # Dicts are copied faster than they grow.
    total = ordered[0].copy()
    for content in ordered[1:]:
        for piece, count in content.items():
            total[piece] = total.get(piece, 0) + count
    return total


def _first_wrong(memory: _Memory, problem: Problem) -> Flaw | None:
    """Return the first wrong chunk of the outputs."""
    schedule = memory.schedule
    expected = _Expected(schedule)
    wrong: dict[tuple[int, int], tuple[str, str]] = {}
    alike: dict[tuple[int, int], bool] = {}
    for piece in pieces(problem):
        for rank in piece.ranks:
            chunks = list(expected.chunks(rank, piece))
            if not _covers(chunks, piece):
                return _uncovered(rank, piece)
            for chunk, start, size in chunks:
                should = expected.content(piece, start, size)
                slot = memory.output_slot(rank, chunk)
                held = memory.held[slot]
                key = (id(held), id(should))
                if key not in alike:
                    alike[key] = held == should
                if not alike[key] or memory.filled[slot] < size:
                    is_part = held is not None and memory.filled[slot] < size
                    holds = f"{'a part of ' if is_part else ''}{content_text(held)}"
                    wrong[rank, chunk] = holds, content_text(should)
    if not wrong:
        return None
    rank, chunk = min(wrong)
    holds, should_hold = wrong[rank, chunk]
    more = f" ({len(wrong)} chunks are wrong in all)" if len(wrong) > 1 else ""
    what = (
        f"at the end OUTPUT chunk {chunk} of rank {rank} holds {holds}, "
        f"and should hold {should_hold}{more}"
    )
    return Flaw(what, rank, Buffer.OUTPUT, chunk, None, holds, should_hold, len(wrong))


class _Expected:
    """The expected outputs, in chunks.

    Attributes:
        schedule: Whose chunks.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._inputs = [
            {(start, size): chunk for chunk, start, size in _filled_chunks(schedule.input, rank)}
            for rank in range(schedule.world_size)
        ]
        self._outputs = [
            _filled_chunks(schedule.output, rank) for rank in range(schedule.world_size)
        ]
        self._contents: dict[tuple[int, int, tuple[tuple[int, int], ...]], Content] = {}

    def chunks(self, rank: int, piece: Piece) -> Iterator[tuple[int, int, int]]:
        """Yield number, start and size of the OUTPUT chunks that begin in a piece."""
        for chunk, start, size in self._outputs[rank]:
            if piece.start <= start < piece.start + piece.size:
                yield chunk, start, size

    def content(self, piece: Piece, start: int, size: int) -> Content:
        """Return the expected contents of a chunk of a piece.

        A source that is cut into other chunks is named as chunk -1, which no rank holds.
        """
        key = (start, size, tuple(piece.sources))
        if key not in self._contents:
            self._contents[key] = {
                (rank, self._inputs[rank].get((first + start - piece.start, size), -1)): 1
                for rank, first in piece.sources
            }
        return self._contents[key]


def _filled_chunks(table: ChunkTable, rank: int) -> list[tuple[int, int, int]]:
    """Return number, start and size of a rank's chunks that have elements, by start."""
    starts = table.start if table.start.ndim == 1 else table.start[rank]
    sizes = table.size if table.size.ndim == 1 else table.size[rank]
    rows = zip(range(len(sizes)), starts.tolist(), sizes.tolist(), strict=True)
    return sorted((row for row in rows if row[2]), key=lambda row: row[1])


def _covers(chunks: list[tuple[int, int, int]], piece: Piece) -> bool:
    """Return whether chunks are exactly a piece, without gaps."""
    if not piece.size:
        return True
    ends = [piece.start, *(start + size for _, start, size in chunks)]
    starts = [*(start for _, start, _ in chunks), piece.start + piece.size]
    return starts == ends


class _Traffic:
    """The traffic between ranks.

    Attributes:
        elements: [n, 2] sent and received by each rank.
        num_rounds, num_steps: As `Proof` has them.
        has_fans: Whether a switch copies or reduces.
    """

    def __init__(self, world_size: int) -> None:
        self.elements = np.zeros((world_size, 2), np.int64)
        self.num_rounds = self.num_steps = 0
        self.has_fans = False

    def add(self, steps: Round, moved: IntArray) -> None:
        """Count a round; the steps of one fan load the link that they share once."""
        remote = steps.src != steps.dst
        self.num_rounds += bool(remote.any())
        self.num_steps += int(remote.sum())
        for side, ranks in enumerate((steps.src, steps.dst)):
            counted = remote
            if steps.fan is not None:
                self.has_fans |= bool((steps.fan[remote] >= 0).any())
                keys = np.where(steps.fan >= 0, steps.fan, -1 - np.arange(steps.num_steps))
                _, first = np.unique(np.stack((keys, ranks)), axis=1, return_index=True)
                counted = remote & np.isin(np.arange(steps.num_steps), first)
            np.add.at(self.elements[:, side], ranks[counted], moved[counted])


# ---- words ----


def content_text(content: Content | None) -> str:
    """Return the text of a chunk's contents, for example `the sum of chunk 2 of ranks 0-3`."""
    if content is None:
        return "nothing"
    if not content:
        return "no elements"
    ranks_of: dict[int, list[int]] = {}
    for rank, chunk in sorted(content):
        ranks_of.setdefault(chunk, []).append(rank)
    parts = []
    for chunk, ranks in sorted(ranks_of.items()):
        rank_s = "rank" if len(ranks) == 1 else "ranks"
        name = f"chunk {chunk}" if chunk >= 0 else "a part that is no INPUT chunk"
        again = Counter({rank: content[rank, chunk] for rank in ranks if content[rank, chunk] > 1})
        often = ", ".join(f"rank {rank} {n} times" for rank, n in again.most_common(_SHOWN_CHUNKS))
        parts.append(f"{name} of {rank_s} {ranks_text(ranks)}" + (f" ({often})" if often else ""))
    if len(parts) > _SHOWN_CHUNKS:
        parts[_SHOWN_CHUNKS:] = [f"{len(parts) - _SHOWN_CHUNKS} more chunks"]
    text = " and ".join(parts)
    return text if sum(content.values()) == 1 else f"the sum of {text}"


def _name(memory: _Memory, slot: int) -> str:
    rank, buffer, chunk = memory.place(slot)
    return f"{buffer.name} chunk {chunk} of rank {rank}"


def _unwritten(memory: _Memory, read: int, slot: int, number: int) -> Flaw:
    what = (
        f"round {number} reads {_name(memory, read)}, which is not written, "
        f"for {_name(memory, slot)}"
    )
    return Flaw(what, *memory.place(read), number)


def _conflict(memory: _Memory, slot: int, number: int, *, is_copy: bool) -> Flaw:
    how = (
        "a copy undoes what another step writes" if is_copy else "two steps reduce onto two values"
    )
    what = f"round {number} writes {_name(memory, slot)} twice: {how}"
    return Flaw(what, *memory.place(slot), number)


def _race(memory: _Memory, read: int, number: int) -> Flaw:
    what = f"round {number} reads {_name(memory, read)}, which another of its steps writes"
    return Flaw(what, *memory.place(read), number)


def _short(memory: _Memory, slot: int, num_elements: int, number: int) -> Flaw:
    what = (
        f"round {number} writes {num_elements} of the {memory.filled[slot]} elements of "
        f"{_name(memory, slot)}"
    )
    return Flaw(what, *memory.place(slot), number)


def _uncovered(rank: int, piece: Piece) -> Flaw:
    what = (
        f"OUTPUT chunks of rank {rank} do not make up elements {piece.start} to "
        f"{piece.start + piece.size}"
    )
    return Flaw(what, rank, Buffer.OUTPUT, -1)
