"""Data of collectives by folds: a schedule compiled to a few numpy calls for all ranks.

A schedule is run once on *names* of values instead of values. A copy only passes a name on; equal
sums of several ranks get one name. What is left are folds (values reduced in a given order, many
at a time), and which names every output consists of. So an all_gather needs no computation at all,
and a one-shot all_reduce one sum for all ranks.

Elements of a chunk never meet those of another position, so that large chunks travel in slices
that stay in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from simrank.collectives.data_stacked import play_stacked
from simrank.collectives.problem import AnyArray, Reduction, divide_towards_zero, reduction
from simrank.collectives.schedule import (
    Buffer,
    ChunkTable,
    Op,
    Schedule,
    one_chunk_steps,
    step_elements,
)
from simrank.collectives.time_network import NOT_ARRIVED, NOT_KNOWN, Interconnect
from simrank.collectives.time_rounds import play_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simrank.collectives.schedule import IntArray, Round

BLOCK_BYTES = 32 * 1024  # Of one chunk. Measured: 16 KiB to 128 KiB are equal within noise.
_UNWRITTEN = -1  # The name of unwritten elements.

Rows = slice | np.ndarray[Any, Any]


class Fold(NamedTuple):
    """Values that are reduced from other values, one row each.

    Attributes:
        sources: Per operand, in order, a row of the workspace for each result.
        results: Rows of the results.
        block: The operands of a single result, where their rows are in order; else None.
    """

    sources: tuple[Rows, ...]
    results: slice
    block: slice | None


class ChunkRun(NamedTuple):
    """Chunks of one size that lie side by side, and the rows of their values.

    Attributes:
        start: First element of the first chunk in its buffer.
        size: Elements of each chunk.
        num_chunks: How many.
        rows: Rows of the workspace.
    """

    start: int
    size: int
    num_chunks: int
    rows: Rows


class RankOutput(NamedTuple):
    """The output of some ranks, all with the same values.

    Attributes:
        ranks: The ranks.
        runs: Where the values go.
    """

    ranks: tuple[int, ...]
    runs: tuple[ChunkRun, ...]


class _Names:
    """The names of the values in every chunk of every rank while a schedule is compiled.

    The name of a value is a row of the workspace: INPUT's chunks first, then results.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._num_chunks = np.array([table.num_chunks for table in schedule.tables])
        sizes = self._num_chunks * schedule.world_size
        self._bases = np.cumsum(sizes) - sizes
        self.held = np.full(int(sizes.sum()), _UNWRITTEN, np.int64)
        self.num_inputs = int(sizes[Buffer.INPUT])
        self.held[: self.num_inputs] = np.arange(self.num_inputs)
        # How much of each chunk holds values.
        self._filled = np.zeros_like(self.held)
        if self.num_inputs:
            shape = (schedule.world_size, schedule.input.num_chunks)
            self._filled[: self.num_inputs] = np.broadcast_to(schedule.input.size, shape).ravel()

    def slots(self, rank: IntArray, buffer: IntArray, chunk: IntArray) -> IntArray:
        """Return the numbers of chunks among those of all buffers and ranks."""
        slots: IntArray = self._bases[buffer] + rank * self._num_chunks[buffer] + chunk
        return slots

    def filled(self, slots: IntArray) -> IntArray:
        """Return the number of elements of chunks that hold values."""
        return self._filled[slots]

    def write(self, slots: IntArray, names: IntArray, num_elements: IntArray) -> None:
        """Put values into chunks; SCRATCH may keep room behind them.

        Raises:
            ValueError: The schedule would leave the end of an older value behind a shorter one.
        """
        is_short = (num_elements < self._filled[slots]) & (slots < self._bases[Buffer.SCRATCH])
        if is_short.any():
            raise ValueError(f"{self.schedule.algorithm}: a step writes a part of a chunk")
        self.held[slots] = names
        self._filled[slots] = num_elements

    def outputs(self) -> IntArray:
        """Return the names of the final values, per rank and chunk of OUTPUT."""
        first = self._bases[Buffer.OUTPUT]
        held = self.held[first : self._bases[Buffer.SCRATCH]]
        return held.reshape(self.schedule.world_size, self.schedule.output.num_chunks)


class _Pending(NamedTuple):
    """A fold whose results have names but no rows yet."""

    sources: IntArray  # [operand, result]
    first_name: int


class _Span(NamedTuple):
    """Rows of the workspace beside each other."""

    start: int
    size: int


