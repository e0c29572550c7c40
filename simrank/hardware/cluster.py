"""The simulated cluster: devices, directed links, and the route between any two devices.

Start with `build_cluster` and `Cluster.paths`. Links are numbered; each direction has its own
index, and the last entry of every per-link array is a dummy that pads short routes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from simrank.config.load import load_cluster_config
from simrank.config.locate import locate
from simrank.config.provenance import provenance_of
from simrank.config.topology import Topology, Wire, expand
from simrank.hardware.routes import FABRIC, RouteTable
from simrank.hardware.shortest import Edge
from simrank.hardware.spec import CollectiveSpec, DeviceSpec

if TYPE_CHECKING:
    from simrank.config.cluster import ClusterConfig, DeviceConfig
    from simrank.config.load import ClusterRef
    from simrank.config.provenance import Provenance
    from simrank.config.quantity import PerDirection

Int64Array = npt.NDArray[np.int64]
_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """The routes of k pairs of devices.

    Attributes:
        latency_ps: [k] sum of the latencies of the route's links, in picoseconds; 0 where source
            and target are the same device (a local copy, which uses no link).
        links: [k, H] link indices in order, padded with the dummy link `Cluster.num_links`.
    """

    latency_ps: Int64Array
    links: npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Cluster:
    """A cluster of equal nodes, as numbers.

    Attributes:
        name: Its name in reports.
        num_nodes: Nodes.
        devices_per_node: Devices of one node; device d is local device d % devices_per_node of
            node d // devices_per_node.
        device: The device that all of them are.
        collectives: What the collective library costs on it.
        link_bandwidth_bytes_per_s: [num_links + 1] rate of each link; the last one is infinite.
        link_latency_ps: [num_links + 1] latency of each link; the last one is 0.
        topology: Names and wires of one node and the fabric.
        routes: Finds the links between devices.
        provenance: Where its numbers come from.
    """

    name: str
    num_nodes: int
    devices_per_node: int
    device: DeviceSpec
    collectives: CollectiveSpec
    link_bandwidth_bytes_per_s: npt.NDArray[np.float64]
    link_latency_ps: Int64Array
    topology: Topology = field(repr=False)
    routes: RouteTable = field(repr=False)
    provenance: tuple[Provenance, ...] = field(default=(), repr=False)

    @property
    def num_devices(self) -> int:
        """Return the number of devices in all nodes."""
        return self.num_nodes * self.devices_per_node

    @property
    def num_links(self) -> int:
        """Return the number of directed links, which is also the index of the dummy link."""
        return len(self.link_latency_ps) - 1

    @property
    def links_per_node(self) -> int:
        """Return the number of directed links that each node has."""
        return 2 * len(self.topology.node_wires)

    def node_of(self, device: npt.ArrayLike) -> Int64Array:
        """Return the node of each device."""
        return np.asarray(device, dtype=np.int64) // self.devices_per_node

    def paths(self, src: npt.ArrayLike, dst: npt.ArrayLike) -> Paths:
        """Return the routes of pairs of devices.

        Args:
            src: [k] source devices.
            dst: [k] target devices.

        Returns:
            Links and latencies; a pair with src == dst has no links and latency 0.

        Raises:
            ValueError: A device is not in the cluster.
        """
        pairs = np.broadcast_arrays(
            np.atleast_1d(np.asarray(src, dtype=np.int64)),
            np.atleast_1d(np.asarray(dst, dtype=np.int64)),
        )
        for devices in pairs:
            if devices.size and not (devices.min() >= 0 and devices.max() < self.num_devices):
                raise ValueError(f"devices of {self.name} are 0 to {self.num_devices - 1}")
        links = self.routes.links(pairs[0], pairs[1], self.num_links)
        latency_ps = np.zeros(len(links), dtype=np.int64)
        for hop in range(links.shape[1]):
            latency_ps += self.link_latency_ps[links[:, hop]]
        return Paths(latency_ps, links)

    def link_name(self, link: int) -> str:
        """Return a link as text, for example `node 0: gpu3 -> nvswitch`."""
        if link == self.num_links:
            return "no link"
        if not 0 <= link < self.num_links:
            raise ValueError(f"links of {self.name} are 0 to {self.num_links - 1}")
        node, template = divmod(link, self.links_per_node)
        wires: tuple[Wire, ...] = self.topology.node_wires
        where = f"node {node}: "
        if node >= self.num_nodes:
            template, wires, where = link - self._fabric_start, self.topology.fabric_wires, ""
        wire = wires[template // 2]
        ends = [self.topology.vertices[wire.first], self.topology.vertices[wire.second]]
        tail, head = ends if template % 2 == 0 else reversed(ends)
        return f"{where}{tail} -> {head}"

    def link_index(self, src_vertex: str, dst_vertex: str, *, node: int | None = None) -> int:
        """Return the index of the link from one vertex to another.

        Args:
            src_vertex: Name of the vertex it leaves, for example "gpu3".
            dst_vertex: Name of the vertex it enters, for example "nvswitch".
            node: Node of the link; not needed on one node, or between switches of the fabric.

        Raises:
            ValueError: There is no such link or node, or the node is needed.
        """
        ends = (src_vertex, dst_vertex)
        template, is_fabric = self._link_templates.get(ends, (-1, False))
        if template < 0:
            raise ValueError(f"{self.name} has no link from {src_vertex} to {dst_vertex}")
        if is_fabric:
            return self._fabric_start + template
        if node is None and self.num_nodes > 1:
            raise ValueError(f"{src_vertex} -> {dst_vertex} exists on every node: say which")
        if not 0 <= (node or 0) < self.num_nodes:
            raise ValueError(f"nodes of {self.name} are 0 to {self.num_nodes - 1}, got {node}")
        return (node or 0) * self.links_per_node + template

    def with_link(
        self,
        src_vertex: str,
        dst_vertex: str,
        *,
        node: int | None = None,
        bandwidth_bytes_per_s: float | None = None,
        latency_ps: int | None = None,
    ) -> Cluster:
        """Return a copy in which one direction of one link is another; routes stay as they are.

        Args:
            src_vertex: Name of the vertex the link leaves.
            dst_vertex: Name of the vertex it enters.
            node: Node of the link; not needed on one node, or inside the fabric.
            bandwidth_bytes_per_s: Its new rate, above zero, or None to keep it.
            latency_ps: Its new latency in picoseconds, or None to keep it.

        Raises:
            ValueError: There is no such link, or a number is out of range.
        """
        link = self.link_index(src_vertex, dst_vertex, node=node)
        bandwidth = self.link_bandwidth_bytes_per_s.copy()
        latency = self.link_latency_ps.copy()
        if bandwidth_bytes_per_s is not None:
            if not bandwidth_bytes_per_s > 0:
                raise ValueError(f"a bandwidth must be above zero, got {bandwidth_bytes_per_s}")
            bandwidth[link] = bandwidth_bytes_per_s
        if latency_ps is not None:
            if latency_ps < 0:
                raise ValueError(f"a latency must not be negative, got {latency_ps}")
            latency[link] = latency_ps
        return replace(
            self,
            link_bandwidth_bytes_per_s=_frozen(bandwidth),
            link_latency_ps=_frozen(latency),
        )

    @property
    def _fabric_start(self) -> int:
        return self.num_nodes * self.links_per_node

    @cached_property
    def _link_templates(self) -> dict[tuple[str, str], tuple[int, bool]]:
        """Return the template index of each link by its ends, and if it is the fabric's."""
        names = self.topology.vertices
        link_between = {}
        for wires, is_fabric in (
            (self.topology.node_wires, False),
            (self.topology.fabric_wires, True),
        ):
            for number, wire in enumerate(wires):
                first, second = names[wire.first], names[wire.second]
                link_between[first, second] = (2 * number, is_fabric)
                link_between[second, first] = (2 * number + 1, is_fabric)
        return link_between


