"""Pods: nodes with fabric switches of their own, joined by uplinks to spines (C2).

Routes within a pod are those of the nodes and the fabric as described. A route to another pod
leaves the switch that it has come to over one of its uplinks, and comes down from that spine to the
same switch of the other pod. Start with `PodRoutes.links`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from simrank.config.wires import Pods, Topology
    from simrank.hardware.routes import RouteTable

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]


class Uplinks:
    """The links between switches of pods and spines, as numbers; both directions of each.

    Args:
        topology: Of one node and the fabric of one pod.
        num_nodes: Nodes of the cluster.
        first: As the attribute.

    Attributes:
        first: Index of the first of these links among the links of the cluster.
        num: How many links, each direction counted.
    """

    def __init__(self, topology: Topology, pods: Pods, num_nodes: int, first: int) -> None:
        self._pods = pods
        self.first = first
        self._switches = topology.vertices[topology.num_node_vertices :]
        self.num_pods = -(-num_nodes // pods.num_nodes)
        self.num = 2 * self.num_pods * len(self._switches) * pods.num_spines

    def of(
        self, pod: Int64Array, switch: Int64Array, spine: Int64Array, *, down: bool
    ) -> Int64Array:
        """Return the links between switches and spines.

        Shapes: (k links)
            pod, switch, spine, returns: [k]
        """
        of_pod = pod * len(self._switches) + switch
        return self.first + 2 * (of_pod * self._pods.num_spines + spine) + down

    def name(self, link: int) -> str:
        """Return a link as text, for example `pod 1: rail3 -> spine0`."""
        rest, down = divmod(link - self.first, 2)
        of_pod, spine = divmod(rest, self._pods.num_spines)
        pod, switch = divmod(of_pod, len(self._switches))
        ends = [self._switches[switch], f"spine{spine}"]
        return f"pod {pod}: " + " -> ".join(reversed(ends) if down else ends)

    def index(self, tail: str, head: str, pod: int | None) -> int | None:
        """Return the link between a switch and its spine, or None.

        Raises:
            ValueError: The pod is missing, or there is none of that number.
        """
        down = head in self._switches
        switch, spine = (head, tail) if down else (tail, head)
        spines = [f"spine{number}" for number in range(self._pods.num_spines)]
        if switch not in self._switches or spine not in spines:
            return None
        if pod is None:
            link = f"{tail} -> {head}"
            raise ValueError(f"{link} exists in every pod: say which, as in `pod 0: {link}`")
        if not 0 <= pod < self.num_pods:
            raise ValueError(f"pods are 0 to {self.num_pods - 1}, got {pod}")
        place = self._switches.index(switch), spines.index(spine)
        return int(self.of(*(np.array(each) for each in (pod, *place)), down=down))


class PodRoutes:
    """Routes of a cluster of pods as link indices.

    With *ecmp* all that goes from one device to another one takes one spine, which a hash of the
    two chooses, as switches hash the ends of a flow; those that meet on an uplink share it. With
    *adaptive* routing, or where packets are sprayed, uplinks are one link of their joint rate.

    Source: RFC 2992 for ECMP by a hash of the flow; one flow per pair of devices is assumed (NCCL
    opens one or more queue pairs per channel).

    Args:
        within: Routes as if all nodes were of one pod.
        topology: Of one node and the fabric of one pod.
        uplinks: What joins the pods.
        links_per_node: Links that every node has.
    """

    def __init__(
        self, within: RouteTable, topology: Topology, uplinks: Uplinks, links_per_node: int
    ) -> None:
        assert topology.pods is not None, "there are some"
        self._within = within
        self._pods = topology.pods
        self._uplinks = uplinks
        self._links_per_node = links_per_node
        self._num_devices = topology.num_devices
        heads = [(wire.second, wire.first) for wire in topology.node_wires]
        self._head = np.array(heads, dtype=np.int64).ravel() - topology.num_node_vertices

    def links(self, src: Int64Array, dst: Int64Array, num_links: int) -> Int32Array:
        """Return the links between pairs of devices; see `RouteTable.links`."""
        links = self._within.links(src, dst, num_links)
        node = src // self._num_devices
        src_pod = node // self._pods.num_nodes
        dst_pod = dst // self._num_devices // self._pods.num_nodes
        apart = np.flatnonzero(src_pod != dst_pod)
        if not len(apart):
            return links
        num_hops = links.shape[1]
        longer = np.full((len(links), num_hops + 2), num_links, dtype=np.int32)
        longer[:, :num_hops] = links
        route = links[apart]
        # A route that leaves its node comes to one switch, and from there to the other node.
        way_out = (route // self._links_per_node == node[apart, None]).sum(axis=1)
        last = route[np.arange(len(apart)), way_out - 1]
        switch = self._head[last % self._links_per_node]
        hops = np.arange(num_hops)
        longer[apart, num_hops:] = num_links
        longer[apart[:, None], hops + 2 * (hops >= way_out[:, None])] = route
        spine = _spread(src[apart], dst[apart]) % self._pods.num_spines
        longer[apart, way_out] = self._uplinks.of(src_pod[apart], switch, spine, down=False)
        longer[apart, way_out + 1] = self._uplinks.of(dst_pod[apart], switch, spine, down=True)
        return longer


def _spread(src: Int64Array, dst: Int64Array) -> Int64Array:
    """Return a hash for each pair of nodes.

    Source: the finalizer of splitmix64 (S. Vigna, public domain).
    """
    mixed = src.astype(np.uint64) << np.uint64(32) | dst.astype(np.uint64)
    mixed += np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
    return ((mixed ^ mixed >> np.uint64(31)) >> np.uint64(1)).astype(np.int64)
