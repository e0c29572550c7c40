"""The choice of algorithms, and what it says about itself."""

import numpy as np
import pytest

from simrank.collectives import Chooser, Problem, ScheduleCost
from simrank.collectives.choice import chooser_of
from simrank.hardware import load_cluster

CLUSTER = load_cluster("hgx_h100")


@pytest.fixture
def chooser():
    """Return a chooser at schedule level on one node."""
    return Chooser(ScheduleCost(CLUSTER))


def test_auto_is_the_fastest_and_says_why(chooser):
    """Small messages go in one shot, large ones do not; alternatives come with estimates."""
    small = chooser.choose(Problem("all_reduce", 8, 1), devices=np.arange(8))
    large = chooser.choose(Problem("all_reduce", 8, 1 << 24), devices=np.arange(8))
    assert small.algorithm == small.schedule.algorithm == "one_shot"
    assert large.algorithm == "two_shot"
    assert not large.is_forced
    durations = [estimate.duration_ps for estimate in large.estimates]
    assert durations == sorted(durations)
    assert len(durations) == 4
    assert large.reason.startswith("two_shot: fastest at schedule level of two_shot ")
    assert "ring" in large.reason


def test_choices_are_remembered(chooser):
    """The same call gives the same object."""
    problem = Problem("broadcast", 4, 1000, root=2)
    first = chooser.choose(problem, devices=np.arange(4))
    assert chooser.choose(problem, devices=np.arange(4)) is first
    assert chooser.choose(problem, devices=np.arange(4) + 1) is not first


def test_forced_algorithm_runs_with_its_options(chooser):
    """No estimates are made."""
    choice = chooser.choose(
        Problem("all_reduce", 8, 100),
        devices=np.arange(8),
        algorithm="ring",
        options={"num_channels": 2},
    )
    assert (choice.is_forced, choice.estimates) == (True, ())
    assert choice.schedule.num_channels == 2
    assert choice.reason == "ring: named by the caller"


def test_auto_takes_no_options_and_names_a_lonely_algorithm(chooser):
    """Options belong to an algorithm; where there is one, it needs no estimate."""
    problem = Problem("scatter", 8, 100)
    assert "only algorithm" in chooser.choose(problem, devices=np.arange(8)).reason
    with pytest.raises(ValueError, match="num_channels need a named algorithm"):
        chooser.choose(problem, devices=np.arange(8), options={"num_channels": 2})


def test_a_group_on_several_nodes_gets_a_ring_per_rail():
    """The chooser sees from the devices which ranks share a node."""
    chooser = Chooser(ScheduleCost(load_cluster({"name": "h100_ib", "nodes": 2})))
    problem = Problem("all_reduce", 16, 1 << 26)
    choice = chooser.choose(problem, devices=np.arange(16))
    assert (choice.algorithm, choice.schedule.num_channels) == ("ring", 8)
    mixed = chooser.choose(problem, devices=np.arange(16) * 5 % 16, algorithm="ring")
    assert mixed.schedule.num_channels == 1


@pytest.mark.parametrize(
    ("collective", "choices"),
    [
        ("all_reduce", "ring, one_shot, two_shot, halving_doubling, tree, nvls, nvls_tree"),
        ("all_to_all", "pairwise, direct"),
    ],
)
def test_hierarchical_is_refused_on_uneven_nodes(collective, choices):
    """It would be one ring of all ranks, or pairs: the message says what else there is."""
    chooser = chooser_of(load_cluster({"name": "h100_ib", "nodes": 3}))
    devices = np.array([0, 1, 2, 8, 9, 16])
    for num_ranks, runs in ((6, "3, 2, 1"), (5, "3, 2")):
        problem, placed = Problem(collective, num_ranks, 8), devices[:num_ranks]
        with pytest.raises(ValueError, match="hierarchical") as caught:
            chooser.choose(problem, devices=placed, algorithm="hierarchical")
        assert str(caught.value) == (
            f"{collective} hierarchical runs on equally many ranks of each node, next to each "
            f"other, not on runs of {runs} ranks per node; choices: auto, {choices}"
        )
    one_node = {"devices": devices[:3], "algorithm": "hierarchical"}
    assert chooser.choose(Problem(collective, 3, 8), **one_node).is_forced


def test_hierarchical_is_refused_where_nodes_alternate():
    """Long lists of runs are cut."""
    chooser = chooser_of(load_cluster({"name": "h100_ib", "nodes": 2}))
    devices = np.array([0, 8, 1, 9, 2, 10])
    with pytest.raises(ValueError, match=r"not on runs of 1, 1, 1, 1, \.\.\. ranks per node"):
        chooser.choose(Problem("all_reduce", 6, 8), devices=devices, algorithm="hierarchical")
