"""What NCCL finds for some ranks of a cluster."""

import numpy as np
import pytest

from simrank.collectives.nccl import GroupShape
from simrank.collectives.nccl.machine import shape_on, spec_of
from simrank.hardware import load_cluster


def test_ranks_use_the_network_cards_beside_them():
    """Two ranks of two nodes have a card each, not the sixteen of their nodes."""
    cluster = load_cluster("h100_ib")
    assert spec_of(cluster, GroupShape(2, 1, 2)).nics == 1
    assert spec_of(cluster, GroupShape(16, 8, 2)).nics == 8
    assert spec_of(load_cluster("h100_tcpx"), GroupShape(2, 1, 2)).nics == 1


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ([0, 0, 0], GroupShape(3, 3, 1)),
        ([0, 1, 0, 1], GroupShape(4, 2, 2)),
        ([3, 3, 3, 7], GroupShape(4, 3, 2, 1)),
    ],
)
def test_the_shape_of_a_group_follows_from_the_nodes_of_its_ranks(nodes, shape):
    """In whatever order its ranks stand there."""
    assert shape_on(np.array(nodes)) == shape


# ---- ranks fill one node after the other ----


def test_ranks_fill_nodes():
    """Fewer than a node, a node, and more than one."""
    assert GroupShape.packed(4, 8) == GroupShape(4, 4, 1)
    assert GroupShape.packed(8, 8) == GroupShape(8, 8, 1)
    assert GroupShape.packed(20, 8) == GroupShape(20, 8, 3, fewest=4)
    assert [GroupShape.packed(ranks, 8).num_least for ranks in (4, 8, 16, 17)] == [4, 8, 8, 1]


def test_depth_and_column_follow_the_nodes():
    """Levels of a binary tree; NCCL's columns are one node, two, more."""
    shapes = [GroupShape.packed(8 * nodes, 8) for nodes in (1, 2, 4, 12)]
    assert [shape.depth for shape in shapes] == [0, 1, 2, 3]
    assert [shape.column for shape in shapes] == [0, 1, 2, 2]
