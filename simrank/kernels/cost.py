"""Simulated cost of kernels: launches, accesses of one program, overlap (rule K4).

`kernel_cost` is that of a whole launch, from its statistics: traffic and arithmetic, in waves over
the SMs. `AccessCosts` are those of a program that runs as a task of its own.
"""

from __future__ import annotations

import math
from heapq import heapify, heapreplace
from math import ceil, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.hardware.roofline import (
    QUEUED_START_PS,
    library_product_ps,
    peak_flops,
    queued_ps,
)
from simrank.hardware.spec import clock_hz, compute_capability
from simrank.kernels import machine
from simrank.kernels.machine import SPECIAL, Dot, Extent, Statistics
from simrank.kernels.machine.statistics import Roof
from simrank.units import ceil_ps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device.device import Device
    from simrank.device.memory import Storage
    from simrank.hardware.spec import DeviceSpec
    from simrank.kernels.machine.protocols import Array, Sync
    from simrank.kernels.machine.statistics import Counts, Load


# ---- cost of one program's accesses while other programs run ----

# Assumed: the wait of one program for a load from its own device's memory (half of the about 600
# ns of a miss is hidden by other work), for an L2 round trip of an atomic or poll, and the cost of
# issuing a store (H100 latencies: Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU
# Architecture via Microbenchmarking", 2024).
LOAD_PS = 300_000
ATOMIC_PS = 300_000
# Assumed: L2 delivers 2.1 times the achieved memory bandwidth (H100: 5.5 to 7 TB/s were measured,
# and 2.9 of HBM3; Chips and Cheese, "Nvidia's H100: Funny L2, and Tons of Bandwidth").
L2_PER_HBM = 2.1
# Programs with dots share tiles, and requests of neighboring SMs for one line reach L2 once (Nsight
# Compute, "L2 Request Coalescer"). A product in tiles of 192 x 192 at 777 TFLOPS takes 8.1 TB/s of
# an H100 (pranjalssh/fast.cu, kernel 6).
TILES_PER_HBM = 2.8
STORE_PS = 50_000
# Assumed: programs on half of the SMs saturate the memory; fewer leave bandwidth unused.
_SATURATING_SHARE = 0.5
# Assumed: a round trip to the host's memory over PCIe takes about a microsecond.
_HOST_LATENCY_PS = 500_000
# Programs that saturate a link: one channel of NCCL, a program, reaches 18 to 21 of the 376 GB/s
# of an H100's port (`p2p_channel_bandwidth` in `configs/clusters`).
_SATURATING_LINK = 20


class _PeerAccess(NamedTuple):
    """Route to another device."""

    latency_ps: int
    program_bytes_per_s: float  # Per program, shared with the others.