def load_cluster(cluster: ClusterRef, nodes: int | None = None) -> Cluster:
    """Read a cluster by name, path or mapping and build it.

    Args:
        cluster: What `simrank.config.load_cluster_config` takes.
        nodes: Number of nodes instead of the one that the cluster states.

    Raises:
        ConfigError: The name is unknown or the configuration is wrong.
    """
    return build_cluster(load_cluster_config(cluster, nodes))


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
        link_bandwidth_bytes_per_s=_frozen(bandwidth_or_inf),
        link_latency_ps=_frozen(np.append(latency, 0)),
        topology=topology,
        routes=_route_table(topology, config.nodes),
        provenance=provenance_of(config),
    )


def _device_spec(device: DeviceConfig) -> DeviceSpec:
    """Return the device of a configuration as the simulator sees it."""
    return DeviceSpec(
        name=device.name,
        memory_bytes=device.memory_bytes,
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
        num_sms=device.num_sms,
        peak_flops=dict(device.peak_flops),
        kernel_floor_ps=device.kernel_floor_ps,
        launch_overhead_ps=device.launch_overhead_ps,
        launch_queue=device.launch_queue,
        lazy_loading=device.lazy_loading,
        multicast=device.multicast,
        gemm_table=_gemm_table(device.gemm_table),
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
    """Return one number per directed link: those of each node, then those of the fabric."""
    repeated = np.tile(np.array(of_node, dtype=np.int64).ravel(), num_nodes)
    return np.concatenate([repeated, np.array(of_fabric, dtype=np.int64).ravel()])


def _frozen(array: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    """Return the array, made read-only."""
    array.flags.writeable = False
    return array


def _route_table(topology: Topology, num_nodes: int) -> RouteTable:
    """Lay out one and two nodes with the fabric as graphs, and prepare the routes on them.

    The vertices of the second node come after those of the fabric.
    """
    num_vertices = len(topology.vertices)
    fabric = _edges(topology.fabric_wires, FABRIC, 0, 0)
    split = topology.num_node_vertices
    one = _edges(topology.node_wires, 0, split, 0) + fabric
    two = one + _edges(topology.node_wires, 1, split, num_vertices)
    return RouteTable(
        (num_vertices, num_vertices + split),
        (one, two),
        topology.num_devices,
        num_nodes,
        2 * len(topology.node_wires),
    )


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
