"""Moves data step by step through slices: for few ranks, or large chunks.

A schedule is elementwise, so a slice of every chunk can travel through all rounds before the next
slice starts. Slices are sized to stay in the cache: inputs are read from memory once and outputs
written once, however many rounds there are.
"""

from typing import Any, NamedTuple

import numpy as np

from simrank.collectives.reduction import AnyArray, Reduction
from simrank.collectives.schedule import Buffer, Op, Round, Schedule

BLOCK_BYTES = 32 * 1024  # Measured: 16 KiB to 128 KiB are equal within noise on 8 ranks.


class _Place(NamedTuple):
    """A chunk in memory.

    Attributes:
        array: The rank's buffer.
        start: First element of the chunk.
        moves: 1 if slice `first` of the chunk begins at `start + first`, 0 for packed scratch.
        is_input: Whether elements read here are scaled.
    """

    array: AnyArray
    start: int
    moves: int
    is_input: bool


class _Step(NamedTuple):
    """One destination of one round, and all that goes into it.

    Attributes:
        dst: Where the result is written.
        size: Elements of the chunk.
        first: What the accumulator starts from.
        rest: What is reduced into it, in order.
    """

    dst: _Place
    size: int
    first: _Place
    rest: tuple[_Place, ...]


class DirectPlayer:
    """Plays one schedule on one list of arrays per rank.

    Args:
        schedule: What to play.
        inputs: One array per rank.
        outputs: One array per rank.
        how: The reduction.
        is_staged: Slices of INPUT are copied before they are played, because OUTPUT lies over it.
    """

    def __init__(
        self,
        schedule: Schedule,
        inputs: list[AnyArray],
        *,
        outputs: list[AnyArray],
        how: Reduction,
        is_staged: bool = False,
    ) -> None:
        dtype = inputs[0].dtype
        self._schedule, self._how, self._dtype = schedule, how, dtype
        self._max_chunk = max(table.max_size for table in schedule.tables)
        self._block = max(1, min(self._max_chunk, BLOCK_BYTES // dtype.itemsize))
        slots = schedule.scratch.num_chunks * self._block
        scratch = [np.empty(slots, dtype) for _ in range(schedule.world_size if slots else 0)]
        self._buffers = (inputs, outputs, scratch)
        slots = schedule.input.num_chunks * self._block
        self._stage = [np.empty(slots, dtype) for _ in inputs] if is_staged else []
        # Lists, because single numbers of an array are slow to read: [chunk] or [rank][chunk].
        self._sizes = [table.size.tolist() for table in schedule.tables]
        self._starts = [table.start.tolist() for table in schedule.tables]
        self._is_per_rank = [table.size.ndim == 2 for table in schedule.tables]
        self._rounds = [self._compile(steps) for steps in schedule.rounds()]

    def play(self) -> None:
        """Run every round on every slice."""
        for first in range(0, self._max_chunk, self._block):
            for rank, stage in enumerate(self._stage):
                self._copy_input(rank, stage, first)
            for steps in self._rounds:
                results: dict[tuple[int, ...], AnyArray] = {}
                for step in steps:
                    self._play_step(step, first, results)

    def _copy_input(self, rank: int, stage: AnyArray, first: int) -> None:
        values = self._buffers[Buffer.INPUT][rank]
        for chunk in range(self._schedule.input.num_chunks):
            place = (rank, Buffer.INPUT, chunk)
            size = min(self._block, self._number(self._sizes, *place) - first)
            if size > 0:
                start, slot = self._number(self._starts, *place) + first, chunk * self._block
                stage[slot : slot + size] = values[start : start + size]

    def _compile(self, steps: Round) -> list[_Step]:
        """Return a round as destinations, each with everything that goes into it, in order."""
        found: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
        sizes: dict[tuple[int, int, int], int] = {}
        columns = [column.tolist() for column in steps[:8]]
        operands = None
        if steps.operand_buffer is not None and steps.operand_chunk is not None:
            operands = (steps.operand_buffer.tolist(), steps.operand_chunk.tolist())
        for index, row in enumerate(zip(*columns, strict=True)):
            src, dst, src_buffer, src_chunk, dst_buffer, dst_chunk, count, op = row
            for part in range(count):
                key = (dst, dst_buffer, dst_chunk + part)
                sources = found.setdefault(key, [])
                source = (src, src_buffer, src_chunk + part)
                if op == Op.COPY or not sources:
                    sources.clear()
                    sizes[key] = self._number(self._sizes, *key)
                if op == Op.REDUCE and not sources:
                    operand = key
                    if operands is not None:
                        operand = (dst, operands[0][index], operands[1][index] + part)
                    sources.append(operand)
                    sizes[key] = min(sizes[key], self._number(self._sizes, *operand))
                sources.append(source)
                sizes[key] = min(sizes[key], self._number(self._sizes, *source))
        return [self._step(key, found[key], sizes[key]) for key in found if sizes[key]]

    def _number(self, table: list[Any], rank: int, buffer: int, chunk: int) -> int:
        """Return a chunk's entry of `_sizes` or `_starts`."""
        row = table[buffer][rank] if self._is_per_rank[buffer] else table[buffer]
        number: int = row[chunk]
        return number

    def _place(self, rank: int, buffer: int, chunk: int) -> _Place:
        array = self._buffers[buffer][rank]
        if buffer == Buffer.SCRATCH:
            return _Place(array, chunk * self._block, 0, is_input=False)
        if buffer == Buffer.INPUT and self._stage:
            return _Place(self._stage[rank], chunk * self._block, 0, is_input=True)
        first = self._number(self._starts, rank, buffer, chunk)
        return _Place(array, first, 1, is_input=buffer == Buffer.INPUT)

    def _step(
        self, key: tuple[int, int, int], sources: list[tuple[int, int, int]], size: int
    ) -> _Step:
        first, *rest = (self._place(*source) for source in sources)
        return _Step(self._place(*key), size, first, tuple(rest))

    def _play_step(self, step: _Step, first: int, results: dict[tuple[int, ...], AnyArray]) -> None:
        num_elements = min(self._block, step.size - first)
        if num_elements <= 0:
            return
        out = _slice(step.dst, first, num_elements)
        if not step.rest:
            out[...] = self._read(step.first, first, num_elements)
        elif len(step.rest) == 1 and self._how.scale is None:
            operand = _slice(step.first, first, num_elements)
            self._how.combine(operand, _slice(step.rest[0], first, num_elements), out=out)
        else:
            # Every rank of a one-shot all_reduce gathers the same chunks: combine them once.
            key = tuple(number for place in (step.first, *step.rest) for number in _key(place))
            if key not in results:
                results[key] = self._accumulate(step, first, num_elements)
            out[...] = results[key]

    def _accumulate(self, step: _Step, first: int, num_elements: int) -> AnyArray:
        is_wide = self._schedule.wide and self._how.wide != self._dtype
        dtype = self._how.wide if is_wide else self._dtype
        combine = self._how.combine_wide if is_wide else self._how.combine
        total = self._read(step.first, first, num_elements).astype(dtype)
        for place in step.rest:
            values = self._read(place, first, num_elements).astype(dtype, copy=False)
            combine(total, values, out=total)
        result: AnyArray = total.astype(self._dtype, copy=False)
        return result

    def _read(self, place: _Place, first: int, num_elements: int) -> AnyArray:
        values = _slice(place, first, num_elements)
        if place.is_input and self._how.scale is not None:
            return self._how.scale(values)
        return values


def _slice(place: _Place, first: int, num_elements: int) -> AnyArray:
    start = place.start + first * place.moves
    return place.array[start : start + num_elements]


def _key(place: _Place) -> tuple[int, int]:
    return (id(place.array), place.start)


def play_direct(
    schedule: Schedule, inputs: list[AnyArray], *, outputs: list[AnyArray], how: Reduction
) -> None:
    """Move the data of one collective through slices of the ranks' own arrays.

    Where OUTPUT lies over an INPUT that is not safe from it, INPUT is copied: slice by slice if the
    chunks of both lie in the same places, because then a slice is overwritten by itself only.
    """
    is_unsafe = not schedule.in_place_safe and any(map(np.may_share_memory, inputs, outputs))
    is_staged = is_unsafe and schedule.input is schedule.output
    is_staged = is_staged and all(map(_begin_together, inputs, outputs))
    if is_unsafe and not is_staged:
        inputs = [array.copy() for array in inputs]
    DirectPlayer(schedule, inputs, outputs=outputs, how=how, is_staged=is_staged).play()


def _begin_together(first: AnyArray, second: AnyArray) -> bool:
    """Return whether two arrays lie in the same place, or apart."""
    begins = [array.__array_interface__["data"][0] for array in (first, second)]
    return begins[0] == begins[1] or not np.may_share_memory(first, second)
