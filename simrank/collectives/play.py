"""Play a schedule: move the data of all ranks, or compute when each of them is done."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from simrank.collectives.data_folds import FoldPlayer
from simrank.collectives.data_stacked import play_stacked
from simrank.collectives.reduction import AnyArray, Reduction, divide_towards_zero, reduction
from simrank.collectives.schedule import ChunkTable, Schedule
from simrank.collectives.time_network import NOT_ARRIVED, NOT_KNOWN, Interconnect
from simrank.collectives.time_rounds import play_time

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
    """Moves the data of one schedule, as often as it is asked to; see `play_data`.

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
    """Return the ranks' arrays as contiguous rows: the same memory if they are that already."""
    if isinstance(arrays, np.ndarray) and arrays.flags.c_contiguous:
        return arrays
    stack = np.zeros((len(arrays), num_elements), arrays[0].dtype)
    for row, array in zip(stack, arrays, strict=True):
        row[: len(array)] = array[:num_elements]
    return stack