class AccessCosts:
    """Access costs of the programs of one launch.

    Args:
        device: The device of the programs.
        num_resident: Number of programs that run at the same time.
    """

    def __init__(self, device: Device, num_resident: int) -> None:
        self._device = device
        num_sharing = max(num_resident, device.spec.num_sms * _SATURATING_SHARE, 1.0)
        self._own = _PeerAccess(0, device.spec.memory_bandwidth_bytes_per_s / num_sharing)
        self._num_sharing_link = max(num_resident, _SATURATING_LINK)
        host_rate = device.spec.host_link_bandwidth_bytes_per_s / self._num_sharing_link
        self._host = _PeerAccess(_HOST_LATENCY_PS, host_rate)
        self._routes: dict[int, _PeerAccess] = {}  # By peer index, looked up once.
        # Cache of costs: a kernel has few access sizes.
        self._known: dict[tuple[Device | None, int, int], int] = {}

    def first_ps(self, storage: Storage, *, writes: bool) -> int:
        """Return the latency of a load, or the cost of issuing a store.

        Later loads from the same memory overlap with it: compilers pipeline loops.
        """
        return STORE_PS if writes else LOAD_PS + 2 * self._route(storage.device).latency_ps

    def moved_ps(self, storage: Storage, size_bytes: int, new_bytes: int) -> int:
        """Return a program's share of the time that an access occupies memory or a link.

        Args:
            storage: The accessed storage.
            size_bytes: Bytes moved.
            new_bytes: Bytes that come from or go to the memory itself; the rest is in L2.
        """
        key = (storage.device, size_bytes, new_bytes)
        cost_ps = self._known.get(key)
        if cost_ps is None:
            route = self._route(storage.device)
            if route is self._own:
                size_bytes = max(new_bytes, ceil(size_bytes / L2_PER_HBM))
            cost_ps = self._known[key] = ceil_ps(size_bytes / route.program_bytes_per_s)
        return cost_ps

    def atomic_ps(self, storages: Sequence[Storage]) -> int:
        """Return the one-way cost of an atomic to the farthest of its storages."""
        if len(storages) == 1:
            return ATOMIC_PS // 2 + self._route(storages[0].device).latency_ps
        return ATOMIC_PS // 2 + max(map(self.latency_ps, storages), default=0)

    def latency_ps(self, storage: Storage) -> int:
        """Return the latency of the route to a storage."""
        return self._route(storage.device).latency_ps

    def _route(self, peer: Device | None) -> _PeerAccess:
        if peer is self._device:
            return self._own
        if peer is None:  # Pinned host memory.
            return self._host
        route = self._routes.get(peer.index)
        if route is None:
            network, own = self._device.network, self._device.index
            latency_ps = int(network.cluster.paths([own], [peer.index]).latency_ps[0])
            rate = network.route_bandwidth_bytes_per_s(own, peer.index)
            route = _PeerAccess(latency_ps, rate / self._num_sharing_link)
            self._routes[peer.index] = route
        return route


# ---- overlap of a kernel's work: memory with units, dots with vector operations ----

# From Hopper on, four warps execute a dot together. Source: PTX ISA, "wgmma.mma_async".
_DOTS_OF_WARP_GROUPS = (9, 0)
_SCHEDULERS = 4  # Per SM, each with a unit for dots. Source: NVIDIA's white papers, V100 to H100.


def num_beside(spec: DeviceSpec, num_resident: int, num_warps: int) -> int:
    """Return the number of instruction streams on an SM that alternate dots and vector work.

    Each program is one; where warps execute dots separately, each warp of one scheduler is one.

    Args:
        spec: The device.
        num_resident: Number of programs that run at the same time.
        num_warps: Warps per program.
    """
    per_sm = max(ceil(num_resident / spec.num_sms), 1)
    if (compute_capability(spec.name) or (0, 0)) >= _DOTS_OF_WARP_GROUPS:
        return per_sm
    return per_sm * ceil(num_warps / _SCHEDULERS)


def together_ps(tensor_ps: int, vector_ps: int, beside: int) -> int:
    """Return the time of alternating dots and vector operations on one SM.

    A single stream does not overlap them: between the two dots of attention each step waits for
    the one before it. Several streams do: a closed queueing network, whose throughput follows from
    mean value analysis (Reiser and Lavenberg, 1980).

    Args:
        tensor_ps: Time of the dots of all programs.
        vector_ps: Time of the vector operations of all programs.
        beside: Number of instruction streams, see `num_beside`.
    """
    longer = max(tensor_ps, vector_ps)
    if not min(tensor_ps, vector_ps):
        return longer
    tensor_queue = vector_queue = round_ps = 0.0
    for number in range(1, beside + 1):
        tensor, vector = tensor_ps * (1 + tensor_queue), vector_ps * (1 + vector_queue)
        round_ps = tensor + vector
        tensor_queue, vector_queue = number * tensor / round_ps, number * vector / round_ps
    return max(ceil(round_ps / beside), longer)


class BusyTimes:
    """Busy times of one program since its last synchronization, in picoseconds.

    Attributes:
        memory_ps: Memory and links.
        tensor_ps: Dots.
        vector_ps: Vector operations.
        charged_ps: The part that is charged to its clock already.

    Args:
        beside: Number of instruction streams on its SM, see `num_beside`.
    """

    __slots__ = ("_beside", "charged_ps", "memory_ps", "tensor_ps", "vector_ps")

    def __init__(self, beside: int) -> None:
        self.memory_ps = self.tensor_ps = self.vector_ps = self.charged_ps = 0
        self._beside = beside

    def taken_ps(self) -> int:
        """Return the time of all work; loads of the next step overlap with units."""
        if not self.tensor_ps:
            return max(self.memory_ps, self.vector_ps)
        units_ps = together_ps(self.tensor_ps, self.vector_ps, self._beside)
        return max(self.memory_ps, units_ps)


