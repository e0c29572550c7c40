"""Double binary trees: their form, their order, and what they load."""

import numpy as np
import pytest

from simrank.collectives import Problem, build, play_data, play_time
from simrank.collectives.algorithms.tree import Tree, binary_trees
from simrank.collectives.schedule import Op
from simrank.collectives.traffic import link_bytes
from simrank.hardware import load_cluster


@pytest.mark.parametrize("num_members", [1, 2, 3, 4, 5, 7, 8, 12, 31, 64, 100])
def test_both_are_trees_of_logarithmic_depth(num_members):
    """One root each, at most two children, everybody below the root."""
    for parent in binary_trees(num_members):
        tree = Tree.of(parent)
        assert np.count_nonzero(parent < 0) == 1
        assert np.bincount(parent[parent >= 0], minlength=1).max(initial=0) <= 2
        assert tree.depth.max() <= num_members.bit_length()
        assert tree.height[tree.depth == 0] == tree.depth.max()


@pytest.mark.parametrize("num_members", [4, 6, 7, 16, 33])
def test_who_is_inside_one_tree_is_a_leaf_of_the_other(num_members):
    """So that nobody forwards more than the others; but for one member of an odd number."""
    inside = [
        np.bincount(parent[parent >= 0], minlength=num_members) > 0
        for parent in binary_trees(num_members)
    ]
    assert np.count_nonzero(inside[0] & inside[1]) <= num_members % 2 + 2


@pytest.mark.parametrize(("world_size", "node_size"), [(2, 0), (7, 0), (8, 8), (16, 8), (64, 8)])
@pytest.mark.parametrize("count", [1, 13, 40_000])
def test_everybody_gets_the_sum(world_size, node_size, count):
    """Out of place and in place, whatever the pieces."""
    schedule = build(Problem("all_reduce", world_size, count, node_size=node_size), "tree")
    inputs = [np.arange(count, dtype=np.float64) + rank for rank in range(world_size)]
    outputs = [np.zeros(count) for _ in inputs]
    play_data(schedule, inputs, outputs=outputs)
    expected = sum(inputs)
    assert all(np.array_equal(output, expected) for output in outputs)
    play_data(schedule, inputs, outputs=inputs)
    assert all(np.array_equal(output, expected) for output in inputs)


def test_pieces_follow_one_another():
    """Each one more is a round more."""
    rounds = [
        build(Problem("all_reduce", 8, 1 << 20), "tree", options={"num_chunks": pieces}).num_rounds
        for pieces in (1, 2, 9)
    ]
    assert [number - rounds[0] for number in rounds] == [0, 1, 8]


def test_a_card_carries_all_data_once_on_two_nodes_and_twice_on_more():
    """In each direction, over as many channels as cards: the volume of NCCL's law."""
    for nodes, times in ((2, 1.0), (4, 2.0)):
        cluster = load_cluster({"name": "h100_ib", "nodes": nodes})
        problem = Problem("all_reduce", 8 * nodes, 1 << 20, node_size=8)
        carried = link_bytes(build(problem, "tree"), cluster, np.arange(8 * nodes), 4)
        names = {cluster.link_name(link): number for link, number in carried.items()}
        out = [number for name, number in names.items() if "nic" in name.split(" -> ")[0]]
        assert max(out) / (4 << 20) <= times / 8 + 1e-9


def test_sums_go_up_before_they_come_down():
    """Of each chunk a rank sends its sum to its parent first, and gets the whole one later."""
    schedule = build(Problem("all_reduce", 6, 600), "tree")
    done = set()
    for steps in schedule.materialise()[1:]:
        for src, chunk, op in zip(steps.src, steps.src_chunk, steps.op, strict=True):
            if op == Op.REDUCE:
                assert (int(src), int(chunk)) not in done
        done |= {
            (int(dst), int(chunk))
            for dst, chunk, op in zip(steps.dst, steps.dst_chunk, steps.op, strict=True)
            if op == Op.COPY
        }


def test_large_trees_reach_the_rate_of_their_links():
    """Twice the data through each port: within a tenth on one node of eight."""
    cluster = load_cluster("hgx_h100")
    schedule = build(Problem("all_reduce", 8, 1 << 28, node_size=8), "tree")
    zeros = np.zeros(8, dtype=np.int64)
    took_ps = play_time(schedule, zeros, network=cluster, devices=np.arange(8), itemsize=4).max()
    rate = float(cluster.link_bandwidth_bytes_per_s[0])
    least_ps = 2 * (4 << 28) / rate * 1e12
    assert least_ps <= took_ps < 1.5 * least_ps


def test_channels_are_limited_as_nccls():
    """And said so."""
    with pytest.raises(ValueError, match="num_channels may be at most 32, got 33"):
        build(Problem("all_reduce", 8, 64), "tree", options={"num_channels": 33})