class FoldPlayer:
    """Plays one schedule; compiled once, for any dtype and reduction.

    Args:
        schedule: What to play.

    Raises:
        ValueError: A step writes a part of what a chunk holds.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        names = _Names(schedule)
        pending, num_names = _fold_rounds(schedule, names)
        outputs = names.outputs()
        rows, self._num_rows = _assign_rows(pending, num_names, names.num_inputs, outputs)
        self._num_inputs = names.num_inputs
        self._folds = [_fold(rows, fold) for fold in pending]
        self._width = max(table.max_size for table in schedule.tables)
        num_inputs = schedule.input.num_chunks
        ranks = np.arange(schedule.world_size)[:, None] * num_inputs
        self._inputs = _runs_of_ranks(schedule.input, ranks + np.arange(num_inputs))
        named = np.where(outputs == _UNWRITTEN, _UNWRITTEN, rows[outputs])
        self._outputs = _runs_of_ranks(schedule.output, named)
        # Chunks of one size: inputs are loaded in one call, and slices over slices are aligned.
        self._is_even = all(
            bool((table.size == self._width).all()) and table.is_contiguous
            for table in (schedule.input, schedule.output)
        )

    def play(
        self, inputs: Sequence[AnyArray], *, outputs: Sequence[AnyArray], how: Reduction
    ) -> None:
        """Move the data of one collective between the ranks' own arrays.

        An output may lie over an input: all that it holds has been read when it is written.

        Args:
            inputs: One array per rank.
            outputs: One array per rank.
            how: The reduction.
        """
        dtype = inputs[0].dtype
        block = max(1, min(self._width, BLOCK_BYTES // dtype.itemsize))
        if block < self._width and self._is_entangled(inputs, outputs):
            inputs = [array.copy() for array in inputs]
        # Elements behind short chunks are computed too, and never stored: they are zeros.
        values = (np.empty if self._is_even else np.zeros)((self._num_rows, block), dtype)
        for first in range(0, self._width, block):
            self._load(values, inputs, first)
            if how.scale is not None:
                values[: self._num_inputs] = how.scale(values[: self._num_inputs])
            for fold in self._folds:
                _reduce(values, fold, how, is_wide=self._schedule.wide)
            self._store(values, outputs, first)

    def _is_entangled(self, inputs: Sequence[AnyArray], outputs: Sequence[AnyArray]) -> bool:
        """Return whether a slice of some output may lie over a later slice of an input."""
        is_aligned = self._schedule.input is self._schedule.output
        size = self._width * inputs[0].itemsize if self._is_even else 0
        for array, output in zip(inputs, outputs, strict=True):
            offset = _address(output) - _address(array)
            is_apart = not np.may_share_memory(array, output)
            if not (is_apart or (is_aligned and not offset) or (size and not offset % size)):
                return True
        return False

    def _load(self, values: AnyArray, inputs: Sequence[AnyArray], first: int) -> None:
        width = values.shape[1]
        num_elements = self._schedule.input.num_elements
        if self._is_even and width == self._width:
            flat = values[: self._num_inputs].reshape(-1)
            np.concatenate([array[:num_elements] for array in inputs], out=flat)
            return
        for part in self._inputs:
            for rank in part.ranks:
                for run in part.runs:
                    chunks = _chunks(inputs[rank], run)[:, first : first + width]
                    values[run.rows, : chunks.shape[1]] = chunks
                    values[run.rows, chunks.shape[1] :] = 0

    def _store(self, values: AnyArray, outputs: Sequence[AnyArray], first: int) -> None:
        width = values.shape[1]
        taken = [[values[run.rows] for run in output.runs] for output in self._outputs]
        for output, parts in zip(self._outputs, taken, strict=True):
            for run, part in zip(output.runs, parts, strict=True):
                if not first and run.size <= width:  # All of it at once.
                    flat = part[:, : run.size].reshape(-1)
                    stop = run.start + len(flat)
                    for rank in output.ranks:
                        outputs[rank][run.start : stop] = flat
                    continue
                for rank in output.ranks:
                    chunks = _chunks(outputs[rank], run)[:, first : first + width]
                    chunks[...] = part[:, : chunks.shape[1]]


def _chunks(array: AnyArray, run: ChunkRun) -> AnyArray:
    """Return the chunks of a run as rows of the array that they lie in."""
    chunks: AnyArray = array[run.start : run.start + run.size * run.num_chunks]
    return chunks.reshape(run.num_chunks, run.size)


def _reduce(values: AnyArray, fold: Fold, how: Reduction, *, is_wide: bool) -> None:
    """Compute the results of a fold."""
    out = values[fold.results]
    first, second, *rest = fold.sources
    if not rest:
        how.combine(values[first], values[second], out=out)
        return
    dtype = how.wide if is_wide else values.dtype
    combine = how.combine_wide if is_wide else how.combine
    if fold.block is not None and isinstance(combine, np.ufunc) and values.shape[1] > 1:
        # Row by row, in order; numpy reduces in another order only along the last axis.
        operands = values[fold.block].astype(dtype, copy=False)
        # No initial value: a zero of its own would turn the sum of negative zeros positive.
        out[0] = combine.reduce(operands, axis=0, dtype=dtype, initial=None)
        return
    total = combine(
        values[first].astype(dtype),
        values[second].astype(dtype, copy=False),
        out=np.empty(out.shape, dtype),
    )
    for operand in rest:
        combine(total, values[operand].astype(dtype, copy=False), out=total)
    out[...] = total


# ---- compiling ----


def _fold_rounds(schedule: Schedule, names: _Names) -> tuple[list[_Pending], int]:
    """Run the schedule on names; return its folds in order, and the number of names."""
    folds: list[_Pending] = []
    num_names = names.num_inputs
    for steps in schedule.rounds():
        chunks = one_chunk_steps(steps)
        if not chunks.num_steps:
            continue
        writes = []
        for slots, sources, moved in _destinations(schedule, chunks, names):
            if sources.shape[0] == 1:
                writes.append((slots, sources[0], moved))
                continue
            distinct, inverse = _distinct_columns(sources)
            folds.append(_Pending(distinct, num_names))
            writes.append((slots, num_names + inverse, moved))
            num_names += distinct.shape[1]
        for write in writes:  # No step reads what another one of the same round writes.
            names.write(*write)
    return folds, num_names


def _destinations(
    schedule: Schedule, steps: Round, names: _Names
) -> Iterable[tuple[IntArray, IntArray, IntArray]]:
    """Yield the chunks that a round writes: with the same number of operands at a time.

    Folds of unwritten elements are dropped: no rank reads them.

    Shapes: (m chunks, k operands)
        yields: slots [m]; names of what is reduced, in order [k, m]; elements [m]
    """
    moved = step_elements(schedule.tables, steps)
    slots = names.slots(steps.dst, steps.dst_buffer, steps.dst_chunk)
    sources = names.slots(steps.src, steps.src_buffer, steps.src_chunk)
    operands = slots
    if steps.operand_buffer is not None and steps.operand_chunk is not None:
        operands = names.slots(steps.dst, steps.operand_buffer, steps.operand_chunk)
    moved = np.minimum(moved, names.filled(sources))  # SCRATCH may be wider than what it holds.
    order = np.argsort(slots, kind="stable")
    begins = np.flatnonzero(np.diff(slots[order], prepend=-1))
    group = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(order)))
    # A copy makes what came before it in its round void.
    is_copy = (steps.op == Op.COPY)[order]
    position = np.arange(len(order))
    first = np.maximum.reduceat(np.where(is_copy, position, begins[group]), begins)
    lives = position >= first[group]
    size = np.minimum.reduceat(np.where(lives, moved[order], moved.max()), begins)
    counts = np.add.reduceat(lives.astype(np.int64), begins)
    has_operand = ~is_copy[first]
    held = names.filled(operands[order[first]])
    size = np.where(has_operand, np.minimum(size, held), size)
    for count, with_operand in sorted(set(zip(counts.tolist(), has_operand.tolist(), strict=True))):
        these = np.flatnonzero((counts == count) & (has_operand == with_operand) & (size > 0))
        if not len(these):
            continue
        rows = order[first[these] + np.arange(count)[:, None]]
        read = [sources[row] for row in rows]
        if with_operand:
            read.insert(0, operands[rows[0]])
        yield slots[order[begins[these]]], names.held[np.stack(read)], size[these]


def _distinct_columns(sources: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct columns, and the index of each column among them."""
    if (sources == sources[:, :1]).all():
        return sources[:, :1], np.zeros(sources.shape[1], np.int64)
    distinct, inverse = np.unique(sources, axis=1, return_inverse=True)
    if distinct.shape[1] == sources.shape[1]:
        return sources, np.arange(sources.shape[1])
    return distinct, inverse.reshape(-1)


