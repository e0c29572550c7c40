"""The running programs of a kernel: in lockstep, or one alone.

Triton's functions take no argument that names the program: `tl.load(pointer)` is called by a
kernel's source as it is. So the running programs are the one global of this package: `run` and each
resumption of a waiting program set it with `set_running`, and `now()` returns it. Kernels
interleave only at waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.device.device import Device
    from simrank.kernels.machine.protocols import AccessLog, Array, Lanes, Sync, Value
    from simrank.kernels.machine.statistics import Statistics

_ndarray = np.ndarray
ALL_PROGRAMS = -2  # Stands for all programs of a batch, where they do the same.


class Argument(NamedTuple):
    """A tensor argument of a kernel, for messages."""

    name: str
    shape: tuple[int, ...]


class LaunchOptions(NamedTuple):
    """Options of a launch that affect the run of its programs.

    Attributes:
        is_checked: Whether masked-off lanes are poisoned: in debug mode, under `strict`, and with
            hardware's precision.
        num_warps: Warps of a program, for kernels that ask.
        precision: "ieee", or "hardware": fp32 inputs of dots are rounded to tf32 unless the kernel
            asks otherwise, and sums of narrow floats at every step.
        num_threads: Threads of a program, for kernels that ask which one they are; 0 in others.
        warp_size: Threads of a warp: 32, or 64 on AMD's devices of this kind.
        is_cooperative: Whether all programs run at once, and have a workspace together.
        arguments: Tensors by the address of their storage.
    """

    is_checked: bool = False
    num_warps: int = 4
    precision: str = "ieee"
    num_threads: int = 0
    warp_size: int = 32
    is_cooperative: bool = False
    arguments: dict[int, Argument] = {}  # noqa: RUF012 - never changed


class RunningLaunch(NamedTuple):
    """The launch that programs belong to: kernel, grid, device, counts.

    Attributes:
        kernel: The kernel's name, for messages.
        grid: Programs along each axis.
        device: Where they run.
        statistics: Where what they do is counted.
        options: How the launch runs.
        lanes: Looks at what lanes of one program do; None: nothing does.
    """

    kernel: str
    grid: tuple[int, int, int]
    device: Device
    statistics: Statistics
    options: LaunchOptions = LaunchOptions()
    lanes: Lanes | None = None


class Programs:
    """Programs of one grid that run in lockstep, or one program that runs alone.

    Attributes:
        grid, device, statistics, kernel, options, lanes: As their launch has them.
        ids: [P] linear program ids; axis 0 runs fastest.
        undo: What was overwritten, newest last; None where nothing needs to be undone.
        log: Where their accesses are noted; None where races are not looked for.
        sync: How a waiting program waits and publishes; None for kernels that do neither.
        active: Which of its threads do what comes next, see `threads`, or which of the programs,
            see `guarded`; None for all.
        counts_scalars: Whether scalars cost: programs are elements of a block, see
            `map_elementwise`.
        copies: How many programs each of those elements is computed in.
    """

    counts_scalars, copies = False, 1

    def __init__(
        self,
        setting: RunningLaunch,
        ids: Array,
        *,
        keeps_undo: bool = False,
        sync: Sync | None = None,
        log: AccessLog | None = None,
    ) -> None:
        self.kernel, self.grid, self.device, self.statistics, self.options, self.lanes = setting
        self.ids = ids
        self.log = log
        self.undo: list[tuple[Array, Any, Any]] | None = [] if keeps_undo else None
        self.sync = sync
        self._axis_ids: list[Any] = [None, None, None]
        self.active: Array | None = None

    def __len__(self) -> int:
        """Return the number of programs."""
        return len(self.ids)

    def program_id(self, axis: int) -> Value:
        """Return the ids of all programs along an axis, masked-off ones included."""
        result: Value | None = self._axis_ids[axis]
        if result is None:
            result = self._axis_ids[axis] = self.axis_ids(axis)
        return result

    def axis_ids(self, axis: int) -> Value:
        """Return the program ids along an axis: int32, a numpy scalar where all are equal."""
        before = 1
        for size in self.grid[:axis]:
            before *= size
        ids = (self.ids // before % self.grid[axis]).astype(np.int32)
        if len(ids) == 1 or self.grid[axis] == 1:
            result: Value = ids[0]
            return result
        return ids

    def roll_back(self) -> None:
        """Restore all memory that the programs overwrote."""
        assert self.undo is not None, "batches keep what they overwrite"
        for view, index, old in reversed(self.undo):
            view[index] = old
        self.undo.clear()


_running: Programs | None = None
_outside = "a function of triton.language was called outside a kernel"


class UnmaskableError(Exception):
    """An operation is not possible while some programs of a batch are masked off."""


class PublishedError(Exception):
    """Programs in lockstep write to another device: each must do so at its own time."""


def require_all(programs: Programs) -> None:
    """Raise if some programs of a batch are masked off.

    Raises:
        UnmaskableError: They are.
    """
    if programs.active is not None and len(programs.ids) > 1:
        raise UnmaskableError


def now() -> Programs:
    """Return the programs that run now.

    Raises:
        RuntimeError: None run.
    """
    if _running is None:
        raise RuntimeError(_outside)
    return _running


def spend(unit: int, values: Value, each: int = 1) -> None:
    """Count operations for each element of a block; scalars run on other units.

    Args:
        unit: What kind of operation, see `SIMPLE`.
        values: Of the block: one row for all programs, or one for each.
        each: How many for an element.
    """
    programs = _running
    if programs is None or type(values) is not _ndarray:
        return
    if values.ndim == 1:
        if programs.counts_scalars:
            programs.statistics.operations[unit] += len(values) * programs.copies
        return
    num_programs = len(programs.ids)
    number: int = values.size // len(values) * num_programs * each
    if programs.active is not None and num_programs > 1:  # The others are masked off.
        number = number // num_programs * int(np.count_nonzero(programs.active))
    statistics = programs.statistics
    statistics.operations[unit] += number
    if statistics.profile is not None:
        statistics.profile.here().operations[unit] += number


def clock_ps() -> int:
    """Return the simulated time of the running program; in lockstep, of the launch."""
    programs = now()
    if programs.sync is None:
        return programs.device.engine.now_ps
    programs.statistics.charge_operations(programs.sync)
    return programs.sync.clock_ps


def is_as_hardware() -> bool:
    """Return whether the running programs compute with hardware's precision."""
    return _running is not None and _running.options.precision == "hardware"


