"""What NCCL finds for some ranks, and what was fitted to their cluster."""

import numpy as np
import pytest

from simrank.collectives.nccl import Shape
from simrank.collectives.nccl.laws import UNCALIBRATED
from simrank.collectives.nccl.machine import (
    constants_of,
    constants_on,
    fitted_to,
    lost_calibration,
    shape_on,
    spec_of,
)
from simrank.config.locate import builtin_names, locate
from simrank.errors import ConfigError
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


@pytest.fixture
def copy(tmp_path):
    """Write a copy of h100_ib with changes, and load it."""

    def load(*changes):
        text = locate("clusters", "h100_ib").read_text()
        for before, after in changes:
            assert before in text
            text = text.replace(before, after)
        own = tmp_path / "own.yaml"
        own.write_text(text)
        return load_cluster(own)

    return load


KEY = "calibration: h100_ib\n"


def test_a_renamed_copy_keeps_the_calibration_that_its_file_names(copy):
    """And so its times; nothing is said."""
    renamed = copy(("name: h100_ib", "name: mine"))
    assert renamed.name == "mine"
    assert constants_on(renamed) == constants_on(load_cluster("h100_ib"))
    assert fitted_to(renamed).cluster == "h100_ib"
    assert lost_calibration(renamed) is None


def test_a_copy_that_has_lost_its_calibration_is_named_with_the_cure(copy):
    """NCCL's own constants hold for it."""
    lost = copy((KEY, ""))
    assert fitted_to(lost) is None
    assert constants_on(lost) == UNCALIBRATED
    assert lost_calibration(lost).endswith(
        "  to fix: add `calibration: h100_ib` to its file, or `calibration: none`"
    )


@pytest.mark.parametrize(
    "changes", [[(KEY, "calibration: none\n")], [(KEY, ""), ("nics: 8", "nics: 4")]]
)
def test_nothing_is_lost_on_purpose_or_by_another_machine(copy, changes):
    """`none` is an answer, and other cards are another machine."""
    cluster = copy(*changes)
    assert constants_on(cluster) == UNCALIBRATED
    assert lost_calibration(cluster) is None


def test_a_calibration_in_a_file_beside_the_cluster_is_taken(copy, tmp_path):
    """Its path starts at the cluster's file."""
    text = locate("calibrations", "h100_ib").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("launch_us: 4.041", "launch_us: 5.041"))
    fitted = dict(copy((KEY, "calibration: mine.yaml\n")).nccl_fit.constants)
    assert fitted["launch_us"] == 5.041
    with pytest.raises(ConfigError, match=r"own.yaml:.*: calibration: expected a file or one of"):
        copy((KEY, "calibration: nothing\n"))
