"""From a configuration to the cluster that it describes; start with `build_cluster`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simrank.config.calibration import provenance_of
from simrank.config.locate import locate
from simrank.config.topology import expand
from simrank.hardware.cluster import Cluster, Int64Array, frozen
from simrank.hardware.routes import FABRIC, Edge, PodRoutes, RouteTable, Uplinks
from simrank.hardware.spec import CollectiveSpec, DeviceSpec, NcclSpec

if TYPE_CHECKING:
    from simrank.config.cluster import ClusterConfig, DeviceConfig, NcclConfig
    from simrank.config.wires import PerDirection, Topology, Wire


def build_cluster(config: ClusterConfig) -> Cluster:
    """Build a cluster from its checked configuration."""
    topology = expand(config)
    node, fabric = topology.node_wires, topology.fabric_wires
    bandwidth = _per_link(
        [_both_ways(wire.bandwidth) for wire in node],
        config.nodes,
        [_both_ways(wire.bandwidth) for wire in fabric],
    )
    latency = _per_link(
        [_both_ways(wire.latency) for wire in node],
        config.nodes,
        [_both_ways(wire.latency) for wire in fabric],
    )
    uplinks = _uplinks(topology, config.nodes, len(bandwidth))
    if uplinks is not None and topology.pods is not None:
        pods = topology.pods
        bandwidth = np.append(bandwidth, np.full(uplinks.num, pods.bandwidth_bytes_per_s))
        latency = np.append(latency, np.full(uplinks.num, pods.latency_ps))
    bandwidth_or_inf = np.append(bandwidth.astype(np.float64), np.inf)
    device = config.device
    return Cluster(
        name=config.name,
        num_nodes=config.nodes,
        devices_per_node=device.count,
        device=_device_spec(device),
        collectives=CollectiveSpec(
            launch_latency_ps=config.collectives.launch_latency_ps,
            step_overhead_ps=config.collectives.step_overhead_ps,
            num_channels=config.collectives.num_channels,
            buffer_bytes=config.collectives.buffer_bytes,
        ),
        link_bandwidth_bytes_per_s=frozen(bandwidth_or_inf),
        link_latency_ps=frozen(np.append(latency, 0)),
        topology=topology,
        routes=_route_table(topology, config.nodes, uplinks),
        uplinks=uplinks,
        provenance=provenance_of(config),
        nccl=None if config.nccl is None else _nccl_spec(config.nccl, topology),
        calibration=config.calibration,
    )


def _nccl_spec(nccl: NcclConfig, topology: Topology) -> NcclSpec:
    """Return NCCL's view of the hardware."""
    return NcclSpec(
        architecture=nccl.architecture,
        wire=nccl.wire,
        host=nccl.host,
        ring_bytes_per_s=nccl.ring_bandwidth_bytes_per_s,
        nvls_bytes_per_s=nccl.nvls_bandwidth_bytes_per_s or 0,
        channels=nccl.channels,
        p2p_channel_bytes_per_s=nccl.p2p_channel_bandwidth_bytes_per_s,
        nics=nccl.nics or 0,
        nic_bytes_per_s=nccl.nic_bandwidth_bytes_per_s or 0,
        nic_latency_ps=nccl.nic_latency_ps or 0,
        mesh_links=topology.num_devices - 1 if topology.is_mesh else 0,
        algorithms=nccl.algorithms or (),
        protocols=nccl.protocols or (),
        has_collnet=nccl.collnet,
        network=nccl.network or "",
    )


def _device_spec(device: DeviceConfig) -> DeviceSpec:
    """Return the device of a configuration as the simulator sees it.

    A sustained clock and a power limit lower the peaks, and with them the rate of all arithmetic.
    """
    share = device.arithmetic_share
    best = device.best_product_flops
    return DeviceSpec(
        name=device.name,
        memory_bytes=device.memory_bytes,
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
        num_sms=device.num_sms,
        peak_flops={name: int(rate * share) for name, rate in device.peak_flops.items()},
        kernel_floor_ps=device.kernel_floor_ps,
        launch_overhead_ps=device.launch_overhead_ps,
        launch_queue=device.launch_queue,
        lazy_loading=device.lazy_loading,
        fp32_lanes=device.fp32_lanes,
        multicast=device.multicast,
        gemm_table=_gemm_table(device.gemm_table),
        best_product_flops=None if best is None else int(best * share),
        has_block_clusters=device.has_block_clusters,
        measured_as=device.measured_as,
        l2_bytes=device.l2_bytes,
        host_link_bandwidth_bytes_per_s=device.host_link_bandwidth_bytes_per_s,
    )


def _gemm_table(word: str | None) -> str | None:
    """Return the file of a device's measured products."""
    return None if word is None else str(locate("gemm", word))


def _both_ways(number: PerDirection) -> tuple[int, int]:
    return (number.forward, number.backward)


def _per_link(
    of_node: list[tuple[int, int]], num_nodes: int, of_fabric: list[tuple[int, int]]
) -> Int64Array:
    """Return one number per directed link: links of each node, then of the fabric."""
    repeated = np.tile(np.array(of_node, dtype=np.int64).ravel(), num_nodes)
    return np.concatenate([repeated, np.array(of_fabric, dtype=np.int64).ravel()])


def _uplinks(topology: Topology, num_nodes: int, first: int) -> Uplinks | None:
    """Return the uplinks of pods, numbered from a first link; None without pods."""
    pods = topology.pods
    return None if pods is None else Uplinks(topology, pods, num_nodes, first)


def _route_table(
    topology: Topology, num_nodes: int, uplinks: Uplinks | None
) -> RouteTable | PodRoutes:
    """Lay out one and two nodes with the fabric as graphs, and prepare the routes on them.

    The vertices of the second node come after those of the fabric.
    """
    num_vertices = len(topology.vertices)
    fabric = _edges(topology.fabric_wires, FABRIC, 0, 0)
    split = topology.num_node_vertices
    one = _edges(topology.node_wires, 0, split, 0) + fabric
    two = one + _edges(topology.node_wires, 1, split, num_vertices)
    per_node = 2 * len(topology.node_wires)
    routes = RouteTable(
        (num_vertices, num_vertices + split),
        (one, two),
        topology.num_devices,
        num_nodes,
        per_node,
    )
    return routes if uplinks is None else PodRoutes(routes, topology, uplinks, per_node)


def _edges(wires: tuple[Wire, ...], owner: int, split: int, shift: int) -> list[Edge]:
    """Return both directions of some wires; vertices below `split` are moved by `shift`."""
    edges = []
    for number, wire in enumerate(wires):
        first, second = (
            vertex + (shift if vertex < split else 0) for vertex in (wire.first, wire.second)
        )
        edges.append(Edge(first, second, owner, 2 * number, wire.latency.forward))
        edges.append(Edge(second, first, owner, 2 * number + 1, wire.latency.backward))
    return edges