# ---- cost of a launch: traffic and arithmetic, in waves over the SMs ----

# Assumed: programs on half of the SMs saturate the memory; fewer leave bandwidth unused.
_SMS_THAT_SATURATE = 0.5
# Assumed: L2 executes one atomic of a launch per clock and slice, about 2.4e12 per second.
_ATOMICS_PER_S = 2.4e12
# Assumed: latencies of loads from memory and L2 under load (H100, without load: 270 and 150 ns;
# Luo et al., see `LOAD_PS`).
_MEMORY_LATENCY_S, _L2_LATENCY_S = 600e-9, 300e-9
# Operations per clock and SM, except those of FP32 lanes. Source: CUDA C++ Programming Guide 13.0,
# "Arithmetic Instructions", compute capability 8.0 to 10.0.
_SIMPLE_PER_CLOCK, _SPECIAL_PER_CLOCK = 64, 16
# Source: NVIDIA, "Inside NVIDIA Blackwell Ultra", 2025: 10.7e12 exponentials per second, and 5e12
# on the first Blackwell.
_SPECIAL_PER_CLOCK_OF: dict[tuple[int, int] | None, int] = {(10, 3): 32}
# Assumed if neither the compiler's metadata nor `num_ctas_per_sm` gives it.
DEFAULT_CTAS_PER_SM = 2

_MOST_KNOWN = 1024  # size of the cost cache


class LaunchParameters(NamedTuple):
    """Parameters of a launch.

    Attributes:
        grid: Number of programs along each axis.
        ctas_per_sm: Number of programs that an SM holds at once.
        num_warps: Warps per program.
        num_stages: Steps of a loop in flight at once.
        num_spilled: Spilled registers per thread.
        operand_bytes_per_flop: Bytes of shared memory that warps read per operation of a dot; 0 if
            unknown, or if reads overlap completely.
    """

    grid: tuple[int, int, int]
    ctas_per_sm: int
    num_warps: int
    num_stages: int
    num_spilled: int = 0
    operand_bytes_per_flop: float = 0.0

    @property
    def num_programs(self) -> int:
        """Number of programs, at least one."""
        return max(math.prod(self.grid), 1)


class KernelCost(NamedTuple):
    """Time of one launch and its components, in picoseconds except for the counts.

    Attributes:
        duration_ps: The launch, alone on its device.
        memory_ps: Traffic with the device's memory.
        l2_ps: All loads and stores through L2.
        arithmetic_ps: Dots and vector operations, with their overlap.
        tensor_ps: Dots alone.
        vector_ps: Vector operations alone.
        special_ps: Special functions, a part of `vector_ps`.
        link_ps: Traffic with other devices.
        atomics_ps: Atomics.
        limiter: Name of the longest component.
        hbm_bytes: Bytes from and to the memory: each touched range once.
        waves: Number of programs over the number of slots.
        num_sms: Number of occupied SMs.
        per_sm: Programs that an occupied SM holds at a time.
        busiest_share: SM load imbalance: work of the busiest SM over the mean.
        num_spilled: Spilled registers per thread.
    """

    duration_ps: int
    memory_ps: int
    l2_ps: int
    arithmetic_ps: int
    tensor_ps: int
    vector_ps: int
    special_ps: int
    link_ps: int
    atomics_ps: int
    limiter: str
    hbm_bytes: int
    waves: float
    num_sms: int
    per_sm: int
    busiest_share: float
    num_spilled: int

    @property
    def parts_ps(self) -> dict[str, int]:
        """Time per resource, without overlap."""
        return {
            "tensor": self.tensor_ps,
            "vector": self.vector_ps - self.special_ps,
            "special": self.special_ps,
            "memory": self.memory_ps,
            "L2": self.l2_ps + self.atomics_ps,
            "links": self.link_ps,
        }