def _assign_rows(
    folds: Sequence[_Pending], num_names: int, num_inputs: int, outputs: IntArray
) -> tuple[IntArray, int]:
    """Return the row of each name and the number of rows; rows are reused after the last read."""
    fold_of = np.full(num_names, -1, np.int64)
    for index, fold in enumerate(folds):
        fold_of[fold.first_name : fold.first_name + fold.sources.shape[1]] = index
    last_use = np.arange(len(folds))
    for index, fold in enumerate(folds):
        used = np.unique(fold_of[fold.sources])
        last_use[used[used >= 0]] = index
    kept = np.unique(fold_of[outputs[outputs != _UNWRITTEN]])
    last_use[kept[kept >= 0]] = len(folds)
    rows = np.arange(num_names)
    free: list[_Span] = []
    num_rows = num_inputs
    blocks: dict[int, _Span] = {}
    for index, fold in enumerate(folds):
        size = fold.sources.shape[1]
        gap = next((gap for gap in free if gap.size >= size), None)
        if gap is None:
            start, num_rows = num_rows, num_rows + size
        else:
            free.remove(gap)
            start = gap.start
            if gap.size > size:
                free.append(_Span(start + size, gap.size - size))
        blocks[index] = _Span(start, size)
        rows[fold.first_name : fold.first_name + size] = start + np.arange(size)
        ended = [other for other in blocks if last_use[other] <= index]
        free += [blocks.pop(other) for other in ended]
    return rows, num_rows


