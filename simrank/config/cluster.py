"""The YAML of a cluster: nodes, devices, switches, links, and the fabric.

Start with `ClusterConfig`; `configs/clusters/hgx_h100.yaml` is an example. How `between` names
vertices is in `simrank.config.topology`.
"""

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

from simrank.config.model import Model
from simrank.config.quantity import (
    MEASURED_DEVICES,
    NCCL_ARCHITECTURES,
    NCCL_HOSTS,
    NCCL_NETWORKS,
    NCCL_WIRES,
    AlgorithmNames,
    Bandwidth,
    BandwidthPerDirection,
    Count,
    DeviceCount,
    DtypeName,
    Flag,
    Flops,
    LatencyPerDirection,
    Memory,
    Name,
    Power,
    ProtocolNames,
    Share,
    Size,
    Text,
    Time,
    one_of,
    reject,
)

MAX_RANGE = 65_536  # Assumed: vertices that one entry such as `nic0..7` may name.


def expand_range(text: str) -> list[str] | None:
    """Return the names of a range such as `nic0..7`, or the one name; None if invalid."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", text, re.ASCII):
        return [text]
    match = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_-]*?)(\d{1,9})\.\.(\d{1,9})", text, re.ASCII)
    if match is None:
        return None
    first, last = int(match[2]), int(match[3])
    if not first <= last < first + MAX_RANGE:
        return None
    return [f"{match[1]}{index}" for index in range(first, last + 1)]


def _vertices(value: object) -> tuple[str, ...]:
    """Validate a list of vertex names and expand its ranges."""
    if not isinstance(value, list | tuple):
        raise reject("a list of names such as [nvswitch] or [nic0..7]")
    names: list[str] = []
    for index, item in enumerate(value):
        expanded = expand_range(item) if isinstance(item, str) else None
        if expanded is None:
            raise reject("a name such as nvswitch, or a range such as nic0..7", sub=(index,))
        names.extend(expanded)
    return tuple(names)


def _between(value: object) -> tuple[str, str]:
    """Validate the two ends of a link; which vertices they name is resolved later."""
    expected = "two ends such as [each gpu, nvswitch]"
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise reject(expected)
    for index, item in enumerate(value):
        if not isinstance(item, str) or not item.strip():
            raise reject("a vertex, a range, `each GROUP` or `same GROUP`", sub=(index,))
    return (" ".join(value[0].split()), " ".join(value[1].split()))


def _sources(value: object) -> Mapping[str, str]:
    """Validate a source: a text for the whole block, or a mapping from key to text."""
    if isinstance(value, str) and value.strip():
        return {"others": value}
    if not isinstance(value, Mapping):
        raise reject("a text that says where the numbers come from, or `assumed`")
    for key, text in value.items():
        if not isinstance(text, str) or not text.strip():
            raise reject("a text that says where the number comes from", sub=(key,))
    return dict(value)


VertexList = Annotated[tuple[str, ...], BeforeValidator(_vertices)]
Between = Annotated[tuple[str, str], BeforeValidator(_between)]
Sources = Annotated[Mapping[str, str], BeforeValidator(_sources)]


BOOST, SUSTAINED = CLOCKS = "boost", "sustained"
ECMP, ADAPTIVE = "ecmp", "adaptive"  # How what leaves a pod finds its uplink.
# Keys that say what something is; the others are numbers, which have a source.
NOT_MEASURED = {
    "source",
    "like",
    "name",
    "count",
    "between",
    "launch_queue",
    "lazy_loading",
    "fp32_lanes",
    "collnet",
    "gemm_table",
    "measured_as",
    "clocks",
    "block_clusters",
    "multicast",
    "architecture",
    "wire",
    "network",
    "host",
    "nodes",
    "uplinks",
    "routing",
}


class Sourced(Model):
    """A block of numbers that says where they come from.

    Attributes:
        source: For each key its source; `others` stands for the keys that are not named.
    """

    source: Sources = Field(default_factory=dict)


def given_keys(block: Sourced) -> set[str]:
    """Return the keys of a block that have a value and need a source."""
    fields = type(block).model_fields.items()
    keys = {field.alias or name for name, field in fields if getattr(block, name) is not None}
    return keys - NOT_MEASURED


class DeviceConfig(Sourced):
    """The accelerators of one node; their vertices are gpu0, gpu1, ...

    Attributes:
        like: A built-in cluster that gives the keys which are not given here.
        name: What the device is called, for reports.
        count: Devices in one node.
        memory_bytes: Memory of one device, in bytes.
        memory_bandwidth_bytes_per_s: Rate at which kernels read and write it.
        num_sms: Streaming multiprocessors (compute units) of one device.
        peak_flops: Dense operations per second for each dtype.
        kernel_floor_ps: Time of the smallest kernel in a stream.
        launch_overhead_ps: Host time to launch one operation.
        host_link_bandwidth_bytes_per_s: Rate between device and host, per direction.
        launch_queue: Kernels, copies and collectives of one device that may be outstanding; a host
            that runs further ahead waits. Source of the default: about 1,000 launches were measured
            to be accepted before the host blocks (NVIDIA's developer forum, topic 68937); that the
            streams of a device share the queue is assumed.
        fp32_lanes: Lanes of an SM that add and multiply in FP32: 128 on NVIDIA's of compute
            capability 8.6 to 10 and AMD's CDNA 3, 64 on A100 (CUDA C++ Programming Guide).
        lazy_loading: Whether a kernel's code is loaded at its first launch, which waits until
            the device is quiet (CUDA_MODULE_LOADING=LAZY, CUDA's default since 12.2).
        gemm_table: A table of measured matrix products, a built-in name or a CSV file.
        measured_as: The measured device whose products and attention the device takes, by a name
            of configs/gemm; its own or a sibling's. Without it a rule predicts them.
        l2_bytes: Size of the last cache.
        sustained_clock: What a long step of large products leaves of the clock at which single
            kernels were measured, as a share, at the device's power limit.
        clocks: `boost`: arithmetic runs as in single kernels; `sustained`: at the share of it
            that `sustained_clock` states, as in long steps.
        power_limit_w: What the device may take, in watts, where that is less than its rated power:
            the rate of arithmetic falls with the power above the idle one. Assumed: at the rated
            limit the voltage is the lowest already, so that an operation costs the same energy at
            any lower clock.
        rated_power_w: The limit with which products were measured.
        idle_power_w: What it takes without work.
        best_product_flops: The best rate of any bfloat16 matrix product that was measured; without
            a table, the times of products follow from it.
        has_block_clusters: Whether thread blocks in a cluster fetch an operand once (Hopper and
            later); likewise.
        multicast: Whether one address may stand for the memory of all devices of a node, and
            switches copy and reduce what goes there (NVLink SHARP).
    """

    like: Text | None = None
    name: Text
    count: DeviceCount
    memory_bytes: Memory = Field(alias="memory")
    memory_bandwidth_bytes_per_s: Bandwidth = Field(alias="memory_bandwidth")
    num_sms: Count
    peak_flops: Mapping[DtypeName, Flops]
    kernel_floor_ps: Time = Field(alias="kernel_floor")
    launch_overhead_ps: Time = Field(alias="launch_overhead")
    host_link_bandwidth_bytes_per_s: Bandwidth = Field(alias="host_link")
    launch_queue: Count = 1024
    lazy_loading: Flag = False
    fp32_lanes: Count = 128
    gemm_table: Text | None = None
    best_product_flops: Flops | None = Field(default=None, alias="best_product")
    has_block_clusters: Flag = Field(default=False, alias="block_clusters")
    measured_as: Annotated[str, one_of(MEASURED_DEVICES, {})] | None = None
    l2_bytes: Size | None = Field(default=None, alias="l2_cache")
    sustained_clock: Share | None = None
    clocks: Annotated[str, one_of(CLOCKS, {})] = BOOST
    power_limit_w: Power | None = Field(default=None, alias="power_limit")
    rated_power_w: Power | None = Field(default=None, alias="rated_power")
    idle_power_w: Power | None = Field(default=None, alias="idle_power")
    multicast: Flag = False

    @property
    def arithmetic_share(self) -> float:
        """The rate of arithmetic by clocks and power limit, as a share of that in the tables."""
        share = (self.sustained_clock or 1.0) if self.clocks == SUSTAINED else 1.0
        if self.power_limit_w is None or self.rated_power_w is None:
            return share
        idle_w = self.idle_power_w or 0
        return share * (self.power_limit_w - idle_w) / (self.rated_power_w - idle_w)


class LinkConfig(Sourced):
    """One or several equal links, each with one direction there and one back.

    Attributes:
        between: The two ends as written.
        bandwidth: Bytes per second, per direction.
        latency: Picoseconds that the first byte takes, per direction.
    """

    between: Between
    bandwidth: BandwidthPerDirection
    latency: LatencyPerDirection


class PodsConfig(Sourced):
    """Groups of nodes, each with switches of the fabric of its own, joined by spines.

    Attributes:
        nodes: Nodes of a pod; the last one may have fewer.
        uplinks: Of each switch, one to each spine above it.
        bandwidth_bytes_per_s: Rate of one uplink, per direction.
        latency_ps: What an uplink adds, in picoseconds.
        routing: `ecmp`: what goes from a device to another one takes one uplink, by a hash;
            `adaptive`: it is spread over all of them.
    """

    nodes: Count
    uplinks: Count
    bandwidth_bytes_per_s: Bandwidth = Field(alias="bandwidth")
    latency_ps: Time = Field(alias="latency")
    routing: Annotated[str, one_of((ECMP, ADAPTIVE), {})] = ECMP


class FabricConfig(Model):
    """The fabric: shared switches, and links from every node to them.

    Attributes:
        switches: Vertices shared by all nodes, or by those of a pod.
        links: Links with at least one end among these switches.
        pods: How nodes are grouped, where not all of them are at the same switches.
    """

    switches: VertexList
    links: tuple[LinkConfig, ...]
    pods: PodsConfig | None = None


class CollectivesConfig(Sourced):
    """Costs of the collective library on these devices, and the SMs that it occupies.

    Attributes:
        launch_latency_ps: Paid once by each collective, before its first step.
        step_overhead_ps: Time that a sender spends on one step besides its bytes; the rest of a
            route's latency passes while it goes on.
        num_channels: SMs that a collective occupies; its chunks travel on as many lanes.
        buffer_bytes: Buffer of one channel towards one peer; larger messages wait for it.
    """

    launch_latency_ps: Time = Field(alias="launch_latency")
    step_overhead_ps: Time = Field(alias="step_overhead")
    num_channels: Count
    buffer_bytes: Size = Field(alias="buffer")


class NcclConfig(Sourced):
    """NCCL's (or RCCL's) view of the nodes, from which its closed forms predict times.

    Attributes:
        architecture: The rows of NCCL's tables that hold: volta, ampere, hopper, blackwell.
        wire: What joins the devices of a node: nvlink or pci.
        host: Vendor of the hosts' processors, as NCCL's tables have it: intel or amd.
        ring_bandwidth_bytes_per_s: Bus bandwidth of all rings of a node together.
        nvls_bandwidth_bytes_per_s: What a device's port carries to the switch that reduces (NVLink
            SHARP), before NCCL's efficiency of it; None: there is no such switch.
        channels: Channels of all rings together.
        p2p_channel_bandwidth_bytes_per_s: What one channel carries from a device to another.
        nics: Network cards of a node that carry collectives.
        nic_bandwidth_bytes_per_s: What collectives see of one of them, per direction.
        nic_latency_ps: What a step over one of them takes longer than NCCL's tables have it, as
            network plugins report it to NCCL; None: no longer, as over InfiniBand.
        algorithms: What the network's plugin or operator leaves to choose from (NCCL_ALGO);
            None: all.
        protocols: Likewise (NCCL_PROTO).
        collnet: Whether switches of the network reduce (SHARP), and NCCL_COLLNET_ENABLE=1 is set.
        network: The kind of network between nodes: ib (InfiniBand), roce, efa, tcpx, tcpxo or
            slingshot; None: one of which no table is known, whose steps may take 20 times as long.
    """

    architecture: Annotated[str, one_of(NCCL_ARCHITECTURES, {})]
    wire: Annotated[str, one_of(NCCL_WIRES, {})] = "nvlink"
    host: Annotated[str, one_of(NCCL_HOSTS, {})] = "intel"
    ring_bandwidth_bytes_per_s: Bandwidth = Field(alias="ring_bandwidth")
    nvls_bandwidth_bytes_per_s: Bandwidth | None = Field(default=None, alias="nvls_bandwidth")
    channels: Count
    p2p_channel_bandwidth_bytes_per_s: Bandwidth = Field(alias="p2p_channel_bandwidth")
    nics: Count | None = None
    nic_bandwidth_bytes_per_s: Bandwidth | None = Field(default=None, alias="nic_bandwidth")
    nic_latency_ps: Time | None = Field(default=None, alias="nic_latency")
    algorithms: AlgorithmNames = None
    protocols: ProtocolNames = None
    collnet: Flag = False
    network: Annotated[str, one_of(NCCL_NETWORKS, {})] | None = None


class ClusterConfig(Model):
    """A cluster of equal nodes.

    Attributes:
        name: Its name in reports.
        description: One line for `simrank clusters`.
        source: Where numbers come from in blocks that name no source of their own.
        nodes: Number of nodes, a parameter of every use.
        device: The accelerators of one node.
        switches: Further vertices of one node that pass data on.
        nics: Network cards of one node; like switches, named apart for the reader.
        links: Links inside one node.
        fabric: What joins the nodes, or None.
        collectives: Costs of the collective library.
        nccl: What NCCL finds here, for its own closed forms; None: nothing is known of that.
        calibration: A file with constants of NCCL's closed forms that `simrank calibrate` wrote;
            "pooled" or None: constants of many sites; "none": NCCL's own constants.
    """

    name: Name
    description: Text = ""
    source: Sources = Field(default_factory=dict)
    nodes: Count = 1
    device: DeviceConfig
    switches: VertexList = ()
    nics: VertexList = ()
    links: tuple[LinkConfig, ...]
    fabric: FabricConfig | None = None
    collectives: CollectivesConfig
    nccl: NcclConfig | None = None
    calibration: Text | None = None

    @property
    def num_devices(self) -> int:
        """Return the number of devices in all nodes."""
        return self.nodes * self.device.count
