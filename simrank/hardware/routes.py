"""Shortest routes between devices, within nodes, over the fabric, and between pods (C2).

All nodes are equal, so a route is known from (same node or not, local source, local target). Start
with `RouteTable.links` or `PodRoutes.links`, which answer for many pairs at once. Distances are
relaxed from the targets backwards, by the pairs of vertex and target that changed last; the next
edge of a route is looked up when it is first followed, and remembered.

Pods are nodes with fabric switches of their own, joined by uplinks to spines. A route to another
pod leaves the switch that it has come to over one of its uplinks, and comes down from that spine to
the same switch of the other pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.config.wires import Pods, Topology


# ---- shortest routes on a directed graph, towards many targets at once ----

_FAR = np.int64(2**62)
_HOP = 2**16  # A cost is latency_ps * _HOP + hops: latency decides, then the number of links.
_UNKNOWN = -2  # A next edge that has not been looked up; -1 says that there is none.
_BLOCK = 4_000_000  # Entries that are worked on at once, which bounds the memory to some 100 MB.
_DENSE = 8  # Measured: a relaxation by pairs costs about as many times one of the whole graph.


class Edge(NamedTuple):
    """One direction of a link of the prototype.

    Attributes:
        tail: Vertex it leaves.
        head: Vertex it enters.
        owner: Prototype node it belongs to (0 or 1), or `FABRIC`.
        template: Its index among the links of its owner.
        latency_ps: Its nominal latency, in picoseconds.
    """

    tail: int
    head: int
    owner: int
    template: int
    latency_ps: int


class ShortestRoutes:
    """Next edges from any vertex towards some targets.

    Of several routes the cheapest is taken, of those the one with the fewest edges, of those the
    one whose first differing vertex has the lowest number.

    Args:
        edges: Directed edges, at least one.
        num_vertices: Number of vertices.
        targets: [L] target vertices.
    """

    def __init__(self, edges: Sequence[Edge], num_vertices: int, targets: Int64Array) -> None:
        table = np.array(edges, dtype=np.int64).reshape(-1, len(Edge._fields))
        order = np.lexsort((table[:, 1], table[:, 0]))
        self._edge_of = order.astype(np.int32)
        self._tail, self._head = table[order, 0], table[order, 1]
        self._cost = table[order, 4] * _HOP + 1
        self._targets = targets
        vertices = np.arange(num_vertices + 1)
        self._leaving = np.searchsorted(self._tail, vertices)
        self._by_head = np.argsort(self._head, kind="stable")
        self._entering = np.searchsorted(self._head[self._by_head], vertices)
        self._distance = self._distances(num_vertices)
        self._next = np.full(self._distance.size, _UNKNOWN, dtype=np.int32)

    def next_edges(self, vertex: Int64Array, column: Int64Array) -> Int32Array:
        """Return the edge to take at each vertex towards the target in each column.

        Args:
            vertex: [k] where to start.
            column: [k] positions in `targets`.

        Returns:
            [k] indices into `edges`; -1 at the target itself and where there is no route.
        """
        code = vertex * len(self._targets) + column
        unknown = np.unique(code[self._next[code] == _UNKNOWN])
        if len(unknown):
            self._look_up(unknown)
        following: Int32Array = self._next[code]
        return following

    def _look_up(self, code: Int64Array) -> None:
        """Find the first edge on a shortest route for each pair of vertex and target."""
        vertex, column = np.divmod(code, len(self._targets))
        degree = self._leaving[vertex + 1] - self._leaving[vertex]
        distance = self._distance[vertex, column]
        self._next[code] = -1
        has_next = np.flatnonzero((distance > 0) & (distance < _FAR) & (degree > 0))
        total = np.cumsum(degree[has_next])
        for part in np.split(
            has_next, np.searchsorted(total, np.arange(_BLOCK, _last(total), _BLOCK))
        ):
            if not len(part):
                continue
            edge, group = _spread(self._leaving[vertex[part]], degree[part])
            at = part[group]
            through = self._cost[edge] + self._distance[self._head[edge], column[at]]
            shortest = np.where(through == distance[at], edge, len(self._tail))
            begins = np.cumsum(degree[part]) - degree[part]
            first = np.minimum.reduceat(shortest, begins)
            self._next[code[part]] = self._edge_of[first]

    def _distances(self, num_vertices: int) -> Int64Array:
        """Return the cost of the shortest route from each vertex to each target: [V, L]."""
        distance = np.full((num_vertices, len(self._targets)), _FAR, dtype=np.int64)
        width = max(1, _BLOCK // max(1, len(self._tail)))
        for begin in range(0, len(self._targets) if len(self._tail) else 0, width):
            part = slice(begin, begin + width)
            distance[:, part] = self._relaxed(num_vertices, self._targets[part])
        columns = np.arange(len(self._targets))
        distance[self._targets, columns] = 0
        return distance

    def _relaxed(self, num_vertices: int, targets: Int64Array) -> Int64Array:
        """Relax until no distance improves (Bellman-Ford), from the last round's changes."""
        distance = np.full((num_vertices, len(targets)), _FAR, dtype=np.int64)
        column = np.arange(len(targets))
        distance[targets, column] = 0
        cheapest, vertex = self._cost.min(), targets
        while len(vertex):
            # Vertices within an edge of the farthest one improve no distance.
            near = distance[vertex, column] + cheapest < distance.max(axis=0)[column]
            vertex, column = vertex[near], column[near]
            degree = self._entering[vertex + 1] - self._entering[vertex]
            if int(degree.sum()) * _DENSE > len(self._tail) * len(targets):
                vertex, column = self._relax_all(distance)
                continue
            position, group = _spread(self._entering[vertex], degree)
            edge = self._by_head[position]
            through = self._cost[edge] + distance[vertex[group], column[group]]
            flat = self._tail[edge] * len(targets) + column[group]
            cells = distance.reshape(-1)
            better = through < cells[flat]
            np.minimum.at(cells, flat[better], through[better])
            vertex, column = np.divmod(np.unique(flat[better]), len(targets))
        return distance

    def _relax_all(self, distance: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Relax every edge for every target; return the pairs of vertex and target that changed."""
        tails, starts = np.unique(self._tail, return_index=True)
        through = np.minimum(self._cost[:, None] + distance[self._head], _FAR)
        improved = np.minimum(distance[tails], np.minimum.reduceat(through, starts, axis=0))
        row, column = np.nonzero(improved < distance[tails])
        distance[tails] = improved
        return tails[row], column


def _spread(first: Int64Array, count: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return `first[i], first[i] + 1, ...`, `count[i]` of them for each i, and i for each."""
    group = np.repeat(np.arange(len(count)), count)
    before = np.cumsum(count) - count
    return first[group] + np.arange(len(group)) - before[group], group


def _last(total: Int64Array) -> int:
    return int(total[-1]) if len(total) else 0


# ---- shortest routes between devices, found once on one or two nodes and used for all of them ----

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]

