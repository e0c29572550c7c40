"""Shortest next edges on a graph."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simrank.hardware import shortest as module
from simrank.hardware.shortest import Edge, ShortestRoutes


def shortest_next_edges(edges, num_vertices, targets):
    """Return the edge to take at each vertex towards each target."""
    vertex, column = np.indices((num_vertices, len(targets)))
    routes = ShortestRoutes(edges, num_vertices, targets)
    found = routes.next_edges(vertex.ravel(), column.ravel())
    return found.reshape(num_vertices, len(targets))


def both_ways(*pairs):
    """Return edges of latency 1 in both directions between pairs of vertices."""
    edges = []
    for number, (first, second) in enumerate(pairs):
        edges.append(Edge(first, second, 0, 2 * number, 1))
        edges.append(Edge(second, first, 0, 2 * number + 1, 1))
    return edges


def test_each_vertex_points_towards_each_target():
    """Along a chain, everything flows to the target, which points nowhere."""
    edges = both_ways((0, 1), (1, 2))
    found = shortest_next_edges(edges, 3, np.array([0, 2]))

    assert found.tolist() == [[-1, 0], [1, 2], [3, -1]]


def test_without_a_route_there_is_no_next_edge():
    """An unreachable vertex is marked, not walked from."""
    found = shortest_next_edges(both_ways((0, 1)), 3, np.array([0]))

    assert found[:, 0].tolist() == [-1, 1, -1]


def test_the_lower_vertex_wins_a_tie():
    """Whatever the order of the edges."""
    edges = both_ways((0, 2), (0, 1), (1, 3), (2, 3))
    found = shortest_next_edges(edges, 4, np.array([3]))

    assert edges[found[0, 0]].head == 1


@st.composite
def graphs(draw):
    """Draw a directed graph with few different costs, so that there are ties."""
    num_vertices = draw(st.integers(2, 8))
    pairs = [(a, b) for a in range(num_vertices) for b in range(num_vertices) if a != b]
    chosen = draw(st.lists(st.sampled_from(pairs), min_size=1, unique=True))
    costs = draw(st.lists(st.integers(0, 3), min_size=len(chosen), max_size=len(chosen)))
    return num_vertices, [
        Edge(a, b, 0, number, cost)
        for number, ((a, b), cost) in enumerate(zip(chosen, costs, strict=True))
    ]


def cheapest(edges, num_vertices):
    """Return (latency, hops) between all vertices, by Floyd and Warshall's algorithm."""
    far = (10**6, 10**6)
    found = {(a, b): far for a in range(num_vertices) for b in range(num_vertices)}
    found |= {(edge.tail, edge.head): (edge.latency_ps, 1) for edge in edges}
    found |= {(a, a): (0, 0) for a in range(num_vertices)}
    for via in range(num_vertices):
        for a, b in found:
            left, right = found[a, via], found[via, b]
            found[a, b] = min(found[a, b], (left[0] + right[0], left[1] + right[1]))
    return {pair: cost for pair, cost in found.items() if cost < far}


@pytest.mark.parametrize(("dense", "block"), [(0, 10), (10**6, 10), (8, 4_000_000)])
def test_next_edges_are_the_first_on_a_shortest_route(monkeypatch, dense, block):
    """Relaxed by what changed or as a whole, at once or in blocks."""
    monkeypatch.setattr(module, "_DENSE", dense)
    monkeypatch.setattr(module, "_BLOCK", block)

    @settings(derandomize=True, deadline=None, database=None, max_examples=60)
    @given(graph=graphs())
    def check(graph):
        num_vertices, edges = graph
        costs = cheapest(edges, num_vertices)
        found = shortest_next_edges(edges, num_vertices, np.arange(num_vertices))
        for vertex in range(num_vertices):
            for target in range(num_vertices):
                expected = [
                    (edge.head, number)
                    for number, edge in enumerate(edges)
                    if edge.tail == vertex != target
                    and (edge.head, target) in costs
                    and costs[vertex, target]
                    == (
                        edge.latency_ps + costs[edge.head, target][0],
                        1 + costs[edge.head, target][1],
                    )
                ]
                assert found[vertex, target] == min(expected, default=(0, -1))[1]

    check()
