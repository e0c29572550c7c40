"""Profiles of kernels per source line: bytes, lanes, operations, waiting time.

Collected within `with collected() as profiles: ...`; elsewhere they cost nothing.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from simrank.engine import user_site
from simrank.kernels.machine.running import NUM_UNITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.device.device import Device
    from simrank.device.memory import Storage
    from simrank.kernels.machine.protocols import Jit


class Roof(NamedTuple):
    """Peak rates of a device.

    Attributes:
        device: Its name.
        flops_per_s: Of dots, in the type that the kernel used; else of FP32.
        bytes_per_s: Of its memory.
    """

    device: str
    flops_per_s: float
    bytes_per_s: float


class Cost(Protocol):
    """The parts of a launch's cost that a profile keeps."""

    @property
    def duration_ps(self) -> int:
        """Return the duration."""

    @property
    def limiter(self) -> str:
        """Return the limiting resource."""

    @property
    def hbm_bytes(self) -> int:
        """Return the bytes of HBM traffic."""

    @property
    def parts_ps(self) -> dict[str, int]:
        """Return the time per resource, without overlap."""

    @property
    def per_sm(self) -> int:
        """Return the number of programs that an SM held at a time."""

    @property
    def busiest_share(self) -> float:
        """Return the SM load imbalance: the largest load over the mean."""

    @property
    def num_spilled(self) -> int:
        """Return the number of spilled registers per thread."""


@dataclass
class Line:
    """One source line, over all programs and launches.

    Attributes:
        local_bytes: Loaded from, stored to the kernel's own device.
        peer_bytes: To and from other devices, by the device's index.
        num_lanes: Lanes of loads and stores.
        num_masked_lanes: Those that were masked off.
        flops: Of dots.
        operations: Of vector units, by unit, see `SIMPLE`.
        num_atomics: Atomic operations.
        parked_ps: Time that programs waited here, all together.
    """

    local_bytes: int = 0
    peer_bytes: dict[int, int] = field(default_factory=dict)
    num_lanes: int = 0
    num_masked_lanes: int = 0
    flops: int = 0
    operations: list[int] = field(default_factory=lambda: [0] * NUM_UNITS)
    num_atomics: int = 0
    parked_ps: int = 0

    @property
    def masked_share(self) -> float:
        """Return the share of masked-off lanes."""
        return self.num_masked_lanes / self.num_lanes if self.num_lanes else 0.0

    def scale_since(self, before: Line, factor: float) -> None:
        """Scale the counts since a snapshot to more programs."""

        def scaled(now: int, then: int) -> int:
            return then + round((now - then) * factor)

        for name in ("local_bytes", "num_lanes", "num_masked_lanes", "flops", "num_atomics"):
            setattr(self, name, scaled(getattr(self, name), getattr(before, name)))
        pairs = zip(self.operations, before.operations, strict=True)
        self.operations = [scaled(*pair) for pair in pairs]
        self.peer_bytes = {
            peer: scaled(count, before.peer_bytes.get(peer, 0))
            for peer, count in self.peer_bytes.items()
        }

    def copy(self) -> Line:
        """Return a copy of the counts."""
        own = {"peer_bytes": dict(self.peer_bytes), "operations": list(self.operations)}
        return Line(**{**vars(self), **own})


