"""What runs now: the programs in lockstep, what they did, and how to undo it.

The functions of `tl` ask `now()` who runs. Whoever resumes a program says so again: kernels
interleave at waits only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.device.device import Device
    from simrank.device.memory import Storage
    from simrank.kernels.batch_races import LaunchStores
    from simrank.kernels.block import Block
    from simrank.kernels.profile import KernelProfile

Array = np.ndarray[Any, Any]


class Traffic:
    """Bytes between the programs of a launch and one storage.

    Attributes:
        device: Where the storage is; None: on the host.
        read_bytes: Loaded, masked-off lanes not counted.
        written_bytes: Stored and by atomics.
        low, high: The range of elements' bytes that was touched.
    """

    __slots__ = ("device", "high", "low", "read_bytes", "written_bytes")

    def __init__(self, device: Device | None, size_bytes: int) -> None:
        self.device = device
        self.read_bytes = 0
        self.written_bytes = 0
        self.low = size_bytes
        self.high = 0


class Statistics:
    """What a launch did, for its cost and its report (rule K4).

    Attributes:
        traffic: Bytes per storage, by its address.
        flops: Floating-point operations of dots, by the type of their inputs.
        dot_outputs: Most elements that the result of a dot has had in one program.
        num_atomics: Atomic operations, in elements.
        views: Storages as arrays, by numpy's number of the dtype; made once.
        num_lanes: Lanes of loads and stores, masked off or not.
        num_masked_lanes: Those that were masked off.
        num_steps: Accesses and dots so far, each of all programs in lockstep once; also of programs
            that were rolled back.
        largest_block: Most lanes that one program has had in one access.
        profile: Where lines are counted, while somebody collects them; else None.
    """

    def __init__(self) -> None:
        self.profile: KernelProfile | None = None
        self.traffic: dict[int, Traffic] = {}
        self.largest_block = 0
        self.num_steps = 0
        self.dot_outputs = 0
        self.flops: dict[str, int] = {}
        self.num_atomics = 0
        self.views: dict[tuple[Storage, int], Array] = {}
        self.num_lanes = 0
        self.num_masked_lanes = 0

    def count(
        self,
        storage: Storage,
        num_lanes: int,
        num_active: int,
        extent: tuple[int, int, int],
        *,
        writes: bool,
    ) -> None:
        """Count an access.

        Args:
            storage: What was touched.
            num_lanes: Lanes of the access, in all programs.
            num_active: Those that were not masked off.
            extent: (lowest, highest, bytes) of the elements touched.
            writes: Whether it wrote.
        """
        self.num_steps += 1
        traffic = self.traffic.get(storage.address)
        if traffic is None:
            traffic = self.traffic[storage.address] = Traffic(storage.device, storage.size_bytes)
        low, high, itemsize = extent
        if writes:
            traffic.written_bytes += num_active * itemsize
        else:
            traffic.read_bytes += num_active * itemsize
        low *= itemsize
        high = (high + 1) * itemsize
        traffic.low = min(traffic.low, low)
        traffic.high = max(traffic.high, high)
        self.num_lanes += num_lanes
        self.num_masked_lanes += num_lanes - num_active
        if self.profile is not None:
            self.profile.access(storage, now().device, num_lanes, num_active, itemsize)

    def count_atomics(self, num_lanes: int) -> None:
        """Count atomic operations."""
        self.num_atomics += num_lanes
        if self.profile is not None:
            self.profile.here().num_atomics += num_lanes

    def count_flops(self, name: str, num_flops: int, num_outputs: int) -> None:
        """Count a dot.

        Args:
            name: Type of its inputs.
            num_flops: Its operations, in all programs.
            num_outputs: Elements of its result in one program.
        """
        self.num_steps += 1
        self.flops[name] = self.flops.get(name, 0) + num_flops
        self.dot_outputs = max(self.dot_outputs, num_outputs)
        if self.profile is not None:
            self.profile.here().flops += num_flops

    def count_masked(self, num_lanes: int) -> None:
        """Count lanes of an access that were all masked off."""
        self.num_steps += 1
        self.num_lanes += num_lanes
        self.num_masked_lanes += num_lanes

    def note_block(self, size: int) -> None:
        """Note how many elements of one program an operation has worked on."""
        self.largest_block = max(self.largest_block, size)

    def snapshot(self) -> Any:
        """Return the counts as they are, for `restore`."""
        traffic = {
            address: (t.device, t.read_bytes, t.written_bytes, t.low, t.high)
            for address, t in self.traffic.items()
        }
        lines = None if self.profile is None else self.profile.snapshot()
        counts = self.num_atomics, self.num_lanes, self.num_masked_lanes
        return traffic, dict(self.flops), counts, lines

    def restore(self, snapshot: Any) -> None:
        """Set the counts back: what was counted since did not happen."""
        traffic, flops, counts, lines = snapshot
        self.num_atomics, self.num_lanes, self.num_masked_lanes = counts
        self.flops = flops
        if self.profile is not None:
            self.profile.restore(lines)
        self.traffic = {}
        for address, (device, *counts) in traffic.items():
            restored = self.traffic[address] = Traffic(device, 0)
            restored.read_bytes, restored.written_bytes, restored.low, restored.high = counts


class Options(NamedTuple):
    """What a launch says about how its programs run.

    Attributes:
        is_checked: Whether masked-off lanes are poisoned (debug mode).
        num_warps: Warps of a program, for kernels that ask.
        precision: "ieee", or "hardware": fp32 inputs of dots are rounded to tf32 unless the kernel
            asks otherwise.
        num_threads: Threads of a program, for kernels that ask which one they are; 0 in others.
        is_cooperative: Whether all programs run at once, and have a workspace together.
        arguments: Tensors by the address of their storage: name and shape, for messages.
    """

    is_checked: bool = False
    num_warps: int = 4
    precision: str = "ieee"
    num_threads: int = 0
    is_cooperative: bool = False
    arguments: dict[int, tuple[str, tuple[int, ...]]] = {}  # noqa: RUF012 - never changed


class Programs:
    """Programs of one grid that run in lockstep, or one program that runs alone.

    Attributes:
        grid: Programs along each axis.
        ids: [P] linear program ids; axis 0 runs fastest.
        device: Where they run.
        statistics: Counts of the launch.
        undo: What was overwritten, newest last; None where nothing needs to be undone.
        stores: Where their stores are compared; None where races are not looked for.
        sync: How a waiting program waits and publishes; None for kernels that do neither.
        kernel: The kernel's name, for messages.
        options: How the launch runs.
        active: Which of its threads do what comes next, see `threads`, or which of the programs,
            see `masked`; None for all.
    """

    def __init__(
        self,
        grid: tuple[int, int, int],
        ids: Array,
        device: Device,
        statistics: Statistics,
        kernel: str,
        *,
        keeps_undo: bool = False,
        sync: Any = None,
        options: Options = Options(),  # noqa: B008 - it is immutable
        stores: LaunchStores | None = None,
    ) -> None:
        self.stores = stores
        self.grid = grid
        self.ids = ids
        self.device = device
        self.statistics = statistics
        self.kernel = kernel
        self.undo: list[tuple[Array, Any, Any]] | None = [] if keeps_undo else None
        self.sync = sync
        self.options = options
        self.program_ids: list[Block | None] = [None, None, None]
        self.active: Array | None = None

    def __len__(self) -> int:
        """Return how many programs there are."""
        return len(self.ids)

    def axis_ids(self, axis: int) -> Any:
        """Return the program ids along an axis: int32, a numpy scalar where all are equal."""
        before = 1
        for size in self.grid[:axis]:
            before *= size
        ids = (self.ids // before % self.grid[axis]).astype(np.int32)
        if len(ids) == 1 or self.grid[axis] == 1:
            return ids[0]
        return ids

    def roll_back(self) -> None:
        """Restore everything that these programs overwrote."""
        assert self.undo is not None, "batches keep what they overwrite"
        for view, index, old in reversed(self.undo):
            view[index] = old
        self.undo.clear()


_running: Programs | None = None
_outside = "a function of triton.language was called outside a kernel"


class UnmaskableError(Exception):
    """Something cannot be done while some programs of a batch are masked off."""


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


def is_running() -> bool:
    """Return whether programs run now."""
    return _running is not None


def set_running(programs: Programs | None) -> Programs | None:
    """Say who runs from now on, and return who ran before."""
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