def kernel_cost(statistics: Statistics, device: Device, launched: LaunchParameters) -> KernelCost:
    """Return the cost of a launch with the given statistics.

    Args:
        statistics: Statistics of its programs.
        device: The device of the launch.
        launched: Parameters of the launch.
    """
    spec, num_programs, grid = device.spec, launched.num_programs, launched.grid
    slots = spec.num_sms * launched.ctas_per_sm
    num_resident = min(num_programs, slots)
    hbm_bytes, all_bytes, link_ps = _traffic(statistics, device)
    used = min(num_programs / (spec.num_sms * _SMS_THAT_SATURATE), 1.0)
    bandwidth = spec.memory_bandwidth_bytes_per_s * max(used, 1e-6)
    # Programs on one SM share its units; the SM with the most work ends last.
    busiest = busiest_share(statistics.loads, grid, spec.num_sms) if math.prod(grid) else 1.0
    beside = num_beside(spec, num_resident, launched.num_warps)
    tensor_ps, vector_ps = _units_ps(statistics, spec, launched, beside)
    tensor_ps, vector_ps = ceil(tensor_ps * busiest), ceil(vector_ps * busiest)
    both_ps = together_ps(tensor_ps, vector_ps, beside)
    times = {
        "memory": _ps(hbm_bytes, bandwidth),
        "l2": _ps(all_bytes, bandwidth * (TILES_PER_HBM if statistics.flops else L2_PER_HBM)),
        "latency": _latency_ps(statistics, hbm_bytes, all_bytes, num_resident, launched.num_stages),
        "arithmetic": max(both_ps, _library_ps(statistics, spec, num_programs)),
        "links": link_ps,
        "atomics": _ps(statistics.num_atomics, _ATOMICS_PER_S),
    }
    limiter = max(times, key=lambda name: times[name])
    duration_ps = queued_ps(times[limiter])
    if times[limiter] < QUEUED_START_PS:
        limiter = "launch"
    return KernelCost(
        duration_ps=duration_ps,
        memory_ps=times["memory"],
        l2_ps=times["l2"],
        arithmetic_ps=times["arithmetic"],
        tensor_ps=tensor_ps,
        vector_ps=vector_ps,
        special_ps=min(_special_ps(statistics, spec, busiest), vector_ps),
        link_ps=link_ps,
        atomics_ps=times["atomics"],
        limiter=limiter,
        hbm_bytes=hbm_bytes,
        waves=num_programs / slots,
        num_sms=min(ceil(num_programs / launched.ctas_per_sm), spec.num_sms),
        per_sm=min(launched.ctas_per_sm, ceil(num_programs / spec.num_sms)),
        busiest_share=busiest,
        num_spilled=launched.num_spilled,
    )


def roof_of(device: Device, statistics: Statistics) -> Roof:
    """Return the device's peak rates for the operations of a launch."""
    spec = device.spec
    names = [PEAK_NAMES.get(dot.element, "float32") for dot in statistics.flops] or ["float32"]
    most = max(peak_flops(spec, name) or 0.0 for name in names)
    return Roof(spec.name, most, float(spec.memory_bandwidth_bytes_per_s))


def _ps(amount: float, per_s: float) -> int:
    return ceil_ps(amount / per_s)


def _traffic(statistics: Statistics, device: Device) -> tuple[int, int, int]:
    """Return the bytes moved to and from memory and through L2, and the time on links.

    Repeated accesses to a range are assumed to hit in L2, and so are loads of what was stored.
    """
    hbm_bytes = all_bytes = link_ps = 0
    for traffic in statistics.traffic.values():
        moved = traffic.read_bytes + traffic.written_bytes
        if traffic.device is None:  # Pinned host memory.
            link_ps = max(link_ps, _ps(moved, device.spec.host_link_bandwidth_bytes_per_s))
            continue
        if traffic.device is not device:
            link_ps = max(link_ps, _link_ps(device, traffic.device, moved))
            continue
        extent = max(traffic.high - traffic.low, 0)
        read, written = traffic.read_sectors_bytes, traffic.written_sectors_bytes
        hbm_bytes += min(written, extent)
        hbm_bytes += 0 if traffic.is_made_here else min(read, extent)
        all_bytes += read + written
    return hbm_bytes, all_bytes, link_ps


