"""The simulated cluster: devices, directed links, and the route between any two devices.

Start with `Cluster.paths`; `build` makes clusters of configurations. Links are numbered; each
direction has its own index, and the last entry of every per-link array is a dummy that pads short
routes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simrank.config.wires import Provenance, Topology, Wire
    from simrank.hardware.routes import PodRoutes, RouteTable, Uplinks
    from simrank.hardware.spec import CollectiveSpec, DeviceSpec, NcclSpec

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
        uplinks: What joins pods of nodes; None: all nodes are at the same switches.
        provenance: Where its numbers come from.
        nccl: What NCCL finds on it, or None: then collectives cost what their schedules do.
        calibration: The file of constants that its file names; `none`: NCCL's own; None: pooled
            constants.
    """

    name: str
    num_nodes: int
    devices_per_node: int
    device: DeviceSpec
    collectives: CollectiveSpec
    link_bandwidth_bytes_per_s: npt.NDArray[np.float64]
    link_latency_ps: Int64Array
    topology: Topology = field(repr=False)
    routes: RouteTable | PodRoutes = field(repr=False)
    uplinks: Uplinks | None = field(default=None, repr=False)
    provenance: tuple[Provenance, ...] = field(default=(), repr=False)
    nccl: NcclSpec | None = None
    calibration: str | None = None

    def __setstate__(self, state: Mapping[str, object]) -> None:
        """Come back from a pickle, which forgets that arrays are read-only."""
        self.__dict__.update(state)
        frozen(self.link_bandwidth_bytes_per_s)
        frozen(self.link_latency_ps)

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

    @property
    def first_uplink(self) -> int:
        """Return the index of the first link between pods; the dummy's where there is none."""
        return self.num_links if self.uplinks is None else self.uplinks.first

    @cached_property
    def is_mesh(self) -> bool:
        """Whether every two devices of a node have a link of their own."""
        return self.topology.is_mesh

    def node_of(self, device: npt.ArrayLike) -> Int64Array:
        """Return the node of each device."""
        return np.asarray(device, dtype=np.int64) // self.devices_per_node

    def first_alike(self, devices: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return devices of the first nodes that stand to each other as some do.

        What these take, those take: nodes are equal. After `with_link` they need not be, and nodes
        of two pods stand to each other as no others do; then they are the devices themselves.

        Shapes: (n devices on m nodes)
            devices, returns: [n]; [m] the node that each of the first m nodes stands for
        """
        nodes, local = np.divmod(devices, self.devices_per_node)
        if self.num_nodes == 1 or not self._has_equal_nodes or self.spans_pods(nodes):
            return devices, np.arange(self.num_nodes)
        found, first, labels = np.unique(nodes, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank_of = np.empty_like(order)
        rank_of[order] = np.arange(len(order))
        return rank_of[labels] * self.devices_per_node + local, found[order]

    def spans_pods(self, nodes: Int64Array) -> bool:
        """Return whether some nodes are of several pods."""
        pods = self.topology.pods
        return pods is not None and len(np.unique(nodes // pods.num_nodes)) > 1

    def links_on(self, nodes: Int64Array, links: Int64Array) -> Int64Array:
        """Return links of the first nodes, translated to the nodes that they represent.

        Shapes: (m nodes, k links)
            nodes: [m]; links, returns: [k]
        """
        of_node = links < self._fabric_start
        node, template = np.divmod(links[of_node], self.links_per_node)
        moved = links.copy()
        moved[of_node] = nodes[node] * self.links_per_node + template
        return moved

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
        if self.uplinks is not None and link >= self.first_uplink:
            return self.uplinks.name(link)
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
            node: Node of the link, or the pod of an uplink; not needed on one node, or between
                switches of the fabric.

        Raises:
            ValueError: There is no such link or node, or the node is needed.
        """
        up = None if self.uplinks is None else self.uplinks.index(src_vertex, dst_vertex, node)
        if up is not None:
            return up
        ends = (src_vertex, dst_vertex)
        template, is_fabric = self._link_templates.get(ends, (-1, False))
        if template < 0:
            raise ValueError(f"{self.name} has no link from {src_vertex} to {dst_vertex}")
        if is_fabric:
            return self._fabric_start + template
        if node is None and self.num_nodes > 1:
            link = f"{src_vertex} -> {dst_vertex}"
            raise ValueError(f"{link} exists on every node: say which, as in `node 0: {link}`")
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
        """Return a copy with one direction of one link replaced; routes stay.

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
            link_bandwidth_bytes_per_s=frozen(bandwidth),
            link_latency_ps=frozen(latency),
        )

    @cached_property
    def _has_equal_nodes(self) -> bool:
        """Return whether links of all nodes have the same rates and latencies."""
        start = self._fabric_start
        return all(
            bool((of_nodes == of_nodes[0]).all())
            for of_nodes in (
                self.link_bandwidth_bytes_per_s[:start].reshape(self.num_nodes, -1),
                self.link_latency_ps[:start].reshape(self.num_nodes, -1),
            )
        )

    @property
    def _fabric_start(self) -> int:
        return self.num_nodes * self.links_per_node

    @cached_property
    def _link_templates(self) -> dict[tuple[str, str], tuple[int, bool]]:
        """Return the template index of each link by its ends and whether it is the fabric's."""
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


def frozen(array: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    """Return the array, made read-only."""
    array.flags.writeable = False
    return array
