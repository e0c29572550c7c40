"""Shortest next edges on a graph."""

import numpy as np

from simrank.hardware.routes import Edge, shortest_next_edges


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
