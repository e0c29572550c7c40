"""Loops, hints, prints and assertions of kernels."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from triton.compiler.errors import CompileTimeAssertionFailure

from simrank.errors.base import Travels
from simrank.kernels import machine
from simrank.kernels.machine.number_text import MAX_SHOWN, programs_text
from simrank.kernels.values.block import Block, Diverged, as_block, as_truth
from simrank.kernels.values.types import int32, int64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import SupportsInt

    from simrank.kernels.machine.arrays import Value
    from simrank.kernels.values.block import Operand


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


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "assume": assume,
    "static_assert": static_assert,
    "static_print": static_print,
    "device_print": device_print,
    "device_assert": device_assert,
    "debug_barrier": debug_barrier,
}