def _link_ps(device: Device, peer: Device, moved_bytes: int) -> int:
    """Return the transfer time of bytes on the route between two devices, without contention."""
    cluster = device.network.cluster
    paths = cluster.paths([peer.index], [device.index])
    rates = cluster.link_bandwidth_bytes_per_s[paths.links[0]]
    return int(paths.latency_ps[0]) + _ps(moved_bytes, float(rates.min()))


def _latency_ps(
    statistics: Statistics, hbm_bytes: int, all_bytes: int, num_resident: int, num_stages: int
) -> int:
    """Return the time of loading dot operands with a limited number in flight (Little's law).

    Loops over dots prefetch the operands of the next stages; other traffic is ignored.
    """
    ahead = statistics.dot_inputs_bytes * max(num_stages - 1, 1) * num_resident
    if not ahead or not all_bytes:
        return 0
    num_dots = sum(flops / dot.num_flops for dot, flops in statistics.flops.items())
    of_dots = min(num_dots * statistics.dot_inputs_bytes / all_bytes, 1.0)
    waited = hbm_bytes * _MEMORY_LATENCY_S + max(all_bytes - hbm_bytes, 0) * _L2_LATENCY_S
    return ceil_ps(of_dots * waited / ahead)


def operations_ps(spec: DeviceSpec, operations: Sequence[int]) -> int:
    """Return the time of vector operations on the whole device.

    Args:
        spec: The device.
        operations: Number of operations by unit, see `machine.running`.
    """
    hz = clock_hz(spec)
    if hz is None:
        return 0
    special = _SPECIAL_PER_CLOCK_OF.get(compute_capability(spec.name), _SPECIAL_PER_CLOCK)
    per_clock = (2 * spec.fp32_lanes, _SIMPLE_PER_CLOCK, special)
    clocks = sum(number / rate for number, rate in zip(operations, per_clock, strict=True))
    return _ps(clocks, hz * spec.num_sms)


def _units_ps(
    statistics: Statistics, spec: DeviceSpec, launched: LaunchParameters, beside: int
) -> tuple[int, int]:
    """Return the times of dots, operand reads included, and of vector operations."""
    num_warps, per_flop = launched.num_warps, launched.operand_bytes_per_flop
    counts = statistics.flops.items()
    read_ps = operands_ps(spec, sum(statistics.flops.values()) * per_flop)
    tensor_ps = sum(dots_ps(spec, dot, flops, num_warps) for dot, flops in counts)
    if read_ps:  # A warp reads the next operands during a dot: two streams at a time.
        tensor_ps = together_ps(tensor_ps, read_ps, 2 * beside)
    vector_ps = operations_ps(spec, statistics.operations)
    vector_ps += spilled_ps(statistics, spec, num_warps, launched.num_spilled)
    return tensor_ps, vector_ps


def _special_ps(statistics: Statistics, spec: DeviceSpec, busiest: float) -> int:
    """Return the time of special functions, a part of that of vector operations."""
    special_ps = operations_ps(spec, (0, 0, statistics.operations[SPECIAL]))
    return ceil(special_ps * busiest)


def _library_ps(statistics: Statistics, spec: DeviceSpec, num_programs: int) -> int:
    """Return the time of the device's library for the same product, a lower bound for kernels.

    The shape of the product follows from the statistics: its results are m x n, its operations 2 m
    n k, and the two largest tensors that the kernel read are m x k and k x n.
    """
    is_measured = spec.gemm_table is not None or spec.measured_as is not None
    if not is_measured or not statistics.dot_outputs:
        return 0
    num_outputs = num_programs * statistics.dot_outputs
    extents = sorted(
        (t.high - t.low for t in statistics.traffic.values() if t.read_bytes and t.high > t.low),
        reverse=True,
    )
    ratio = extents[0] / extents[1] if len(extents) > 1 else 1.0
    ratio = min(max(ratio, 1.0), float(num_outputs))
    longer = max(round(sqrt(num_outputs * ratio)), 1)
    shorter = max(round(num_outputs / longer), 1)
    longest_ps = 0
    by_type: dict[str, int] = {}
    for dot, flops in statistics.flops.items():
        dtype = PEAK_NAMES.get(dot.element, "float32")
        by_type[dtype] = by_type.get(dtype, 0) + flops
    for dtype, flops in by_type.items():
        inner = max(round(flops / (2 * longer * shorter)), 1)
        shapes = ((1, longer, shorter, inner), (1, shorter, longer, inner))
        either = [library_product_ps(spec, dtype, shape) or 0 for shape in shapes]
        longest_ps += max(either)
    return longest_ps


