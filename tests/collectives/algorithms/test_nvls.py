"""All-reduce in the switch: values, and what each rank's link carries."""

import numpy as np
import pytest

from simrank.collectives import Problem, build, play_data, play_time
from simrank.collectives.algorithms import tree
from simrank.collectives.bounds import bandwidth_bound_ps
from simrank.collectives.traffic import link_bytes
from simrank.hardware import load_cluster


@pytest.mark.parametrize("algorithm", ["nvls", "nvls_tree"])
@pytest.mark.parametrize(("world_size", "node_size"), [(2, 0), (3, 3), (8, 4), (24, 8), (64, 8)])
@pytest.mark.parametrize("count", [1, 13, 40_000])
def test_everybody_gets_the_sum(algorithm, world_size, node_size, count):
    """Out of place and in place, whatever the pieces."""
    schedule = build(Problem("all_reduce", world_size, count, node_size=node_size), algorithm)
    inputs = [np.arange(count, dtype=np.float64) + rank for rank in range(world_size)]
    outputs = [np.zeros(count) for _ in inputs]
    play_data(schedule, inputs, outputs=outputs)
    expected = sum(inputs)
    assert all(np.array_equal(output, expected) for output in outputs)
    play_data(schedule, inputs, outputs=inputs)
    assert all(np.array_equal(output, expected) for output in inputs)


def test_a_sum_is_rounded_once():
    """As a switch that accumulates in float32: 1 + 8 * 2^-11 in float16 is not lost."""
    small = np.float16(2**-11)
    inputs = [np.array([1 if rank == 0 else small], dtype=np.float16) for rank in range(8)]
    outputs = [np.zeros(1, dtype=np.float16) for _ in inputs]
    play_data(build(Problem("all_reduce", 8, 1, itemsize=2), "nvls"), inputs, outputs=outputs)
    assert outputs[3][0] == np.float16(1 + 7 * float(small))
    play_data(build(Problem("all_reduce", 8, 1, itemsize=2), "ring"), inputs, outputs=outputs)
    assert outputs[3][0] != np.float16(1 + 7 * float(small))


@pytest.mark.parametrize("world_size", [2, 5, 8])
def test_a_link_carries_each_share_once_and_the_own_sum(world_size):
    """In both directions (n + 1) / n of the data: a rank's own share too."""
    cluster = load_cluster("hgx_h100")
    count = world_size * 1024
    schedule = build(Problem("all_reduce", world_size, count), "nvls")
    carried = link_bytes(schedule, cluster, np.arange(world_size), 4)
    assert len(carried) == 2 * world_size
    assert set(carried.values()) == {4 * (count + 1024)}


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_large_sizes_take_the_time_of_that(world_size):
    """Within a tenth: pieces are spread while later ones are reduced."""
    cluster = load_cluster("hgx_h100")
    schedule = build(Problem("all_reduce", world_size, 1 << 28), "nvls")
    zeros, devices = np.zeros(world_size, dtype=np.int64), np.arange(world_size)
    took_ps = play_time(schedule, zeros, network=cluster, devices=devices, itemsize=4).max()
    bound_ps = bandwidth_bound_ps(
        "all_reduce",
        world_size,
        size_bytes=4 << 28,
        bandwidth_bytes_per_s=float(cluster.link_bandwidth_bytes_per_s[0]),
        in_switch=True,
    )
    assert bound_ps <= took_ps < 1.1 * bound_ps


def test_uneven_nodes_fall_back_to_trees():
    """Steps are those of the double tree; the name is what was asked for."""
    problem = Problem("all_reduce", 7, 100)
    schedule = build(problem, "nvls_tree")
    plain = tree.all_reduce(problem, tree.OPTIONS)
    assert schedule.algorithm == "nvls_tree"
    for one, other in zip(schedule.rounds(), plain.rounds(), strict=True):
        assert np.array_equal(one.src, other.src)
        assert np.array_equal(one.dst_chunk, other.dst_chunk)


def test_between_nodes_each_card_carries_a_share_of_the_tree():
    """Eight cards per node: an eighth of the data each, in each direction, on two nodes."""
    cluster = load_cluster({"name": "h100_ib", "nodes": 2})
    problem = Problem("all_reduce", 16, 1 << 20, node_size=8)
    carried = link_bytes(build(problem, "nvls_tree"), cluster, np.arange(16), 4)
    names = {cluster.link_name(link): number for link, number in carried.items()}
    out = [number for name, number in names.items() if "nic" in name.split(" -> ")[0]]
    assert max(out) == (4 << 20) // 8


@pytest.mark.parametrize("algorithm", ["nvls", "nvls_tree"])
def test_of_more_ranks_than_a_round_can_hold_the_double_tree_stands_for_it(algorithm):
    """Each rank takes a step with each other of its node, which is too many of 1,032."""
    schedule = build(Problem("all_reduce", 1032, 4, node_size=1032), algorithm)
    assert schedule.algorithm == algorithm
    assert max(steps.num_steps for steps in schedule.rounds()) < 4 * 1032


def test_far_more_ranks_tell_fewer_rails_apart():
    """131,072 ranks on nodes of eight: built, counted and listed in seconds."""
    schedule = build(Problem("all_reduce", 131_072, 4, node_size=8), "nvls_tree")
    assert schedule.num_channels == 2
    assert sum(1 for _ in schedule.rounds()) == schedule.num_rounds + 1
