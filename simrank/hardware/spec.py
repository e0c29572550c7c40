"""Frozen facts about one device and about the collective library on it, and what follows."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# A kernel that is launched alone starts so much later than in a CUDA graph. Fitted to what
# Liger-Kernel published of plain torch on A100 and H100 (adr/0047); XLA's times of single products
# on H100 are as much longer than those of graphs.
START_US = 2.35
# From the end of one kernel to the end of the next, where the host is ahead, besides the work: an
# addition to 1 element, 500 of them behind a sleep (H200, configs/torch/README.md).
QUEUED_START_US = 1.74

# (batch, m, n, k): `batch` products of an m x k by a k x n matrix.
Product = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One accelerator.

    Attributes:
        name: What it is called, for reports.
        memory_bytes: Its memory, in bytes.
        memory_bandwidth_bytes_per_s: Rate at which kernels read and write that memory.
        num_sms: Streaming multiprocessors (compute units).
        peak_flops: Dense operations per second for each dtype name.
        kernel_floor_ps: Time of the smallest kernel in a stream, in picoseconds.
        launch_overhead_ps: Host time to launch one operation, in picoseconds.
        host_link_bandwidth_bytes_per_s: Rate between the device and its host, per direction.
        launch_queue: Launches that may be outstanding before the host waits for one to end.
        fp32_lanes: Lanes of an SM that add and multiply in FP32.
        lazy_loading: Whether a kernel's code is loaded at its first launch.
        multicast: Whether one address may stand for the memory of all devices of its node.
        gemm_table: File of measured matrix products; None where a rule says how long they take.
        best_product_flops: Operations per second of the best bfloat16 product that was measured;
            None: unknown.
        has_block_clusters: Whether blocks that run together fetch operands once.
        measured_as: The measured device whose products and attention hold; None: no device's.
        l2_bytes: Size of its last cache; None: that of the nearest measured device.
    """

    name: str
    memory_bytes: int
    memory_bandwidth_bytes_per_s: int
    num_sms: int
    peak_flops: Mapping[str, int] = field(hash=False)
    kernel_floor_ps: int
    launch_overhead_ps: int
    host_link_bandwidth_bytes_per_s: int
    launch_queue: int = 1024
    lazy_loading: bool = False
    fp32_lanes: int = 128
    multicast: bool = False
    gemm_table: str | None = None
    best_product_flops: int | None = None
    has_block_clusters: bool = False
    measured_as: str | None = None
    l2_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CollectiveSpec:
    """Costs of the collective library on these devices, and the SMs that it occupies.

    Attributes:
        launch_latency_ps: Paid once by each collective, before its first step, in picoseconds.
        step_overhead_ps: Time that a sender spends on one step besides its bytes, in picoseconds;
            the rest of a route's latency passes while it goes on.
        num_channels: SMs that a collective occupies; its chunks travel on as many lanes.
        buffer_bytes: Buffer of one channel towards one peer, in bytes.
    """

    launch_latency_ps: int
    step_overhead_ps: int
    num_channels: int
    buffer_bytes: int


@dataclass(frozen=True, slots=True)
class NcclSpec:
    """NCCL's view of a node; rates are in bytes per second, per direction.

    Attributes:
        architecture: The rows of NCCL's tables that hold, for example hopper.
        wire: What joins the devices of a node: nvlink or pci.
        host: Vendor of the hosts' processors: intel or amd.
        ring_bytes_per_s: Bus bandwidth of all rings of a node together.
        mesh_links: Links of a device that each join it to another device of its node, and to no
            switch; 0: there is one.
        nvls_bytes_per_s: What a device's port carries to the switch that reduces; 0: none does.
        channels: Channels of all rings together.
        p2p_channel_bytes_per_s: What one channel carries from a device to another.
        nics: Network cards of a node that carry collectives; 0: there is no network.
        nic_bytes_per_s: What collectives see of one of them.
        nic_latency_ps: What a step over one takes longer than NCCL's tables have it.
        algorithms: What the network's plugin or operator leaves to choose from; none named: all.
        protocols: Likewise.
        has_collnet: Whether switches of the network reduce (SHARP), and NCCL may use that.
        network: The kind of network, for example ib; "": the cluster does not say.
    """

    architecture: str
    wire: str
    host: str
    ring_bytes_per_s: int
    nvls_bytes_per_s: int
    channels: int
    p2p_channel_bytes_per_s: int
    nics: int
    nic_bytes_per_s: int
    nic_latency_ps: int = 0
    mesh_links: int = 0
    algorithms: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    has_collnet: bool = False
    network: str = ""

    def ring_bytes_per_s_of(self, num_local: int) -> float:
        """Return the bus bandwidth of rings through some ranks of a node.

        On a mesh of n devices they go through n - 1 rings that share no link: with fewer ranks
        there are fewer, and two have one link. Through a switch, every rank fills its port.
        """
        if not self.mesh_links:
            return self.ring_bytes_per_s
        return self.ring_bytes_per_s * max(num_local - 1, 1) / self.mesh_links


# ---- generation and clock of an NVIDIA GPU, derived from its facts in a cluster ----

# By a part of the device's name. Source: developer.nvidia.com/cuda-gpus.
_CAPABILITIES = (
    ("V100", (7, 0)),
    ("A100", (8, 0)),
    ("A30", (8, 0)),
    ("A10", (8, 6)),
    ("A40", (8, 6)),
    ("L4", (8, 9)),
    ("RTX 4090", (8, 9)),
    ("H20", (9, 0)),
    ("H100", (9, 0)),
    ("B200", (10, 0)),
    ("B300", (10, 3)),
    ("RTX PRO", (12, 0)),
    ("RTX 5090", (12, 0)),
)


@cache
def compute_capability(name: str) -> tuple[int, int] | None:
    """Return the compute capability of a device; None where its name says nothing of it."""
    return next((found for part, found in _CAPABILITIES if part in name.upper()), None)


def clock_hz(spec: DeviceSpec) -> float | None:
    """Return the clock at which a device reaches its FP32 rate; None where it has none."""
    fused_per_s = spec.peak_flops.get("float32", spec.peak_flops.get("float64"))
    return None if fused_per_s is None else fused_per_s / (2 * spec.fp32_lanes * spec.num_sms)