def _fold(rows: IntArray, fold: _Pending) -> Fold:
    """Return a fold in rows of the workspace."""
    num_results = fold.sources.shape[1]
    first = int(rows[fold.first_name])
    block = _rows(rows[fold.sources[:, 0]]) if num_results == 1 else None
    return Fold(
        tuple(_rows(rows[operand]) for operand in fold.sources),
        slice(first, first + num_results),
        block if isinstance(block, slice) else None,
    )


def _rows(rows: IntArray) -> Rows:
    """Return rows as a slice if they are consecutive: a view and not a copy."""
    if len(rows) == 1:
        return slice(int(rows[0]), int(rows[0]) + 1)
    step = int(rows[1] - rows[0])
    if step > 0 and (np.diff(rows) == step).all():
        return slice(int(rows[0]), int(rows[-1]) + 1, step)
    return rows


def _runs_of_ranks(table: ChunkTable, rows: IntArray) -> list[RankOutput]:
    """Return the chunks of every rank with their rows, grouped by equal ranks."""
    starts = np.broadcast_to(table.start, rows.shape)
    sizes = np.broadcast_to(table.size, rows.shape)
    ranks_of: dict[bytes, list[int]] = {}
    for rank in range(len(rows)):
        key = rows[rank].tobytes() + (b"" if table.size.ndim == 1 else sizes[rank].tobytes())
        ranks_of.setdefault(key, []).append(rank)
    return [
        RankOutput(tuple(ranks), tuple(_runs(starts[ranks[0]], sizes[ranks[0]], rows[ranks[0]])))
        for ranks in ranks_of.values()
    ]


def _runs(starts: IntArray, sizes: IntArray, rows: IntArray) -> Iterable[ChunkRun]:
    """Yield the runs of one rank's chunks that hold something."""
    kept = np.flatnonzero((sizes > 0) & (rows != _UNWRITTEN))
    if not len(kept):
        return
    starts, sizes, rows = starts[kept], sizes[kept], rows[kept]
    breaks = (np.diff(starts) != sizes[:-1]) | (np.diff(sizes) != 0)
    for part in np.split(np.arange(len(kept)), np.flatnonzero(breaks) + 1):
        first = part[0]
        yield ChunkRun(int(starts[first]), int(sizes[first]), len(part), _rows(rows[part]))


