"""Shortest routes between devices, found once on one or two nodes and used for all of them.

All nodes are equal, so a route is known from (same node or not, local source, local target).
Start with `RouteTable.links`, which answers for many pairs at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from simrank.hardware.shortest import ShortestRoutes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.hardware.shortest import Edge

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
