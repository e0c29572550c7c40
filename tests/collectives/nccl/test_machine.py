"""What NCCL finds for some ranks, and what was fitted to their cluster."""

import numpy as np
import pytest

from simrank.collectives.nccl import Shape
from simrank.collectives.nccl.laws import UNCALIBRATED
from simrank.collectives.nccl.machine import (
    constants_of,
    constants_on,
    fitted_to,
    shape_on,
    spec_of,
)
from simrank.config.locate import builtin_names
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


@pytest.mark.parametrize("name", builtin_names("calibrations"))
def test_programs_and_predictions_use_the_same_constants(name):
    """A cluster carries what its calibration says."""
    cluster = load_cluster(name)
    assert constants_on(cluster) == constants_of(fitted_to(cluster))
    assert constants_on(cluster) != UNCALIBRATED


def test_a_cluster_that_only_took_the_name_has_nothing_fitted(tmp_path):
    """Other cards than those that were measured: NCCL's own constants hold."""
    from simrank.config.locate import locate

    text = locate("clusters", "h100_ib").read_text()
    assert "nics: 8" in text
    own = tmp_path / "own.yaml"
    own.write_text(text.replace("nics: 8", "nics: 4"))
    cluster = load_cluster(own)
    assert cluster.name == "h100_ib"
    assert fitted_to(cluster) is None
    assert constants_on(cluster) == UNCALIBRATED
