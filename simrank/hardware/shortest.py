"""Shortest routes on a directed graph, towards many targets at once.

Distances are relaxed from the targets backwards, by the pairs of vertex and target that changed
last. Most runs follow few of all routes, so the next edge of a route is looked up when it is first
followed, and remembered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

Int64Array = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]

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
