"""Loops, hints, prints and assertions of kernels; `tl.map_elementwise`; the compile target."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from triton.compiler.errors import CompileTimeAssertionFailure

from simrank.errors import UnsupportedError
from simrank.errors.base import Travels
from simrank.kernels import machine
from simrank.kernels.compiler.driver import nvidia_target_of
from simrank.kernels.language.shapes import with_program_axis
from simrank.kernels.machine import Programs, RunningLaunch
from simrank.kernels.machine.running import MAX_SHOWN, programs_text
from simrank.kernels.values.block import Block, Diverged, as_block, as_truth
from simrank.kernels.values.types import int32, int64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import SupportsInt

    from triton.backends.compiler import GPUTarget

    from simrank.kernels.machine.protocols import Array, Value
    from simrank.kernels.values.block import Operand
    from simrank.kernels.values.types import ElementType


class KernelAssertionError(Travels, AssertionError):
    """A `tl.device_assert` failed.

    Attributes:
        program_ids: The programs where it failed, at most eight.
    """

    def __init__(self, message: str, program_ids: tuple[int, ...]) -> None:
        super().__init__(message)
        self.program_ids = program_ids


_HINTS = {
    "num_stages", "loop_unroll_factor", "disallow_acc_multi_buffer", "flatten", "warp_specialize",
    "disable_licm",
}  # fmt: skip


class Range:
    """`range` in a kernel: its index is a 32-bit integer of the program.

    Programs with different bounds stay in lockstep if their numbers of iterations are equal;
    otherwise they are split by the number of iterations.
    """

    def __init__(
        self,
        start: Operand | None,
        stop: Operand | None = None,
        step: Operand | None = 1,
        **hints: Any,
    ) -> None:
        for name in hints:  # Hints change no value.
            if name not in _HINTS:
                raise TypeError(f"tl.range has no argument '{name}'")
        self._start: Any = 0 if stop is None else start
        self._stop: Any = start if stop is None else stop
        self._step: Any = 1 if step is None else step
        bounds: tuple[Any, ...] = self._start, self._stop, self._step
        if any(type(bound) is not int for bound in bounds):
            kinds = [as_block(bound).element for bound in bounds]
            if any(element.kind not in "iub" for element in kinds):
                shown = ", ".join(map(str, kinds))
                raise TypeError(f"For loop bounds and step must all be ints, are ({shown})")

    def bounds(self) -> tuple[Block, Block, Block]:
        """Return start, stop and step."""
        return as_block(self._start), as_block(self._stop), as_block(self._step)

    def item(self, values: Value) -> Block:
        """Return numbers as a loop index."""
        is_wide = any(bound.element.bits == 64 for bound in self.bounds())
        element = int64 if is_wide else int32
        return Block(values.astype(element.compute), element)

    def __iter__(self) -> Iterator[Block]:
        """Yield the index of each iteration.

        Raises:
            Diverged: The programs need different numbers of iterations.
        """
        bare = self._start, self._stop, self._step
        if all(type(bound) is int and abs(bound) < 1 << 31 for bound in bare):
            for number in range(*bare):
                yield Block(np.int32(number), int32)
            return
        bounds = self.bounds()
        element = int64 if any(bound.element.bits == 64 for bound in bounds) else int32
        make = element.compute.type
        if all(type(bound.values) is not np.ndarray or bound.values.size == 1 for bound in bounds):
            for number in range(*(int(bound) for bound in bounds)):
                yield Block(make(number), element)
            return
        start, stop, step = (np.asarray(bound.values, np.int64) for bound in bounds)
        rounds = np.maximum(-((start - stop) // step), 0)
        rounds = np.atleast_1d(rounds)
        if not (rounds == rounds[0]).all():
            raise Diverged(rounds)
        for number in range(int(rounds[0])):
            yield self.item(start + number * step)


def static_range(
    start: SupportsInt, stop: SupportsInt | None = None, step: SupportsInt = 1
) -> range:
    """Return a range that the compiler unrolls; its index is a plain number.

    Raises:
        TypeError: A bound is not a compile-time constant.
    """
    for value, name in ((start, "start"), (stop, "end"), (step, "step")):
        if type(value) is Block:
            raise TypeError(f"{value.type} used as tl.static_range {name} value is not a constexpr")
    first, last = (0, start) if stop is None else (start, stop)
    return range(int(first), int(last), int(step))


def assume(condition: Operand) -> None:
    """Raise unless the condition that the compiler may assume holds."""
    device_assert(condition, "tl.assume does not hold")


class StaticAssertionError(AssertionError, CompileTimeAssertionFailure):  # type: ignore[misc]
    """A compile-time condition failed; autotuning skips such a configuration."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message  # Triton's class shows it.

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by message, without the syntax tree node of Triton's class."""
        return type(self), (self.message,)