def _address(array: AnyArray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


# ---- Play a schedule: move the data of all ranks, or compute when each of them is done ----

RankArrays: TypeAlias = Sequence[AnyArray] | AnyArray

__all__ = ["NOT_ARRIVED", "NOT_KNOWN", "DataPlayer", "Interconnect", "play_data", "play_time"]

# Assumed: up to this many steps compiling a schedule costs less than it saves at its second use;
# above, and below these bytes of a chunk, rounds of stacked buffers are faster than single folds.
MAX_COMPILED_STEPS = 20_000
STACKED_BYTES = 32 * 1024
# What is played again is compiled then: up to so many steps it costs as much as some three plays of
# stacked rounds (measured: 64 to 256 ranks), and saves nine tenths of each later one. The values
# between steps take so many bytes at most.
MAX_COMPILED_LATER_STEPS = 1 << 20
MAX_WORKSPACE_BYTES = 256 << 20


class DataPlayer:
    """Player of one schedule's data, for any number of calls; see `play_data`.

    It trusts its caller: the arrays are as `play_data` checks that they are.

    Args:
        schedule: What to play.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._folds: FoldPlayer | None = None
        self._was_played = False

    def play(self, inputs: RankArrays, *, outputs: RankArrays, reduce_op: str = "sum") -> None:
        """Move the data of one collective between the buffers of all ranks; see `play_data`."""
        schedule, dtype = self._schedule, inputs[0].dtype
        how = reduction(reduce_op, dtype, schedule.world_size)
        # Overflow and NaN are results like others here: a device does not warn about them either.
        with np.errstate(all="ignore"):
            if self._folds is None and self._is_stacked(dtype.itemsize):
                _play_stacked(schedule, inputs, outputs=outputs, how=how)
            else:
                if self._folds is None:
                    self._folds = FoldPlayer(schedule)
                self._folds.play(list(inputs), outputs=list(outputs), how=how)
        self._was_played = True
        if how.divisor is not None:
            for rank, array in enumerate(outputs):
                if schedule.root is None or schedule.root == rank:
                    divide_towards_zero(array[: schedule.output.num_elements], how.divisor)

    def _is_stacked(self, itemsize: int) -> bool:
        """Return whether whole rounds of stacked buffers are cheaper than folds now."""
        schedule, num_ranks = self._schedule, self._schedule.world_size
        chunk_bytes = schedule.max_chunk * itemsize
        num_steps = num_ranks * max(num_ranks, schedule.num_rounds * schedule.num_channels)
        if num_steps <= MAX_COMPILED_STEPS or chunk_bytes >= STACKED_BYTES:
            return False
        is_small = num_steps * chunk_bytes <= MAX_WORKSPACE_BYTES
        return not (self._was_played and is_small and num_steps <= MAX_COMPILED_LATER_STEPS)


def play_data(
    schedule: Schedule, inputs: RankArrays, *, outputs: RankArrays, reduce_op: str = "sum"
) -> None:
    """Move the data of one collective between the buffers of all ranks.

    Each output may be its rank's input, as torch allows: all_reduce, broadcast and reduce on one
    array; all_gather with input r = output r[r * m : (r + 1) * m]; reduce_scatter with the output
    inside the input in the same way.

    Shapes:
        inputs: one 1-D array of `schedule.input.num_elements` per rank, or 2-D [rank, element]
        outputs: the same with `schedule.output`; ranks that receive nothing keep theirs unchanged

    Args:
        schedule: What to play.
        inputs: What every rank contributes, all of one dtype.
        outputs: Where the results go.
        reduce_op: One of `REDUCE_OPS`; not used by collectives that only copy.

    Raises:
        ValueError: The reduce op is not defined on the dtype, or an array is too short.
    """
    _check(schedule, "inputs", inputs, schedule.input, inputs[0].dtype)
    _check(schedule, "outputs", outputs, schedule.output, inputs[0].dtype)
    DataPlayer(schedule).play(inputs, outputs=outputs, reduce_op=reduce_op)


def _check(
    schedule: Schedule, name: str, arrays: RankArrays, table: ChunkTable, dtype: np.dtype[Any]
) -> None:
    """Raise ValueError unless there is one long enough 1-D array per rank."""
    if len(arrays) != schedule.world_size:
        raise ValueError(
            f"{schedule.collective}: {len(arrays)} {name} for {schedule.world_size} ranks"
        )
    ends = (table.start + table.size).max(axis=-1, initial=0)
    needs = np.broadcast_to(ends, schedule.world_size).tolist()
    for rank, (array, need) in enumerate(zip(arrays, needs, strict=True)):
        if array.ndim != 1 or len(array) < need or array.dtype != dtype:
            raise ValueError(
                f"{schedule.collective}: {name}[{rank}] must be 1-D {dtype.name} "
                f"with at least {need} elements, got {array.dtype.name} {array.shape}"
            )


def _play_stacked(
    schedule: Schedule, inputs: RankArrays, *, outputs: RankArrays, how: Reduction
) -> None:
    sources = _stack(inputs, schedule.input.num_elements)
    results = _stack(outputs, schedule.output.num_elements)
    if not schedule.in_place_safe and np.may_share_memory(sources, results):
        sources = sources.copy()
    play_stacked(schedule, sources, outputs=results, how=how)
    if results is not outputs:
        for array, row in zip(outputs, results, strict=True):
            array[: len(row)] = row[: len(array)]


def _stack(arrays: RankArrays, num_elements: int) -> AnyArray:
    """Return the ranks' arrays as contiguous rows, without a copy if they are that already."""
    if isinstance(arrays, np.ndarray) and arrays.flags.c_contiguous:
        return arrays
    stack = np.zeros((len(arrays), num_elements), arrays[0].dtype)
    for row, array in zip(stack, arrays, strict=True):
        row[: len(array)] = array[:num_elements]
    return stack
