"""Counts of a launch, access by access (rule K4), and profiles of kernels per source line."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from simrank.engine import user_site
from simrank.kernels.machine.running import NUM_UNITS, now

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.device.device import Device
    from simrank.device.memory import Storage
    from simrank.kernels.machine.protocols import Array, Jit, Sync


class Extent(NamedTuple):
    """The elements that an access touches.

    Attributes:
        low, high: The lowest and the highest one.
        itemsize: Bytes of each.
        waste: Bytes moved for each byte that was asked for: memory moves whole sectors.
    """

    low: int
    high: int
    itemsize: int
    waste: float = 1.0


class Dot(NamedTuple):
    """Products of one shape in one program.

    Attributes:
        element: Type of the operands.
        rows, columns, inner: Of the matrices.
    """

    element: str
    rows: int
    columns: int
    inner: int

    @property
    def num_flops(self) -> int:
        """Return the FLOPs of one program."""
        return 2 * self.rows * self.columns * self.inner


class Load(NamedTuple):
    """Programs with equal counts.

    Attributes:
        ids: Which, as linear ids.
        work: What each of them did: operations of its dots; without dots, of its vector units.
    """

    ids: Array
    work: float


class Counts(NamedTuple):
    """A snapshot of counts, for `restore`."""

    traffic: dict[int, tuple[Device | None, tuple[int, ...]]]
    flops: dict[Dot, int]
    operations: list[int]
    num_atomics: int
    num_lanes: int
    num_masked_lanes: int
    lines: dict[tuple[str, int], Line] | None


class Traffic:
    """Bytes between the programs of a launch and one storage, or one part of it.

    Attributes:
        device: Where the storage is; None: on the host.
        address: Of the storage.
        size_bytes: Of the storage, or of the part.
        read_bytes: Loaded, masked-off lanes not counted.
        written_bytes: Stored and by atomics.
        read_sectors_bytes: What was moved for what was loaded: whole sectors.
        written_sectors_bytes: Likewise for what was stored.
        is_made_here: Whether it was stored before it was loaded: it is in caches then.
        low, high: The range of elements' bytes that was touched.
    """

    __slots__ = (
        "address", "device", "high", "is_made_here", "low", "read_bytes",
        "read_sectors_bytes", "size_bytes", "written_bytes", "written_sectors_bytes",
    )  # fmt: skip

    def __init__(self, device: Device | None, address: int, size_bytes: int) -> None:
        self.device = device
        self.address = address
        self.size_bytes = size_bytes
        self.read_bytes = self.read_sectors_bytes = 0
        self.written_bytes = self.written_sectors_bytes = 0
        self.is_made_here = False
        self.low = 1 << 62  # Above all of them.
        self.high = 0

    def moved_to(self, storage: Storage) -> Traffic:
        """Return the same counts of another storage."""
        result = Traffic(storage.device, storage.address, self.size_bytes)
        for name in _COUNTED:
            if name not in ("address", "size_bytes"):
                setattr(result, name, getattr(self, name))
        return result


_COUNTED = [name for name in Traffic.__slots__ if name != "device"]
_SCALED = [name for name in _COUNTED if name.startswith(("read", "written"))]


class Statistics:
    """The counts of a launch, for its cost and its report (rule K4).

    Attributes:
        traffic: Bytes per storage, by its address, or per part of it; see `parts`.
        parts: Where arguments are parts of storages: their bytes in order, [begin, end), by the
            storage's address. What lies in none of them counts as the storage.
        flops: Operations of dots, by their type and shape.
        operations: Of the vector units, by unit, see `SIMPLE`.
        loads: Which programs did how much of it.
        dot_outputs: Most elements that the result of a dot has had in one program.
        dot_inputs_bytes: Most bytes that the operands of a dot have had in one program.
        num_atomics: Atomic operations, in elements.
        views: Storages as arrays, by numpy's number of the dtype; made once.
        num_lanes: Lanes of loads and stores, masked off or not.
        num_masked_lanes: Those that were masked off.
        num_steps: Accesses and dots so far, each of all programs in lockstep once; also of programs
            that were rolled back.
        largest_block: Most lanes that one program has had in one access.
        fill: Where memory has no values, which number loads give: zero, one or a large one; None:
            memory has values, or is refused.
        profile: The profile of the kernel's lines, while profiles are collected; else None.
    """

    def __init__(self) -> None:
        self.profile: KernelProfile | None = None
        self.fill: int | None = None
        self.traffic: dict[int, Traffic] = {}
        self.parts: dict[int, list[tuple[int, int]]] = {}
        self.largest_block = 0
        self.num_steps = 0
        self.dot_outputs = self.dot_inputs_bytes = 0
        self.flops: dict[Dot, int] = {}
        self.operations = [0] * NUM_UNITS
        self.loads: list[Load] = []
        self._dots: Array | None = None  # Operations of dots by program, where some are masked off.
        self.num_atomics = 0
        self.views: dict[tuple[Storage, int], Array] = {}
        self.num_lanes = 0
        self.num_masked_lanes = 0

    def count(
        self,
        storage: Storage,
        num_lanes: int,
        num_active: int,
        extent: Extent,
        *,
        writes: bool,
    ) -> int:
        """Count an access, and return the bytes that it moves: whole sectors.

        Args:
            storage: What was touched.
            num_lanes: Lanes of the access, in all programs.
            num_active: Those that were not masked off.
            extent: The elements touched.
            writes: Whether it wrote.
        """
        self.num_steps += 1
        low, high, itemsize, waste = extent
        size_bytes = num_active * itemsize
        moved = size_bytes if waste == 1.0 else round(size_bytes * waste)
        begin, end = low * itemsize, (high + 1) * itemsize
        traffic = None if self.parts else self.traffic.get(storage.address)
        if traffic is None:
            traffic = self._traffic_of(storage, begin)
        if writes:
            traffic.written_bytes += size_bytes
            traffic.written_sectors_bytes += moved
        else:
            if not traffic.read_bytes:
                traffic.is_made_here = traffic.written_bytes > 0
            traffic.read_bytes += size_bytes
            traffic.read_sectors_bytes += moved
        traffic.low = min(traffic.low, begin)
        traffic.high = max(traffic.high, end)
        self.num_lanes += num_lanes
        self.num_masked_lanes += num_lanes - num_active
        if self.profile is not None:
            self.profile.access(storage, now().device, num_lanes, num_active, itemsize)
        return moved

    def _traffic_of(self, storage: Storage, first: int) -> Traffic:
        """Return the traffic counts of a storage, or of the part that holds a byte."""
        key, size_bytes = storage.address, storage.size_bytes
        parts = self.parts.get(key, ())
        part = next(((begin, end) for begin, end in parts if begin <= first < end), None)
        if part is not None:
            key, size_bytes = key + part[0], part[1] - part[0]
        elif parts:
            key = ~key  # Of no part.
        traffic = self.traffic.get(key)
        if traffic is None:
            traffic = self.traffic[key] = Traffic(storage.device, storage.address, size_bytes)
        return traffic

    def count_atomics(self, num_lanes: int) -> None:
        """Count atomic operations."""
        self.num_atomics += num_lanes
        if self.profile is not None:
            self.profile.here().num_atomics += num_lanes

    def charge_operations(self, sync: Sync) -> None:
        """Charge vector operations to a program that runs alone."""

    def count_flops(
        self, dot: Dot, num_flops: int, num_outputs: int, inputs_bytes: int = 0
    ) -> None:
        """Count a dot.

        Args:
            dot: What it multiplies.
            num_flops: Its operations, in all programs.
            num_outputs: Elements of its result in one program.
            inputs_bytes: Of its operands in one program.
        """
        self.num_steps += 1
        self.flops[dot] = self.flops.get(dot, 0) + num_flops
        if self._dots is not None:
            ids = now().ids
            self._dots[ids] += num_flops / len(ids)
        self.dot_outputs = max(self.dot_outputs, num_outputs)
        self.dot_inputs_bytes = max(self.dot_inputs_bytes, inputs_bytes)
        if self.profile is not None:
            self.profile.here().flops += num_flops

    def count_masked(self, num_lanes: int) -> None:
        """Count an access whose lanes were all masked off."""
        self.num_steps += 1
        self.num_lanes += num_lanes
        self.num_masked_lanes += num_lanes

    def note_block(self, size: int) -> None:
        """Record the number of elements per program of an operation."""
        self.largest_block = max(self.largest_block, size)

    def tell_apart(self, ids: Array | None) -> None:
        """Count dots per program from now on; None: all programs do the same."""
        self._dots = None if ids is None else np.zeros(int(ids.max()) + 1)

    def note_load(self, ids: Array, before: Counts) -> None:
        """Record the load of programs since a snapshot."""
        if self._dots is not None and self.flops:
            works = self._dots[ids]
            self.loads += [Load(ids[works == work], float(work)) for work in np.unique(works)]
            return
        done = sum(self.flops.values()) - sum(before.flops.values())
        if not self.flops:
            done = sum(self.operations) - sum(before.operations)
        self.loads.append(Load(ids, done / len(ids)))

    def snapshot(self) -> Counts:
        """Return a snapshot of the counts, for `restore`."""
        traffic = {
            address: (t.device, tuple(getattr(t, name) for name in _COUNTED))
            for address, t in self.traffic.items()
        }
        lines = None if self.profile is None else self.profile.snapshot()
        return Counts(
            traffic,
            dict(self.flops),
            list(self.operations),
            self.num_atomics,
            self.num_lanes,
            self.num_masked_lanes,
            lines,
        )

    def shape(self) -> tuple[object, ...]:
        """Return a fingerprint that differs for runs with different counts."""
        traffic = {address: (t.read_bytes, t.written_bytes) for address, t in self.traffic.items()}
        counts = self.num_steps, self.num_lanes, self.num_masked_lanes, self.num_atomics
        return traffic, self.flops, self.operations, counts

    def add_scaled(self, sample: Statistics, factor: float) -> None:
        """Add counts of some programs, scaled to the number of programs like them."""
        for key, found in sample.traffic.items():
            own = self.traffic.get(key)
            if own is None:
                own = self.traffic[key] = Traffic(found.device, found.address, found.size_bytes)
                own.is_made_here = found.is_made_here
            for name in _SCALED:
                setattr(own, name, getattr(own, name) + round(getattr(found, name) * factor))
            # Assumed: all programs together touch all of it, as far as they move so much.
            own.low, own.high = 0, found.size_bytes
        for dot, count in sample.flops.items():
            self.flops[dot] = self.flops.get(dot, 0) + round(count * factor)
        pairs = zip(self.operations, sample.operations, strict=True)
        self.operations = [own + round(count * factor) for own, count in pairs]
        self.loads += sample.loads
        self.num_steps += sample.num_steps
        self.dot_outputs = max(self.dot_outputs, sample.dot_outputs)
        self.dot_inputs_bytes = max(self.dot_inputs_bytes, sample.dot_inputs_bytes)
        self.largest_block = max(self.largest_block, sample.largest_block)
        self.num_atomics += round(sample.num_atomics * factor)
        self.num_lanes += round(sample.num_lanes * factor)
        self.num_masked_lanes += round(sample.num_masked_lanes * factor)

    def without_traffic(self) -> Statistics:
        """Return a copy of the counts but those of memory."""
        result = Statistics()
        result.take(self)
        return result

    def take(self, other: Statistics) -> None:
        """Take the counts of a launch of the same form, but those of memory."""
        self.flops, self.operations = dict(other.flops), list(other.operations)
        self.loads = list(other.loads)
        for name in (
            "dot_inputs_bytes", "dot_outputs", "largest_block", "num_atomics", "num_lanes",
            "num_masked_lanes", "num_steps",
        ):  # fmt: skip
            setattr(self, name, getattr(other, name))

    def restore(self, snapshot: Counts) -> None:
        """Restore the counts of a snapshot."""
        self.num_atomics = snapshot.num_atomics
        self.num_lanes = snapshot.num_lanes
        self.num_masked_lanes = snapshot.num_masked_lanes
        self.flops = snapshot.flops
        self.operations = snapshot.operations
        if self.profile is not None and snapshot.lines is not None:
            self.profile.restore(snapshot.lines)
        self.traffic = {}
        for address, (device, counts) in snapshot.traffic.items():
            restored = self.traffic[address] = Traffic(device, 0, 0)
            for name, count in zip(_COUNTED, counts, strict=True):
                setattr(restored, name, count)


# ---- profiles of kernels per source line: bytes, lanes, operations, waiting time ----
# Collected within `with collected() as profiles: ...`; elsewhere they cost nothing.


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


class ProfiledCost(Protocol):
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

    def ended(
        self, num_programs: int, cost: ProfiledCost, roof: Roof, rank: int | None = None
    ) -> None:
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