def static_assert(condition: Operand, message: object = "") -> None:
    """Raise unless a compile-time condition holds.

    Raises:
        StaticAssertionError: The condition is false.
        NotImplementedError: The condition is unknown at compile time.
    """
    if type(condition) is Block:
        raise NotImplementedError(
            "Assertion condition could not be determined at compile-time. Make sure that it "
            "depends only on `constexpr` values"
        )
    if not condition:
        raise StaticAssertionError(f"static assertion failed: {message}")


def static_print(
    *values: Any, sep: str = " ", end: str = "\n", file: object = None, flush: bool = False
) -> None:
    """Print compile-time values; printed each time the line runs."""
    del file, flush
    sys.stdout.write(sep.join(str(value) for value in values) + end)


def device_print(prefix: object, *args: Any, hex: bool = False) -> None:
    """Print one line per program: its ids, the prefix, and the values."""
    programs = machine.now()
    along = (np.broadcast_to(programs.axis_ids(axis), len(programs)) for axis in range(3))
    for lane, ids in enumerate(zip(*(axis.tolist() for axis in along), strict=True)):
        shown = " ".join(_of_lane(arg, lane, as_hex=hex) for arg in args)
        sys.stdout.write(f"pid {ids} {prefix} {shown}".rstrip() + "\n")


def _of_lane(value: object, lane: int, *, as_hex: bool) -> str:
    if type(value) is not Block:
        return str(value)
    values = value.values
    if type(values) is np.ndarray:
        values = values[lane if len(values) > 1 else 0]
    return hex(int(values)) if as_hex else str(values)


def device_assert(condition: Operand, message: object = "", mask: Operand | None = None) -> None:
    """Raise unless the condition holds in every active lane; without values it is taken to hold.

    Raises:
        KernelAssertionError: The condition fails; the error names the programs.
    """
    if type(condition) is not Block:
        if not condition:
            raise KernelAssertionError(f"device assertion failed: {message}", ())
        return
    holds: Any = as_truth(condition).values
    if mask is not None:
        holds = (as_truth(condition) | ~as_truth(mask)).values
    programs = machine.now()
    if np.all(holds) or programs.statistics.fill is not None:  # Of made-up numbers, says nothing.
        return
    rows: Any = np.atleast_1d(holds)
    per_program = rows.reshape(len(rows), -1).all(axis=1)
    ids = programs.ids[~per_program] if len(per_program) == len(programs) else programs.ids
    text = f"device assertion failed in kernel '{programs.kernel}': {message}; "
    text += programs_text(ids.tolist())
    raise KernelAssertionError(text, tuple(ids[:MAX_SHOWN].tolist()))


def debug_barrier() -> None:
    """Report a barrier of a program's threads to the lane checks; nothing else happens."""
    lanes = machine.now().lanes
    if lanes is not None:
        lanes.barrier()


# ---- `tl.map_elementwise`: a scalar function applied to each element, with divergence ----
# Each element temporarily is a program. All run in lockstep; where they diverge, the function runs
# again for each group of elements on the same path.


def map_elementwise(
    scalar_fn: Callable[..., Any], *args: Operand, pack: int = 1
) -> Block | tuple[Block, ...]:
    """Apply a function to every element, or to `pack` neighbors at once.

    The compiler chooses the neighbors; here they are consecutive in the last dim. A function that
    treats all elements alike does not depend on the choice.

    Raises:
        ValueError: An argument is missing, elements do not divide into packs, or result types
            differ between paths.
        UnsupportedError: The function accesses memory, or the kernel reads thread indices.
    """
    if pack < 1:
        raise ValueError(f"pack must be >= 1, got {pack}")
    if not args:
        raise ValueError("map_elementwise must have at least 1 input tensor")
    if machine.now().options.num_threads:
        raise UnsupportedError(
            "tl.map_elementwise in a kernel that asks which thread it is, is not supported"
        )
    blocks = [as_block(arg) for arg in args]
    shape = np.broadcast_shapes(*(block.shape for block in blocks))
    num_rows = max(len(with_program_axis(block)) for block in blocks)
    if np.prod(shape, dtype=np.int64) % pack:
        raise ValueError(f"blocks of shape {list(shape)} do not divide into packs of {pack}")
    columns = []
    for block in blocks:
        if block.element.kind == "p":
            raise UnsupportedError("tl.map_elementwise of pointers is not supported")
        rows = with_program_axis(block)
        rows = rows.reshape(len(rows), *[1] * (len(shape) - rows.ndim + 1), *rows.shape[1:])
        whole = np.broadcast_to(rows, (num_rows, *shape)).reshape(-1, pack)
        columns += [(whole[:, place], block.element) for place in range(pack)]
    results, is_single = _map_columns(scalar_fn, columns, num_rows)
    if len(results) % pack:
        raise ValueError(f"the function gives {len(results)} results, no multiple of {pack}")
    found = []
    for first in range(0, len(results), pack):
        parts = results[first : first + pack]
        if len({element for _, element in parts}) > 1:
            raise ValueError("type mismatch in unpacked results")
        together = np.stack([values for values, _ in parts], axis=-1)
        found.append(Block(together.reshape(num_rows, *shape), parts[0][1]))
    return found[0] if is_single and pack == 1 else tuple(found)