class TimedStatistics(Statistics):
    """Statistics of programs that run one by one, each with its own clock.

    Args:
        device: The device of the programs.
        num_resident: Number of programs that run at the same time.
    """

    def __init__(self, device: Device, num_resident: int) -> None:
        super().__init__()
        self._device = device
        self._num_sharing = max(num_resident, device.spec.num_sms)  # A program uses at most one SM.
        self._charged = list(self.operations)
        # Cache of vector operation times: most programs repeat the same operations between
        # accesses.
        self._known_ps: dict[tuple[int, ...], int] = {}

    def count(
        self,
        storage: Storage,
        num_lanes: int,
        num_active: int,
        extent: Extent,
        *,
        writes: bool,
    ) -> int:
        """Count an access, and charge it to the running program."""
        moved = super().count(storage, num_lanes, num_active, extent, writes=writes)
        sync = machine.now().sync
        if sync is not None:
            self._work_on_operations(sync.work)
            # Assumed: programs with dots share their tiles in L2.
            sync.charge_access(storage, moved, 0 if self.flops else moved, writes=writes)
        return moved

    def count_flops(
        self, dot: Dot, num_flops: int, num_outputs: int, inputs_bytes: int = 0
    ) -> None:
        """Count a dot, and charge it to the running program."""
        super().count_flops(dot, num_flops, num_outputs, inputs_bytes)
        programs = machine.now()
        sync = programs.sync
        if sync is not None:
            self._work_on_operations(sync.work)
            taken_ps = dots_ps(self._device.spec, dot, num_flops, programs.options.num_warps)
            sync.work.tensor_ps += taken_ps * self._num_sharing
            sync.charge_work()

    def _work_on_operations(self, work: BusyTimes) -> None:
        """Add the vector operations since the last access; no other program ran since."""
        if self.operations == self._charged:
            return
        counts = zip(self.operations, self._charged, strict=True)
        done = tuple([now - before for now, before in counts])
        self._charged = list(self.operations)
        taken_ps = self._known_ps.get(done)
        if taken_ps is None:
            if len(self._known_ps) == _MOST_KNOWN:
                self._known_ps.clear()
            taken_ps = operations_ps(self._device.spec, done) * self._num_sharing
            self._known_ps[done] = taken_ps
        work.vector_ps += taken_ps

    def charge_operations(self, sync: Sync) -> None:
        """Charge the vector operations since the last access to the running program."""
        self._work_on_operations(sync.work)
        sync.charge_work()

    def restore(self, snapshot: Counts) -> None:
        """Reset the counts without charging the difference."""
        super().restore(snapshot)
        self._charged = list(self.operations)


# ---- SM load imbalance ----

# Assumed: share of the mean; smaller programs cannot cause an imbalance that matters.
_UNSEEN = 0.01