@dataclass
class KernelProfile:
    """One kernel, over all of its launches.

    Attributes:
        name: Its name.
        file: The file of its source.
        first_line: Where its `def` stands.
        source: Its lines.
        lines: What lines did, by (file, line): of device functions it calls too.
        num_launches: How often it was launched.
        num_programs: Programs of all launches.
        duration_ps: Simulated time of all launches.
        limiters: How often each was what a launch took longest for.
        parts_ps: What all launches took of each resource, were it the only one.
        hbm_bytes: From and to the device's memory, in all launches.
        roof: What the device can do, for the last launch.
        per_sm: How many programs an SM held at a time, in the last launch.
        busiest_share: Work of the SM that had the most, over the mean; in the last launch.
        num_spilled: Registers of a thread that were in memory, in the last launch.
        ranks: Which have launched it.
    """

    name: str
    file: str
    first_line: int
    source: list[str]
    lines: dict[tuple[str, int], Line] = field(default_factory=dict)
    num_launches: int = 0
    num_programs: int = 0
    duration_ps: int = 0
    limiters: dict[str, int] = field(default_factory=dict)
    parts_ps: dict[str, int] = field(default_factory=dict)
    hbm_bytes: int = 0
    roof: Roof | None = None
    per_sm: int = 0
    busiest_share: float = 1.0
    num_spilled: int = 0
    ranks: set[int] = field(default_factory=set)

    def here(self) -> Line:
        """Return the line that the running kernel is at."""
        site = user_site()
        key = ("?", 0) if site is None else tuple(site.line())
        result = self.lines.get(key)  # type: ignore[arg-type]
        if result is None:
            result = self.lines[key] = Line()  # type: ignore[index]
        return result

    def access(
        self, storage: Storage, device: Device, num_lanes: int, num_active: int, itemsize: int
    ) -> None:
        """Count a load or store at the line that runs."""
        line = self.here()
        line.num_lanes += num_lanes
        line.num_masked_lanes += num_lanes - num_active
        size_bytes = num_active * itemsize
        peer = storage.device
        if peer is None or peer is device:
            line.local_bytes += size_bytes
        else:
            line.peer_bytes[peer.index] = line.peer_bytes.get(peer.index, 0) + size_bytes

    def ended(self, num_programs: int, cost: Cost, roof: Roof, rank: int | None = None) -> None:
        """Count a launch.

        Args:
            num_programs: Of its grid.
            cost: What it cost.
            roof: What the device can do.
            rank: Whose launch it was.
        """
        self.ranks |= set() if rank is None else {rank}
        self.num_launches += 1
        self.num_programs += num_programs
        self.duration_ps += cost.duration_ps
        self.limiters[cost.limiter] = self.limiters.get(cost.limiter, 0) + 1
        self.hbm_bytes += cost.hbm_bytes
        self.roof = roof
        self.per_sm, self.busiest_share = cost.per_sm, cost.busiest_share
        self.num_spilled = cost.num_spilled
        for name, taken_ps in cost.parts_ps.items():
            self.parts_ps[name] = self.parts_ps.get(name, 0) + taken_ps

    def snapshot(self) -> dict[tuple[str, int], Line]:
        """Return the counts of all lines, for `restore`."""
        return {key: line.copy() for key, line in self.lines.items()}

    def scale_since(self, snapshot: dict[tuple[str, int], Line], factor: float) -> None:
        """Scale the counts of lines since a snapshot to more programs."""
        for key, line in self.lines.items():
            line.scale_since(snapshot.get(key, Line()), factor)

    def restore(self, snapshot: dict[tuple[str, int], Line]) -> None:
        """Restore the counts of a snapshot."""
        self.lines = snapshot


# By file, line and source: ranks that execute a module each have kernels of their own from it.
_collecting: dict[tuple[object, ...], KernelProfile] | None = None


@contextmanager
def collected() -> Iterator[list[KernelProfile]]:
    """Collect profiles of the kernels that are launched within the block.

    Yields:
        The kernels, in the order of their first launches; filled at the end of the block.
    """
    global _collecting  # noqa: PLW0603 - launches ask for it
    before, _collecting = _collecting, {}
    result: list[KernelProfile] = []
    try:
        yield result
    finally:
        result += _collecting.values()
        _collecting = before


def profile_of(jit: Jit) -> KernelProfile | None:
    """Return a kernel's profile; None while no profiles are collected."""
    if _collecting is None:
        return None
    file, first = jit.fn.__code__.co_filename, int(jit.starting_line_number)
    key = file, first, jit.src
    if key not in _collecting:
        source = [line.rstrip("\n") for line in jit.raw_src]
        _collecting[key] = KernelProfile(jit.__name__, file, first, source)
    return _collecting[key]