def is_running() -> bool:
    """Return whether programs run now."""
    return _running is not None


def set_running(programs: Programs | None) -> Programs | None:
    """Set the running programs, and return the previous ones."""
    global _running  # noqa: PLW0603 - one Python thread runs kernels
    before = _running
    _running = programs
    return before


def run(programs: Programs, body: Callable[[], Any]) -> None:
    """Run a kernel's body for some programs."""
    before = set_running(programs)
    try:
        with np.errstate(all="ignore"):  # As on a device: inf, NaN and wrapped integers.
            body()
    finally:
        set_running(before)


# ---- units of an SM for operations on blocks, by throughput ----
# Tensor cores are not alone in a kernel: between two dots of attention stand exponentials, maxima
# and conversions, and those take their time (rule K4). Integers are mostly addresses, of which one
# is computed for 16 bytes side by side, and masks: neither is counted.

# Rows of the programming guide's table of throughputs.
FUSED = 0  # Additions and multiplications of floats: two of them mostly become one instruction.
SIMPLE = 1  # Comparisons, choices, conversions, bits of integers, steps of reductions.
SPECIAL = 2  # Exponentials, logarithms, roots, divisions, sines.
NUM_UNITS = 3


# ---- numbers of programs and bytes as text, for reports ----

MAX_SHOWN = 8  # of programs, bytes and values, in reports


def first_few(result: Sequence[object]) -> str:
    """Return the first items as text, for example `0, 16, 32`."""
    return ", ".join(map(str, result[:MAX_SHOWN])) + ", ..." * (len(result) > MAX_SHOWN)


def programs_text(ids: Sequence[int]) -> str:
    """Return program ids as text, for example `program 0, 1`."""
    return f"program {first_few(ids)}"


def ids_text(ids: list[int]) -> str:
    """Return numbers as ranges, for example `0-3, 7`."""
    parts: list[str] = []
    start = previous = ids[0]
    for number in [*ids[1:], -1]:
        if number == previous + 1:
            previous = number
            continue
        parts.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = number
    return ", ".join(parts)


def waiting_text(lows: dict[int, int], changes: list[str]) -> str:
    """Return the text of waiting programs and their bytes.

    Args:
        lows: By program, the first byte that it waits for.
        changes: From which value to which, where that is known.
    """
    verb = "program {} waits" if len(lows) == 1 else "programs {} wait"
    starts = list(dict.fromkeys(lows.values()))
    bytes_ = f"byte{'s' * (len(starts) > 1)} {first_few(starts)}"
    values = f" from {first_few(changes)}" if changes else ""
    return f"{verb.format(ids_text(list(lows)))} for a change of {bytes_}{values}"
