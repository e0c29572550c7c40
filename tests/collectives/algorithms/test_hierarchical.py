"""Inside nodes first, then between equal ranks of all nodes; values: tests of every algorithm."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simrank.collectives import Problem, build
from simrank.collectives.bounds import two_level_all_reduce_bound_ps
from simrank.collectives.data import NOT_ARRIVED, NOT_KNOWN
from simrank.collectives.time_rounds import TimePlayer
from simrank.collectives.traffic import link_bytes, link_loads
from simrank.hardware import load_cluster

FIXED = settings(derandomize=True, deadline=None, database=None, max_examples=25)
CLUSTER = load_cluster({"name": "h100_ib", "nodes": 4})


def player(problem, devices=None):
    """Return what times a hierarchical schedule."""
    devices = np.arange(problem.world_size) if devices is None else devices
    schedule = build(problem, "hierarchical")
    return schedule, TimePlayer(schedule, network=CLUSTER, devices=devices, itemsize=4)


@FIXED
@given(
    shape=st.sampled_from([(1, 8), (2, 4), (4, 8), (4, 1), (3, 2), (2, 1)]),
    count=st.integers(0, 100) | st.sampled_from([1 << 20, 1 << 26]),
    seed=st.integers(0, 100),
)
def test_phases_without_rounds_equal_phases_with_rounds(shape, count, seed):
    """Closed forms of many rings at once, whatever the arrivals, eager or not."""
    num_nodes, num_local = shape
    size = num_nodes * num_local
    devices = (np.arange(num_nodes)[:, None] * 8 + np.arange(num_local)).ravel()
    _, timed = player(Problem("all_reduce", size, count, node_size=num_local), devices)
    arrivals = np.random.default_rng(seed).integers(0, 50_000_000, size)
    assert np.array_equal(timed.completions(arrivals), timed.round_completions(arrivals))


def test_nobody_ends_without_everybody():
    """The last phase tells each rank of a node that all nodes are there."""
    _, timed = player(Problem("all_reduce", 32, 1 << 20, node_size=8))
    arrivals = np.zeros(32, dtype=np.int64)
    arrivals[13] = NOT_ARRIVED
    assert (timed.completions(arrivals) == NOT_KNOWN).all()


def test_large_sizes_take_what_their_phases_need():
    """Three passes at the rate of their links, and some latency; never less than the bound."""
    count = 1 << 28
    _, timed = player(Problem("all_reduce", 32, count, node_size=8))
    took_ps = int(timed.completions(np.zeros(32, dtype=np.int64)).max())
    inside_ps = 2 * 7 / 8 * count * 4 / 376e9 * 1e12
    between_ps = 2 * 3 / 4 * count * 4 / 8 / 47e9 * 1e12
    assert took_ps == pytest.approx(inside_ps + between_ps, rel=0.01)
    rates = {"node_bytes_per_s": 376e9, "nic_bytes_per_s": 47e9}
    assert took_ps > two_level_all_reduce_bound_ps(8, 4, size_bytes=4 * count, **rates)


def test_latency_grows_with_nodes_and_not_with_ranks():
    """14 steps inside and 6 between nodes, where one ring has 62."""
    _, timed = player(Problem("all_reduce", 32, 32, node_size=8))
    ring = TimePlayer(
        build(Problem("all_reduce", 32, 32, node_size=8), "ring"),
        network=CLUSTER, devices=np.arange(32), itemsize=4,
    )  # fmt: skip
    start = np.zeros(32, dtype=np.int64)
    assert timed.completions(start).max() < 0.5 * ring.completions(start).max()


def test_loads_of_phases_are_the_bytes_of_their_rounds():
    """What groups share, without looking at every round."""
    schedule, _ = player(Problem("all_reduce", 32, 32 << 10, node_size=8))
    links, num_bytes = link_loads(schedule, CLUSTER, np.arange(32), 4)
    assert dict(zip(links.tolist(), num_bytes.tolist(), strict=True)) == link_bytes(
        schedule, CLUSTER, np.arange(32), 4
    )


@pytest.mark.parametrize("splits", [None, tuple(range(32 * 32))])
def test_all_to_all_crosses_each_network_card_once(splits):
    """With what the node's ranks send to the ranks at the same place on other nodes."""
    count = 0 if splits else 100
    schedule, _ = player(Problem("all_to_all", 32, count, splits=splits, node_size=8))
    carried = link_bytes(schedule, CLUSTER, np.arange(32), 4)
    matrix = np.array(splits or [100] * 1024).reshape(4, 8, 4, 8)
    card = CLUSTER.link_index("gpu3", "nic3", node=1)
    elsewhere = matrix[1, :, :, 3].sum() - matrix[1, :, 1, 3].sum()
    assert carried[card] == 4 * elsewhere


def test_all_to_all_sends_fewer_messages_than_pairs():
    """7 rounds inside and 3 between nodes, where pairs take 31."""
    schedule, timed = player(Problem("all_to_all", 32, 16, node_size=8))
    assert schedule.num_rounds == 10
    pairs = TimePlayer(
        build(Problem("all_to_all", 32, 16), "pairwise"),
        network=CLUSTER, devices=np.arange(32), itemsize=4,
    )  # fmt: skip
    start = np.zeros(32, dtype=np.int64)
    assert timed.completions(start).max() < 0.5 * pairs.completions(start).max()
