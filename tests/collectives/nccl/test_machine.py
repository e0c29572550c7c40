"""What NCCL finds for some ranks of a cluster."""

import numpy as np
import pytest

from simrank.collectives.nccl import Shape
from simrank.collectives.nccl.machine import shape_on, spec_of
from simrank.hardware import load_cluster


def test_ranks_use_the_network_cards_beside_them():
    """Two ranks of two nodes have a card each, not the sixteen of their nodes."""
    cluster = load_cluster("h100_ib")
    assert spec_of(cluster, Shape(2, 1, 2)).nics == 1
    assert spec_of(cluster, Shape(16, 8, 2)).nics == 8
    assert spec_of(load_cluster("h100_tcpx"), Shape(2, 1, 2)).nics == 1


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ([0, 0, 0], Shape(3, 3, 1)),
        ([0, 1, 0, 1], Shape(4, 2, 2)),
        ([3, 3, 3, 7], Shape(4, 3, 2, 1)),
    ],
)
def test_the_shape_of_a_group_follows_from_the_nodes_of_its_ranks(nodes, shape):
    """In whatever order its ranks stand there."""
    assert shape_on(np.array(nodes)) == shape
