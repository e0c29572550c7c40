"""Moves data of all ranks at once: for many ranks with small chunks.

The buffers of all ranks are stacked, so that a round is a few numpy calls for any number of
ranks. Buffers are seen as rows of `unit` elements, the largest unit that every chunk is a multiple
of: one row per chunk where all chunks are equal, one element where they are not.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simrank.collectives.problem import AnyArray, Reduction
from simrank.collectives.schedule import (
    Buffer,
    IntArray,
    Op,
    Round,
    Schedule,
    one_chunk_steps,
    spread,
    step_elements,
)

# Rows this long are moved as strided slices where their positions allow it; shorter ones by take
# and put, whose cost per row is then the smaller one. Measured at 1,024 ranks.
STRIDED_BYTES = 128
MAX_PIECES = 6
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class _Class(NamedTuple):
    """Buffers and op that steps have in common."""

    src_buffer: int
    dst_buffer: int
    op: int
    operand_buffer: int


class StackedPlayer:
    """Plays one schedule on stacked buffers.

    Shapes: (n ranks)
        inputs: [n, elements of INPUT]
        outputs: [n, elements of OUTPUT]

    Args:
        schedule: What to play.
        inputs: Contiguous rows, one per rank.
        outputs: Contiguous rows, one per rank, of the same dtype.
        how: The reduction.
    """

    def __init__(
        self, schedule: Schedule, inputs: AnyArray, *, outputs: AnyArray, how: Reduction
    ) -> None:
        self._schedule, self._how = schedule, how
        scratch = np.empty((len(inputs), schedule.scratch.num_elements), inputs.dtype)
        stacks = (inputs, outputs, scratch)
        numbers = [stack.shape[1] for stack in stacks]
        for table in schedule.tables:
            numbers += [int(np.gcd.reduce(part, axis=None)) for part in (table.start, table.size)]
        self._unit = int(np.gcd.reduce(numbers)) or 1
        self._stacks = [stack.reshape(-1, self._unit) for stack in stacks]
        self._row_units = [stack.shape[1] // self._unit for stack in stacks]
        self._starts = [table.start // self._unit for table in schedule.tables]
        self._has_whole_rows = all(
            bool(np.all(table.size == self._unit)) for table in schedule.tables
        )
        self._is_strided = self._unit * inputs.dtype.itemsize >= STRIDED_BYTES
        self._classes: dict[tuple[int, ...], tuple[_Class | None, Round]] = {}

    def play(self) -> None:
        """Run every round once, on whole chunks: loops would only move the same data in slices."""
        for steps in self._schedule.rounds():
            common = self._common_class(steps) if self._has_whole_rows else None
            if common is not None:
                self._play_rows(steps, common)
            elif steps.num_steps:
                self._play_general(steps)

    def _common_class(self, steps: Round) -> _Class | None:
        """Return the class that all steps share, with one chunk and target each, or None."""
        key = tuple(
            map(
                id,
                (
                    steps.dst,
                    steps.src_buffer,
                    steps.dst_buffer,
                    steps.op,
                    steps.count,
                    steps.operand_buffer,
                ),
            )
        )
        if key not in self._classes:
            classes = _classes_of(steps)
            is_common = len(classes) == 1 and bool(np.all(steps.count == 1))
            is_common &= len(np.unique(steps.dst)) == steps.num_steps > 0
            # The round is kept so that no other array can get the identity of one of its own.
            self._classes[key] = (classes[0][0] if is_common else None, steps)
        return self._classes[key][0]

    def _play_rows(self, steps: Round, common: _Class) -> None:
        """Play a round of one row per step and at most one step per receiver."""
        row_sets = [self._rows(common.src_buffer, steps.src, steps.src_chunk)]
        row_sets.append(self._rows(common.dst_buffer, steps.dst, steps.dst_chunk))
        if common.op == Op.REDUCE and steps.operand_chunk is not None:
            row_sets.append(self._rows(common.operand_buffer, steps.dst, steps.operand_chunk))
        cuts = _strided_pieces(np.stack(row_sets)) if self._is_strided else None
        if cuts is None:
            self._apply(common, *row_sets)
            return
        for piece in cuts:
            self._apply_strided(common, *piece)

    def _rows(self, buffer: int, rank: IntArray, chunk: IntArray) -> IntArray:
        """Return the first row of each chunk."""
        starts = self._starts[buffer]
        first: IntArray = starts[chunk] if starts.ndim == 1 else starts[rank, chunk]
        rows: IntArray = rank * self._row_units[buffer] + first
        return rows

    def _apply(
        self, common: _Class, src: IntArray, dst: IntArray, operand: IntArray | None = None
    ) -> None:
        values = self._take(common.src_buffer, src)
        if common.op == Op.REDUCE:
            is_self = operand is None
            held = self._take(
                common.dst_buffer if is_self else common.operand_buffer,
                dst if operand is None else operand,
            )
            self._how.combine(held, values, out=values)
        self._put(common.dst_buffer, dst, values)

    def _apply_strided(
        self, common: _Class, src: slice, dst: slice, operand: slice | None = None
    ) -> None:
        values = self._scaled(common.src_buffer, self._stacks[common.src_buffer][src])
        out = self._stacks[common.dst_buffer][dst]
        if common.op == Op.COPY:
            out[...] = values
            return
        buffer = common.dst_buffer if operand is None else common.operand_buffer
        held = self._scaled(buffer, self._stacks[buffer][dst if operand is None else operand])
        self._how.combine(held, values, out=out)

    def _scaled(self, buffer: int, values: AnyArray) -> AnyArray:
        if buffer == Buffer.INPUT and self._how.scale is not None:
            return self._how.scale(values)
        return values

    def _take(self, buffer: int, rows: IntArray) -> AnyArray:
        """Return a copy of rows, scaled if they come from INPUT."""
        stack = self._stacks[buffer]
        word = _WORDS.get(stack.itemsize * self._unit)
        if word is None or self._unit == 1:
            return self._scaled(buffer, stack.take(rows, axis=0))
        # A row that is one machine word is moved as such.
        taken = stack.view(word).reshape(-1).take(rows).view(stack.dtype)
        return self._scaled(buffer, taken.reshape(-1, self._unit))

    def _put(self, buffer: int, rows: IntArray, values: AnyArray) -> None:
        stack = self._stacks[buffer]
        word = _WORDS.get(stack.itemsize * self._unit)
        if word is None:
            stack[rows] = values
        else:
            stack.view(word).reshape(-1)[rows] = np.ascontiguousarray(values).view(word).reshape(-1)

    def _play_general(self, steps: Round) -> None:
        """Play any round: chunks of any size, several steps onto one chunk."""
        if not self._counts_are_ranges(steps):
            steps = one_chunk_steps(steps)
        sizes = step_elements(self._schedule.tables, steps) // self._unit
        filled = sizes > 0
        if not filled.all():
            steps, sizes = _select(steps, filled), sizes[filled]
        if not steps.num_steps:
            return
        target = steps.dst * 3 + steps.dst_buffer
        target = target * (1 + int(steps.dst_chunk.max())) + steps.dst_chunk
        _, group = np.unique(target, return_inverse=True)
        if int(group.max()) + 1 == steps.num_steps:
            for common, chosen in _classes_of(steps):
                self._play_class(_select(steps, chosen), common, sizes[chosen])
        else:
            self._play_groups(steps, sizes, group)

    def _play_class(self, steps: Round, common: _Class, sizes: IntArray) -> None:
        src = self._rows(common.src_buffer, steps.src, steps.src_chunk)
        dst = self._rows(common.dst_buffer, steps.dst, steps.dst_chunk)
        row_sets = [spread(src, sizes), spread(dst, sizes)]
        if common.op == Op.REDUCE and steps.operand_chunk is not None:
            operand = self._rows(common.operand_buffer, steps.dst, steps.operand_chunk)
            row_sets.append(spread(operand, sizes))
        self._apply(common, *row_sets)

    def _play_groups(self, steps: Round, sizes: IntArray, group: IntArray) -> None:
        """Accumulate the steps of each destination in order, then write each destination once."""
        layer, first = _layers(group)
        starts = np.cumsum(sizes[first]) - sizes[first]
        dtype = self._how.wide if self._schedule.wide else self._stacks[0].dtype
        total = np.empty((int(sizes[first].sum()), self._unit), dtype)
        for number in range(int(layer.max()) + 1):
            in_layer = np.flatnonzero(layer == number)
            for common, chosen in _classes_of(_select(steps, in_layer)):
                index = in_layer[chosen]
                held = spread(starts[group[index]], sizes[index])
                part = _select(steps, index)
                self._accumulate(part, common, sizes[index], (total, held, number == 0))
        result = total.astype(self._stacks[0].dtype, copy=False)
        for common, chosen in _classes_of(_select(steps, first)):
            index = first[chosen]
            rows = self._rows(common.dst_buffer, steps.dst[index], steps.dst_chunk[index])
            values = result[spread(starts[group[index]], sizes[index])]
            self._put(common.dst_buffer, spread(rows, sizes[index]), values)

    def _accumulate(
        self,
        steps: Round,
        common: _Class,
        sizes: IntArray,
        into: tuple[AnyArray, IntArray, bool],
    ) -> None:
        """Reduce one layer of steps into rows of the accumulators.

        Args:
            steps: At most one step per accumulator.
            common: What the steps share.
            sizes: Rows of each step.
            into: The accumulators, the rows the steps go to, and whether this is the first layer.
        """
        total, held, is_first = into
        src = self._rows(common.src_buffer, steps.src, steps.src_chunk)
        values = self._take(common.src_buffer, spread(src, sizes)).astype(total.dtype, copy=False)
        if common.op == Op.REDUCE:
            operand = total[held] if not is_first else self._operand(steps, common, sizes)
            is_wide = total.dtype != self._stacks[0].dtype
            combine = self._how.combine_wide if is_wide else self._how.combine
            values = combine(operand.astype(total.dtype, copy=False), values, out=values)
        total[held] = values

    def _operand(self, steps: Round, common: _Class, sizes: IntArray) -> AnyArray:
        buffer, chunk = common.operand_buffer, steps.operand_chunk
        if chunk is None:
            buffer, chunk = common.dst_buffer, steps.dst_chunk
        return self._take(buffer, spread(self._rows(buffer, steps.dst, chunk), sizes))

    def _counts_are_ranges(self, steps: Round) -> bool:
        """Return whether `count` chunks lie side by side, in equal sizes, wherever steps look."""
        if bool(np.all(steps.count == 1)):
            return True
        used = {int(number) for number in np.unique(steps.src_buffer)}
        used |= {int(number) for number in np.unique(steps.dst_buffer)}
        if steps.operand_buffer is not None:
            used |= {int(number) for number in np.unique(steps.operand_buffer)}
        tables = {id(table): table for table in (self._schedule.tables[number] for number in used)}
        is_side_by_side = all(table.is_contiguous for table in tables.values())
        return is_side_by_side and (self._has_whole_rows or len(tables) == 1)


def _select(steps: Round, chosen: npt.NDArray[Any]) -> Round:
    return Round(*(None if column is None else column[chosen] for column in steps))  # type: ignore[arg-type]


def _classes_of(steps: Round) -> list[tuple[_Class, npt.NDArray[np.bool_]]]:
    """Return each combination of buffers and op among the steps, and which steps have it."""
    operand = steps.dst_buffer if steps.operand_buffer is None else steps.operand_buffer
    code = ((steps.src_buffer * 3 + steps.dst_buffer) * 2 + steps.op) * 3 + operand
    classes = []
    for number in np.unique(code).tolist():
        rest, operand_buffer = divmod(number, 3)
        rest, op = divmod(rest, 2)
        src_buffer, dst_buffer = divmod(rest, 3)
        classes.append((_Class(src_buffer, dst_buffer, op, operand_buffer), code == number))
    return classes


def _layers(group: IntArray) -> tuple[IntArray, IntArray]:
    """Return each step's position within its group, and the first step of each group."""
    order = np.argsort(group, kind="stable")
    sizes = np.bincount(group)
    begins = np.cumsum(sizes) - sizes
    layer = np.empty_like(group)
    layer[order] = np.arange(len(group)) - begins[group[order]]
    return layer, order[begins]