def busiest_share(loads: list[Load], grid: tuple[int, int, int], num_sms: int) -> float:
    """Return the work of the busiest SM over the mean of all SMs.

    Programs start in the order of their ids, each on the SM with the least work left.

    Args:
        loads: Work of programs, of a sample or of all.
        grid: Number of programs along each axis.
        num_sms: Number of SMs of the device.
    """
    total = int(np.prod(grid))
    if len({load.work for load in loads}) < 2:  # All are equal.
        return -(-total // num_sms) * num_sms / total
    works = _works(loads, grid)
    mean = float(works.sum()) / num_sms
    if works.max() <= _UNSEEN * mean:
        return 1.0
    left = [0.0] * num_sms
    heapify(left)
    for work in works.tolist():
        heapreplace(left, left[0] + work)
    return max(left) / mean


def _works(loads: list[Load], grid: tuple[int, int, int]) -> Array:
    """Return the work of every program, interpolated along axis 0 between sampled programs."""
    wide, rest = grid[0], grid[1] * grid[2]
    sums, counts = np.zeros(wide), np.zeros(wide)
    works = np.full(wide * rest, np.nan)
    for load in loads:
        works[load.ids] = load.work
        np.add.at(sums, load.ids % wide, load.work)
        np.add.at(counts, load.ids % wide, 1)
    known = np.flatnonzero(counts)
    between = np.interp(np.arange(wide), known, sums[known] / counts[known])
    return np.where(np.isnan(works), np.tile(between, rest), works)


# ---- Time of dots: not every shape reaches the tensor cores' peak (rule K4) ----

# Assumed: share of the data sheet's rate that Triton's dots reach, limited by clocks under load
# and loop prologues and epilogues; fitted to `benches/kernels_published.py`, on A100 and H100
# alike.
_EFFICIENCY = 0.72
# Bytes per clock of an SM's shared memory. Source: CUDA C++ Programming Guide, per compute
# capability: 32 banks of four bytes.
_SHARED_BYTES_PER_CLOCK = 128
# On Hopper, four warps multiply 64 rows together and read both matrices from shared memory, 128
# bytes per clock. Source: PTX ISA, "wgmma.mma_async"; NVIDIA, "H100 Tensor Core GPU Architecture".
_HOPPER = (9, 0)
_ROWS_TOGETHER, _WARPS_TOGETHER = 64, 4
# Share of the rate that warps reach separately on Hopper. Source: Luo et al., "Benchmarking and
# Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024.
_OF_WARPS_ALONE = 0.629
# Lanes that load or store per clock of an SM. Source: CUDA C++ Programming Guide, per compute
# capability.
_LANES_PER_CLOCK = 32
_THREADS = 32

PEAK_NAMES = {
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64",
    "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2", "int8": "int8", "uint8": "int8",
}  # fmt: skip


def dots_ps(spec: DeviceSpec, dot: Dot, num_flops: int, num_warps: int) -> int:
    """Return the time of dot operations on the whole device.

    Args:
        spec: The device.
        dot: Type and shape of the dots.
        num_flops: Number of operations.
        num_warps: Warps per program.
    """
    peak = peak_flops(spec, PEAK_NAMES.get(dot.element, "float32"))
    if peak is None:
        return 0
    return ceil_ps(num_flops / (peak * _share_of_peak(spec, dot, num_warps)))


def operands_ps(spec: DeviceSpec, read_bytes: float) -> int:
    """Return the time of reading dot operands from shared memory on the whole device."""
    hz = clock_hz(spec)
    if hz is None or compute_capability(spec.name) == _HOPPER:
        return 0
    return ceil_ps(read_bytes / (_SHARED_BYTES_PER_CLOCK * spec.num_sms * hz))


def _share_of_peak(spec: DeviceSpec, dot: Dot, num_warps: int) -> float:
    """Return the share of the peak rate that dots of a shape reach."""
    if compute_capability(spec.name) != _HOPPER:
        return _EFFICIENCY
    if dot.rows < _ROWS_TOGETHER or num_warps % _WARPS_TOGETHER:
        return _EFFICIENCY * _OF_WARPS_ALONE
    # Per 16 of the inner dim, in clocks: columns / 2 to multiply, 16 + columns / 4 to read.
    return min(_EFFICIENCY, dot.columns / 2 / (16 + dot.columns / 4))


def spilled_ps(statistics: Statistics, spec: DeviceSpec, num_warps: int, num_spilled: int) -> int:
    """Return the time of storing and reloading spilled registers.

    Assumed: each is written and read once per step of a loop, which has one dot of each shape.

    Args:
        statistics: Statistics of a launch.
        spec: The device.
        num_warps: Warps per program.
        num_spilled: Spilled registers per thread.
    """
    hz = clock_hz(spec)
    if not num_spilled or hz is None:
        return 0
    num_steps = max((n / dot.num_flops for dot, n in statistics.flops.items()), default=0)
    lanes = 2 * num_spilled * num_warps * _THREADS * num_steps
    return ceil_ps(lanes / (_LANES_PER_CLOCK * spec.num_sms * hz))
