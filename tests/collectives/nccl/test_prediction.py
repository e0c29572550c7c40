"""Predictions: the tuner's choice, with the time of the law."""

from dataclasses import replace

import numpy as np
import pytest

from simrank.collectives.nccl import Calibration, Communicator, GroupShape, predict_times
from simrank.collectives.nccl.laws import terms

ONE = GroupShape.packed(8, 8)


def test_each_size_has_the_time_of_what_is_chosen_for_it(hopper):
    """Whatever the other sizes of the call choose."""
    sizes = 2 ** np.arange(3, 34)
    found = predict_times("all_reduce", sizes, Communicator(ONE, hopper))
    assert len({found.choices[index] for index in found.chosen}) > 1
    for size, time_us, index in zip(sizes, found.times_us, found.chosen, strict=True):
        parts = terms("all_reduce", *found.choices[index], [size], Communicator(ONE, hopper))
        assert time_us == parts.total[0]


def test_one_rank_sends_nothing(hopper):
    """A copy is no collective."""
    with pytest.raises(ValueError, match="one rank sends nothing"):
        predict_times("all_reduce", [8], Communicator(GroupShape(1, 1, 1), hopper))


def test_a_forced_algorithm_is_taken(hopper):
    """And costs more than what NCCL would take, at a size where they differ much."""
    free = predict_times("all_reduce", [1 << 30], Communicator(ONE, hopper))
    forced = predict_times("all_reduce", [1 << 30], Communicator(ONE, hopper), algorithms={"ring"})
    assert forced.choices[forced.chosen[0]][0] == "ring"
    assert forced.times_us > free.times_us


def test_what_a_cluster_leaves_is_taken_unless_a_user_says_otherwise(hopper):
    """As NCCL_PROTO in the environment of a job replaces the operator's."""
    comm = Communicator(ONE, replace(hopper, algorithms=("ring",), protocols=("Simple", "LL")))
    assert set(predict_times("all_reduce", [8], comm).choices) == {
        ("ring", "LL"),
        ("ring", "Simple"),
    }
    found = predict_times("all_reduce", [8], comm, algorithms={"tree"}, protocols={"LL128"})
    assert found.choices == (("tree", "LL128"),)
    assert predict_times("all_to_all", [8], comm).choices == (("p2p", "Simple"),)


def test_constants_change_times_and_not_the_estimates_of_nccl(hopper):
    """Which are made once; messages between pairs have none but the law."""
    slow = Calibration(launch_us=40.0)
    for collective in ("all_reduce", "all_to_all"):
        own, other = (
            predict_times(collective, [8], Communicator(ONE, hopper, each))
            for each in (Calibration(), slow)
        )
        assert other.times_us - own.times_us == pytest.approx(36.0)
        assert (own.compared_us == other.compared_us).all() == (collective == "all_reduce")