def _strided_pieces(row_sets: IntArray) -> list[list[slice]] | None:
    """Return slices that select the rows in order; None unless they are few regular runs.

    Shapes: (k row sets, m steps)
        row_sets: [k, m]

    Returns:
        For each run of steps, one slice for each of the k sets.
    """
    num_steps = row_sets.shape[1]
    if num_steps == 1:
        return [[slice(row, row + 1) for row in row_sets[:, 0].tolist()]]
    strides = np.diff(row_sets, axis=1)
    changes = np.flatnonzero((strides[:, 1:] != strides[:, :-1]).any(axis=0)) + 1
    if len(changes) > 2 * MAX_PIECES:
        return None
    ends = [*changes.tolist(), num_steps - 1]
    pieces, begin = [], 0
    while begin < num_steps:
        end = next((end for end in ends if end > begin), begin)
        bounds = zip(row_sets[:, begin].tolist(), row_sets[:, end].tolist(), strict=True)
        piece = [_run(first, last, end - begin) for first, last in bounds]
        if None in piece:
            return None
        pieces.append([run for run in piece if run is not None])
        begin = end + 1
    return pieces


def _run(first: int, last: int, num_strides: int) -> slice | None:
    """Return the slice from `first` to `last`, or None if it would stand still or go back."""
    if num_strides == 0:
        return slice(first, first + 1)
    stride = (last - first) // num_strides
    return slice(first, last + 1, stride) if stride > 0 else None


def play_stacked(
    schedule: Schedule, inputs: AnyArray, *, outputs: AnyArray, how: Reduction
) -> None:
    """Move the data of one collective between rows of two stacked arrays."""
    StackedPlayer(schedule, inputs, outputs=outputs, how=how).play()