Column = tuple["Array", "ElementType"]


def _map_columns(
    scalar_fn: Callable[..., Any], columns: Sequence[Column], num_rows: int
) -> tuple[list[Column], bool]:
    """Return the results of all elements, and whether the function returns a single value."""
    outer = machine.now()
    ids = outer.ids if num_rows > 1 else outer.ids[:1]
    setting = RunningLaunch(outer.kernel, outer.grid, outer.device, outer.statistics, outer.options)
    total = len(columns[0][0])
    owners = np.repeat(ids, total // num_rows)
    copies = len(outer.ids) if num_rows == 1 else 1
    waiting, finished = [np.arange(total)], []
    accesses = outer.statistics.num_lanes, outer.statistics.num_atomics
    while waiting:
        chosen = waiting.pop()
        before = outer.statistics.snapshot()
        rows = _Rows(setting, owners[chosen], copies)
        given = [Block(values[chosen], element) for values, element in columns]
        found: list[Any] = []
        try:
            machine.run(rows, partial(_call, scalar_fn, given, found))
        except Diverged as split:
            outer.statistics.restore(before)
            waiting += [chosen[split.choices == way] for way in np.unique(split.choices)]
            continue
        if accesses != (outer.statistics.num_lanes, outer.statistics.num_atomics):
            raise UnsupportedError("memory in a function for tl.map_elementwise is not supported")
        finished.append((chosen, found[0]))
    return _merged(finished, total), not isinstance(finished[0][1], tuple | list)


def _call(function: Callable[..., Any], given: Sequence[Block], found: list[Any]) -> None:
    found.append(function(*given))


class _Rows(Programs):
    """Elements as programs: their scalars cost as much as elements of blocks."""

    counts_scalars = True

    def __init__(self, setting: RunningLaunch, ids: Array, copies: int) -> None:
        super().__init__(setting, ids)
        self.copies = copies


def _merged(finished: Sequence[tuple[Array, Any]], total: int) -> list[Column]:
    """Merge the results of all paths, in the order of the elements."""
    columns: list[Column] = []
    for chosen, result in finished:
        blocks = [as_block(r) for r in (result if isinstance(result, tuple | list) else (result,))]
        if not columns:
            columns = [(np.empty(total, block.values.dtype), block.element) for block in blocks]
        if [element for _, element in columns] != [block.element for block in blocks]:
            raise ValueError(
                "ways through a function for tl.map_elementwise give results of different types: "
                f"{[e.name for _, e in columns]} and {[b.element.name for b in blocks]}"
            )
        for (values, _), block in zip(columns, blocks, strict=True):
            values[chosen] = block.values
    return columns


# ---- compile target as seen by kernels: the simulated device acts as an NVIDIA GPU ----
# The compute capability follows from the device's name, see `hardware/spec.py`; assumed 9.0
# (Hopper) for other names.


def current_target() -> GPUTarget:
    """Return the compile target of the kernel."""
    return nvidia_target_of(machine.now().device.spec)


def is_cuda() -> bool:
    """Return True: the device acts as an NVIDIA GPU."""
    return True


def cuda_capability_geq(major: int, minor: int = 0) -> bool:
    """Return whether the device has at least this compute capability."""
    return int(current_target().arch) >= major * 10 + minor


def _is_other() -> bool:
    return False


TARGET: dict[str, Callable[..., Any]] = {
    "current_target": current_target,
    "is_cuda": is_cuda,
    "cuda_capability_geq": cuda_capability_geq,
    "is_hip": _is_other,
    "is_hip_cdna3": _is_other,
    "is_hip_cdna4": _is_other,
}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "assume": assume,
    "static_assert": static_assert,
    "static_print": static_print,
    "device_print": device_print,
    "device_assert": device_assert,
    "debug_barrier": debug_barrier,
    "map_elementwise": map_elementwise,
}
