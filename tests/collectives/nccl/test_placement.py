"""Ranks fill one node after the other."""

from simrank.collectives.nccl import Shape


def test_ranks_fill_nodes():
    """Fewer than a node, a node, and more than one."""
    assert Shape.packed(4, 8) == Shape(4, 4, 1)
    assert Shape.packed(8, 8) == Shape(8, 8, 1)
    assert Shape.packed(20, 8) == Shape(20, 8, 3, fewest=4)
    assert [Shape.packed(ranks, 8).num_least for ranks in (4, 8, 16, 17)] == [4, 8, 8, 1]


def test_depth_and_column_follow_the_nodes():
    """Levels of a binary tree; NCCL's columns are one node, two, more."""
    shapes = [Shape.packed(8 * nodes, 8) for nodes in (1, 2, 4, 12)]
    assert [shape.depth for shape in shapes] == [0, 1, 2, 3]
    assert [shape.column for shape in shapes] == [0, 1, 2, 2]