_MAX_CLASSES = 1 << 14  # Assumed: of nodes of 90 devices, all routes are found at once.
FABRIC = -1  # Owner of an edge of the fabric; other owners are 0 (source) or 1 (target node).


@dataclass(frozen=True)
class _Prototype:
    """One node (or two) with the fabric as a graph, and its edges as arrays.

    Attributes:
        routes: Next edges towards every device of the node (the second of two).
        head: [E] vertex that an edge enters.
        owner: [E + 1] node of an edge, or `FABRIC`; that too for the padding at the end.
        template: [E] index of an edge among the links of its owner.
    """

    routes: ShortestRoutes
    head: Int64Array
    owner: Int64Array
    template: Int64Array


class RouteTable:
    """Routes of a cluster as link indices.

    A link's index is `node * links_per_node + template` for a link that every node has, and
    comes after those of all nodes for a link of the fabric.

    Of several routes the one with the lowest nominal latency is taken, of those the one with
    the fewest links, of those the one whose first differing vertex was declared first (devices,
    switches, NICs, fabric). So a pair on different rails changes rail through the source node's
    switch, as NCCL's PXN does.

    Source: NCCL 2.12 release notes for PXN; the tie-break is simrank's own.
    """

    def __init__(
        self,
        num_vertices: tuple[int, int],
        edges: tuple[Sequence[Edge], Sequence[Edge]],
        num_devices: int,
        num_nodes: int,
        links_per_node: int,
    ) -> None:
        """Find the routes.

        Args:
            num_vertices: Vertices of the prototypes with one and with two nodes. The devices of
                the first node come first; the second node's follow the whole first prototype.
            edges: Edges of the two prototypes.
            num_devices: Devices of one node.
            num_nodes: Nodes of the cluster.
            links_per_node: Links that every node has.
        """
        self._num_devices = num_devices
        self._num_nodes = num_nodes
        self._links_per_node = links_per_node
        self._num_vertices = num_vertices
        self._edges = edges
        self._prototypes: dict[int, _Prototype] = {}
        self._of_all_classes: tuple[Int32Array, Int32Array, Int32Array] | None = None

    def links(self, src: Int64Array, dst: Int64Array, num_links: int) -> Int32Array:
        """Return the links between pairs of devices.

        Args:
            src: [k] source devices.
            dst: [k] target devices.
            num_links: Links of the cluster; it pads short routes.

        Returns:
            [k, H] link indices in the order of the route, H the longest route's length.
        """
        local = self._num_devices
        src_node, src_local = np.divmod(src, local)
        dst_node, dst_local = np.divmod(dst, local)
        rows = (src_local * local + dst_local) * 2 + (src_node != dst_node)
        if 2 * local * local <= _MAX_CLASSES:
            if self._of_all_classes is None:
                classes = np.arange(2 * local * local)
                self._of_all_classes = self._class_routes(classes, num_links)
            constant, from_src, from_dst = self._of_all_classes
        else:
            classes, rows = np.unique(rows, return_inverse=True)
            constant, from_src, from_dst = self._class_routes(classes, num_links)
        links: Int32Array = constant[rows]
        per_node = self._links_per_node
        links += from_src[rows] * (src_node * per_node).astype(np.int32)[:, None]
        links += from_dst[rows] * (dst_node * per_node).astype(np.int32)[:, None]
        used = (links != num_links).any(axis=0)
        return links[:, : int(used.sum())]  # Shorter than the longest route of other pairs.

    def _class_routes(
        self, classes: Int64Array, num_links: int
    ) -> tuple[Int32Array, Int32Array, Int32Array]:
        """Return, per class of pairs, each link as constant + a * src_node + b * dst_node."""
        local = self._num_devices
        parts = []
        for is_inter in (0, 1):
            chosen = np.flatnonzero(classes % 2 == is_inter)
            if len(chosen):
                src_local, dst_local = np.divmod(classes[chosen] // 2, local)
                parts.append((chosen, is_inter, self._walk(is_inter, src_local, dst_local)))
        width = max((walk.shape[1] for _, _, walk in parts), default=0)
        constant = np.full((len(classes), width), num_links, dtype=np.int32)
        from_src = np.zeros_like(constant)
        from_dst = np.zeros_like(constant)
        for chosen, is_inter, walk in parts:
            prototype = self._prototype(is_inter)
            owner = prototype.owner
            fabric_start = self._num_nodes * self._links_per_node
            first = np.append(prototype.template + (owner[:-1] == FABRIC) * fabric_start, num_links)
            hops = slice(0, walk.shape[1])
            constant[chosen, hops] = first[walk]
            from_src[chosen, hops] = owner[walk] == 0
            from_dst[chosen, hops] = owner[walk] == 1
        return constant, from_src, from_dst

    def _walk(self, is_inter: int, src_local: Int64Array, dst_local: Int64Array) -> Int64Array:
        """Return the edges of each route, padded with -1 (the entry after the last edge)."""
        prototype = self._prototype(is_inter)
        vertex = src_local.copy()
        hops = []
        while True:
            edge = prototype.routes.next_edges(vertex, dst_local)
            moving = edge >= 0
            if not moving.any():
                break
            hops.append(edge)
            vertex = np.where(moving, prototype.head[edge], vertex)
        return np.stack(hops, axis=1) if hops else np.empty((len(src_local), 0), dtype=np.int64)

    def _prototype(self, is_inter: int) -> _Prototype:
        """Return the prototype with one or two nodes, with its routes."""
        if is_inter not in self._prototypes:
            edges = self._edges[is_inter]
            num_vertices = self._num_vertices[is_inter]
            first_target = self._num_vertices[0] if is_inter else 0
            targets = first_target + np.arange(self._num_devices)
            routes = ShortestRoutes(edges, num_vertices, targets)
            table = np.array(edges, dtype=np.int64).reshape(-1, 5)
            owner = np.append(table[:, 2], FABRIC)
            self._prototypes[is_inter] = _Prototype(routes, table[:, 1], owner, table[:, 3])
        return self._prototypes[is_inter]


# ---- pods: nodes with fabric switches of their own, joined by uplinks to spines (C2) ----


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
        spine = _pods_spread(src[apart], dst[apart]) % self._pods.num_spines
        longer[apart, way_out] = self._uplinks.of(src_pod[apart], switch, spine, down=False)
        longer[apart, way_out + 1] = self._uplinks.of(dst_pod[apart], switch, spine, down=True)
        return longer


def _pods_spread(src: Int64Array, dst: Int64Array) -> Int64Array:
    """Return a hash for each pair of nodes.

    Source: the finalizer of splitmix64 (S. Vigna, public domain).
    """
    mixed = src.astype(np.uint64) << np.uint64(32) | dst.astype(np.uint64)
    mixed += np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
    return ((mixed ^ mixed >> np.uint64(31)) >> np.uint64(1)).astype(np.int64)
