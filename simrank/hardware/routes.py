"""Shortest routes between devices, found once on one or two nodes and used for all of them.

All nodes are equal, so a route is known from (same node or not, local source, local target).
Start with `RouteTable.links`, which answers for many pairs at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]

FABRIC = -1  # Owner of an edge of the fabric; other owners are 0 (source) or 1 (target node).
_FAR = np.int64(2**62)
_HOP = 2**16  # A cost is latency_ps * _HOP + hops: latency decides, then the number of links.


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


@dataclass(frozen=True)
class _Prototype:
    """Next edges towards every target, on one node (or two) with the fabric.

    Attributes:
        next_edge: [V, L] edge to take at a vertex towards a target device, -1 at the target.
        head: [E] vertex that an edge enters.
        edges: The edges.
    """

    next_edge: Int32Array
    head: Int32Array
    edges: Sequence[Edge]


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
        code = (src_local * local + dst_local) * 2 + (src_node != dst_node)
        seen = np.zeros(2 * local * local, dtype=bool)
        seen[code] = True
        classes = np.flatnonzero(seen)
        row_of = np.zeros(2 * local * local, dtype=np.int32)
        row_of[classes] = np.arange(len(classes), dtype=np.int32)
        constant, from_src, from_dst = self._class_routes(classes, num_links)
        rows = row_of[code]
        links: Int32Array = constant[rows]
        per_node = self._links_per_node
        links += from_src[rows] * (src_node * per_node).astype(np.int32)[:, None]
        if from_dst.any():
            links += from_dst[rows] * (dst_node * per_node).astype(np.int32)[:, None]
        return links

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
            edges = self._prototype(is_inter).edges
            owner = np.array([edge.owner for edge in edges] + [FABRIC], dtype=np.int32)
            fabric_start = self._num_nodes * self._links_per_node
            first = np.array(
                [e.template + (fabric_start if e.owner == FABRIC else 0) for e in edges]
                + [num_links],
                dtype=np.int32,
            )
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
            edge = prototype.next_edge[vertex, dst_local].astype(np.int64)
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
            next_edge = shortest_next_edges(edges, num_vertices, targets)
            head = np.array([edge.head for edge in edges], dtype=np.int32)
            self._prototypes[is_inter] = _Prototype(next_edge, head, edges)
        return self._prototypes[is_inter]


def shortest_next_edges(
    edges: Sequence[Edge], num_vertices: int, targets: Int64Array
) -> Int32Array:
    """Return the edge to take at each vertex towards each target.

    Args:
        edges: Directed edges, with costs.
        num_vertices: Number of vertices.
        targets: [L] target vertices.

    Returns:
        [V, L] indices into `edges`; -1 at the target itself and where there is no route.
    """
    order = sorted(range(len(edges)), key=lambda e: (edges[e].tail, edges[e].head))
    tail = np.array([edges[e].tail for e in order], dtype=np.int64)
    head = np.array([edges[e].head for e in order], dtype=np.int64)
    cost = np.array([edges[e].latency_ps * _HOP + 1 for e in order], dtype=np.int64)
    result = np.full((num_vertices, len(targets)), -1, dtype=np.int32)
    if not edges:
        return result
    edge_of = np.array([*order, -1], dtype=np.int32)
    block = max(1, 4_000_000 // len(edges))  # Bounds the memory to some 100 MB.
    for begin in range(0, len(targets), block):
        part = slice(begin, begin + block)
        result[:, part] = edge_of[_next_positions(tail, head, cost, num_vertices, targets[part])]
    return result


def _next_positions(
    tail: Int64Array,
    head: Int64Array,
    cost: Int64Array,
    num_vertices: int,
    targets: Int64Array,
) -> Int64Array:
    """Return the position of the next edge at each vertex, -1 where there is none.

    Edges are sorted by tail and head. Distances are relaxed until none improves (Bellman-Ford);
    then the first edge on a shortest route is taken.
    """
    tails, starts = np.unique(tail, return_index=True)
    columns = np.arange(len(targets))
    distance = np.full((num_vertices, len(targets)), _FAR, dtype=np.int64)
    distance[targets, columns] = 0
    while True:
        through = np.minimum(cost[:, None] + distance[head], _FAR)
        improved = np.minimum(distance[tails], np.minimum.reduceat(through, starts, axis=0))
        if np.array_equal(improved, distance[tails]):
            break
        distance[tails] = improved
    num_edges = len(tail)
    is_shortest = (through == distance[tail]) & (distance[tail] < _FAR)
    positions = np.where(is_shortest, np.arange(num_edges)[:, None], num_edges)
    first = np.minimum.reduceat(positions, starts, axis=0)
    first[(tails[:, None] == targets) | (first == num_edges)] = -1
    result = np.full((num_vertices, len(targets)), -1, dtype=np.int64)
    result[tails] = first
    return result
