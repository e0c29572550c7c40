"""Gather and scatter: one message per rank, all at once."""

import numpy as np

from simrank.collectives import Problem, build, play_time
from simrank.collectives.time_network import NOT_ARRIVED, NOT_KNOWN
from simrank.hardware import load_cluster


def pairs(collective):
    """Return (source, destination) of each message of four ranks, root 2."""
    steps = build(Problem(collective, 4, 5, root=2), "direct").materialise()[-1]
    return sorted(zip(steps.src.tolist(), steps.dst.tolist(), strict=True))


def test_everybody_exchanges_one_message_with_the_root():
    """Gather towards it, scatter away from it."""
    assert pairs("gather") == [(0, 2), (1, 2), (3, 2)]
    assert pairs("scatter") == [(2, 0), (2, 1), (2, 3)]


def test_a_gather_takes_as_long_as_the_roots_way_in():
    """Seven large messages share one link: seven times the time of one."""
    cluster = load_cluster("hgx_h100")

    def took(world_size):
        schedule = build(Problem("gather", world_size, 1 << 26), "direct")
        devices, zeros = np.arange(world_size), np.zeros(world_size, dtype=np.int64)
        return int(play_time(schedule, zeros, network=cluster, devices=devices, itemsize=4).max())

    assert 6.9 < took(8) / took(2) < 7.1


def test_a_scatter_ends_on_ranks_that_are_there():
    """Others may be absent: only the root must have come."""
    cluster = load_cluster("hgx_h100")
    schedule = build(Problem("scatter", 3, 8), "direct")
    arrivals = np.array([0, NOT_ARRIVED, 0], dtype=np.int64)
    done = play_time(schedule, arrivals, network=cluster, devices=np.arange(3), itemsize=4)
    assert done[2] < NOT_KNOWN
    assert done[1] == NOT_KNOWN
