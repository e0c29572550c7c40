"""Rows of a tuner plugin are taken as NCCL's example takes them."""

import numpy as np
import pytest

from simrank.collectives.nccl import Communicator, GroupShape, predict_times
from simrank.collectives.nccl.laws import Calibration
from simrank.collectives.nccl.plugin import asked_for, deciding, matching, overridden
from simrank.config.tuner import MAX_BYTES, parse_tuner

ONE = GroupShape.packed(8, 8)
CHOICES = [("tree", "LL"), ("ring", "LL"), ("ring", "Simple"), ("nvls", "Simple")]


def rows(text):
    return parse_tuner(text, "f")


@pytest.mark.parametrize(
    ("end", "matches"),
    [
        ("-1,-1", True),
        ("1,8", True),
        ("-1,8", True),
        ("2,8", False),
        ("1,16", False),
        ("1,8,-1,-1", True),
        ("1,8,1,0", True),
        ("1,8,4,0", False),  # Calls that NCCL has fused.
        ("1,8,1,1", False),  # Registered buffers.
    ],
)
def test_a_row_holds_for_its_ranks_nodes_calls_and_buffers(end, matches):
    """-1 is any."""
    found = matching(rows(f"allreduce,0,100,ring,ll,-1,{end}"), "all_reduce", ONE)
    assert bool(found) == matches


def test_a_row_holds_for_its_collective():
    """And for no other."""
    assert not matching(rows("allgather,0,100,ring,ll,-1,-1,-1"), "all_reduce", ONE)


def test_the_first_row_that_nccl_offers_decides():
    """Those before it are ignored: another protocol, CollNet, without switches for it."""
    found = rows(
        "allreduce,0,100,nvls,ll,-1,-1,-1\nallreduce,0,100,collnet_direct,simple,-1,-1,-1\n"
        "allreduce,0,100,ring,simple,-1,-1,-1\nallreduce,0,100,tree,ll,-1,-1,-1\n"
    )
    assert [asked_for(row, CHOICES) for row in found] == [None, None, 2, 0]
    assert deciding(50, CHOICES, found) == (found[2], list(found[:2]))
    assert deciding(101, CHOICES, found) == (None, [])
    taken = overridden(np.array([3, 3]), np.array([50.0, 101.0]), CHOICES, found)
    assert taken.tolist() == [2, 3]


def test_both_ends_of_a_range_are_in_it():
    """Up to the largest number that the plugin reads."""
    found = rows(f"allreduce,8,100,ring,ll,-1,-1,-1\nallreduce,200,{MAX_BYTES},tree,ll,0,-1,-1\n")
    sizes = np.array([7.0, 8.0, 100.0, 101.0, 199.0, 200.0, 2.0**62])
    assert overridden(np.full(7, 3), sizes, CHOICES, found).tolist() == [3, 1, 1, 3, 3, 0, 0]


@pytest.mark.parametrize("takes_fastest", [False, True])
def test_predictions_take_what_the_plugin_asks_for(hopper, takes_fastest):
    """And its time, whatever NCCL or a calibration would choose; other sizes stay as they were."""
    comm = Communicator(ONE, hopper, Calibration(takes_fastest=takes_fastest))
    sizes = [1024, 1 << 20, 1 << 30]
    found = rows("allreduce,1048576,1048576,ring,simple,-1,-1,-1")
    free = predict_times("all_reduce", sizes, comm)
    asked = predict_times("all_reduce", sizes, comm, tuner_rows=found)
    ring = predict_times("all_reduce", sizes, comm, algorithms={"ring"}, protocols={"Simple"})
    assert asked.choices[asked.chosen[1]] == ("ring", "Simple")
    assert asked.times_us.tolist() == [free.times_us[0], ring.times_us[1], free.times_us[2]]
    assert asked.times_us[1] > free.times_us[1]


def test_what_nccl_algo_takes_away_no_row_brings_back(hopper):
    """It is none of what NCCL offers the plugin."""
    found = rows("allreduce,0,100,ring,ll,-1,-1,-1")
    comm = Communicator(ONE, hopper)
    asked = predict_times("all_reduce", [64], comm, algorithms={"tree"}, tuner_rows=found)
    assert asked.choices[asked.chosen[0]][0] == "tree"
