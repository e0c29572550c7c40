"""Clocks of ranks: eager and rendezvous messages, and who waits for whom."""

import numpy as np
import pytest

from simrank.collectives import Problem, build, play_time
from simrank.collectives import time_rounds as module
from simrank.collectives.data import NOT_ARRIVED, NOT_KNOWN
from simrank.collectives.time_rounds import TimePlayer
from simrank.hardware import load_cluster

CLUSTER = load_cluster("hgx_h100")
LAUNCH_PS = 6_600_000
SMALL, LARGE = 94, 17 << 20  # Elements of 4 bytes: below and above 16 buffers of 4 MiB.


def completions(problem, algorithm, arrivals, **options):
    """Return completions after the launch."""
    schedule = build(problem, algorithm, options=options)
    devices = np.arange(problem.world_size)
    done = play_time(schedule, np.array(arrivals), network=CLUSTER, devices=devices, itemsize=4)
    return np.where(done == NOT_KNOWN, -1, done - LAUNCH_PS).tolist()


def test_eager_broadcast_root_does_not_wait():
    """The message fits the buffer: the root ends before its receiver comes."""
    problem = Problem("broadcast", 2, SMALL)
    assert completions(problem, "binomial", [0, 50_000_000]) == [601_000, 50_000_000]
    assert completions(problem, "binomial", [0, NOT_ARRIVED]) == [601_000, -1]


def test_rendezvous_broadcast_root_waits():
    """The message exceeds the buffer: it starts when both are there."""
    problem = Problem("broadcast", 2, LARGE)
    root, other = completions(problem, "binomial", [0, 50_000_000])
    assert root == other > 50_000_000
    assert completions(problem, "binomial", [0, NOT_ARRIVED]) == [-1, -1]


def test_one_lane_has_the_buffers_of_all_channels():
    """16 channels of 4 MiB hold 64 MiB; four bytes more wait for the receiver."""
    for count, is_eager in ((16 << 20, True), ((16 << 20) + 1, False)):
        root, _ = completions(Problem("broadcast", 2, count), "binomial", [0, NOT_ARRIVED])
        assert (root >= 0) == is_eager


def test_sender_to_another_node_goes_on_before_the_message_is_there():
    """The root pays 0.6 us of the 2.7 us between nodes, and both pay the bytes."""
    schedule = build(Problem("broadcast", 2, 11_750), "binomial")
    cluster = load_cluster("h100_ib")
    zeros = np.zeros(2, dtype=np.int64)
    done = play_time(schedule, zeros, network=cluster, devices=np.array([0, 8]), itemsize=4)
    assert (done - LAUNCH_PS).tolist() == [1_600_000, 3_700_000]


def test_binomial_leaf_depends_on_its_parents_only():
    """Of 8 ranks, 7 hears from 3, which hears from 1, which hears from 0."""
    arrivals = [NOT_ARRIVED] * 8
    for rank in (0, 1, 3, 7):
        arrivals[rank] = 0
    done = completions(Problem("broadcast", 8, SMALL), "binomial", arrivals)
    assert [rank for rank in range(8) if done[rank] >= 0] == [0, 1, 3, 7]


def test_late_rank_delays_everyone_in_an_all_reduce():
    """All end together, a whole ring after the last arrival."""
    done = completions(Problem("all_reduce", 4, 400), "ring", [0, 7, 90_000, 3])
    step_ps = 600_000 + -(-400 * 1000 // 376)
    assert done == [90_000 + 6 * step_ps] * 4


def test_loops_pay_latency_again():
    """Three loops are three rings on a third of the data each."""
    problem = Problem("all_gather", 4, 3 * 376)
    done = completions(problem, "ring", [0] * 4, num_loops=3)
    assert done == [3 * 3 * (600_000 + 4_000)] * 4


def test_one_rank_costs_its_launch():
    """Nothing is sent."""
    for collective, algorithm in (("all_reduce", "ring"), ("reduce", "chain")):
        assert completions(Problem(collective, 1, 8), algorithm, [5]) == [5]


@pytest.mark.parametrize("max_kept", [0, 40, 1 << 16])
def test_players_give_the_same_times_again(monkeypatch, max_kept):
    """Whether no rounds, those of the first loop or all of them are kept from the first time."""
    monkeypatch.setattr(module, "MAX_KEPT_STEPS", max_kept)
    problem = Problem("all_gather", 3, 0, splits=(5, 9, 2))
    schedule = build(problem, "ring", options={"num_loops": 3})
    player = TimePlayer(schedule, network=CLUSTER, devices=np.arange(3), itemsize=4)
    arrivals = np.array([5, 0, 70])
    first = player.completions(arrivals)
    assert np.array_equal(player.completions(arrivals + 9), first + 9)
    assert len(player._kept) == {0: 0, 40: 1, 1 << 16: 3}[max_kept]
