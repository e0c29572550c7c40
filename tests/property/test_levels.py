"""NCCL's closed forms and the rounds of schedules say the same of the bytes on the busiest link."""

from dataclasses import replace

import numpy as np
import pytest

from simrank.collectives import Problem
from simrank.collectives.algorithms import build
from simrank.collectives.cost import cost_level
from simrank.collectives.nccl import Communicator, laws
from simrank.collectives.nccl.machine import shape_on, spec_of
from simrank.collectives.problem import node_size_of
from simrank.hardware.load import load_cluster
from tests.quick import slow_after

SIZE_BYTES = 64 << 30  # So large that latencies are nothing beside it.
RANKS_OF_NODE = 8
NUM_CHUNKS = 512  # In flight one behind the other, of a schedule that is a pipeline.
RING, TREE, NVLS, NVLS_TREE = "ring", "tree", "nvls", "nvls_tree"


def placed(num_nodes, num_local):
    """Return a cluster, and some ranks of each of its nodes."""
    cluster = load_cluster("h100_ib", nodes=max(num_nodes, 2))
    first = np.arange(num_nodes) * RANKS_OF_NODE
    return cluster, (first[:, None] + np.arange(num_local)).reshape(-1)


def played_s(cluster, devices, collective, schedule):
    """Return how long the rounds of a schedule take, with pieces that fill pipelines."""
    num_ranks = len(devices)
    is_whole = collective in ("all_reduce", "broadcast", "reduce")
    count = SIZE_BYTES // 4 // (1 if is_whole else num_ranks)
    problem = Problem(collective, num_ranks, count, itemsize=4)
    problem = replace(problem, node_size=node_size_of(cluster.node_of(devices)))
    pieces = {"num_chunks": NUM_CHUNKS} if schedule in (TREE, NVLS, NVLS_TREE, "chain") else {}
    built = build(problem, schedule, options=pieces)
    together = np.zeros(num_ranks, np.int64)
    cost = cost_level(cluster)
    return cost.completions(built, together, devices=devices, itemsize=4).max() / 1e12


def carried_s(cluster, devices, collective, algorithm):
    """Return how long the busiest link needs for the bytes of a closed form, at its full rate."""
    shape = shape_on(cluster.node_of(devices))
    comm = Communicator(shape, spec_of(cluster, shape))
    sizes = np.array([float(SIZE_BYTES)])
    if algorithm == "p2p":
        remote = shape.num_ranks - shape.num_local
        inside, between = np.array([shape.num_local - 1, remote]) / shape.num_ranks * SIZE_BYTES
    else:
        volumes = laws.volumes(collective, algorithm, sizes, comm)
        inside, between = volumes.port[0], volumes.nic[0]
    names = [cluster.link_name(link) for link in range(len(cluster.link_bandwidth_bytes_per_s) - 1)]
    rates = dict(zip(names, cluster.link_bandwidth_bytes_per_s.tolist(), strict=False))
    port = rates["node 0: gpu0 -> nvswitch"]
    nic = min(rate for name, rate in rates.items() if "rail" in name)
    return max(inside / port, between / nic if shape.num_nodes > 1 else 0.0)


@pytest.mark.parametrize("num_local", [1, pytest.param(2, marks=pytest.mark.slow), 4, 8])
@pytest.mark.parametrize("num_nodes", [1, 2, pytest.param(3, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize(
    ("collective", "algorithm", "schedule"),
    [
        ("all_reduce", RING, "ring"),
        ("all_gather", RING, "ring"),
        ("reduce_scatter", RING, "ring"),
        ("all_to_all", "p2p", "direct"),
    ],
)
def test_rings_and_exchanges_agree_within_a_percent(
    collective, algorithm, schedule, num_nodes, num_local
):
    """Bytes over rates, and rounds on links: two descriptions of one thing."""
    if num_nodes * num_local < 2:
        return
    cluster, devices = placed(num_nodes, num_local)
    expected = carried_s(cluster, devices, collective, algorithm)
    assert played_s(cluster, devices, collective, schedule) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("algorithm", "num_nodes", "num_local"),
    [
        *[(TREE, 1, 4), (NVLS, 1, 4), (TREE, 2, 2), (NVLS_TREE, 2, 4)],
        *slow_after(0, [(TREE, 1, 8), *[(NVLS, 1, num_local) for num_local in (3, 6, 8)]]),
        *slow_after(0, [(TREE, 2, 1), (TREE, 2, 4), *[(TREE, 4, each) for each in (1, 2, 4)]]),
        *slow_after(0, [(NVLS_TREE, 2, 8), (NVLS_TREE, 4, 4), (NVLS_TREE, 4, 8)]),
    ],
)
def test_trees_and_switches_agree_within_a_percent(algorithm, num_nodes, num_local):
    """Once pipelines are full; tree by tree, and inside the switch."""
    cluster, devices = placed(num_nodes, num_local)
    expected = carried_s(cluster, devices, "all_reduce", algorithm)
    assert played_s(cluster, devices, "all_reduce", algorithm) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("num_nodes", [1, 2, *slow_after(0, [4])])
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_chains_agree_as_their_pipeline_fills(collective, num_nodes):
    """Rings cut at the root: n - 2 rounds to fill, of so many pieces."""
    cluster, devices = placed(num_nodes, 4)
    expected = carried_s(cluster, devices, collective, RING)
    fill = (len(devices) - 2) / NUM_CHUNKS
    found = played_s(cluster, devices, collective, "chain")
    assert found == pytest.approx(expected * (1 + fill), rel=0.01)


@pytest.mark.parametrize("num_nodes", slow_after(1, [3, 5, 6, 7]))
@pytest.mark.parametrize("algorithm", [TREE, NVLS_TREE])
def test_where_no_node_is_an_inner_one_of_full_load_the_law_is_a_bound(algorithm, num_nodes):
    """NCCL's count is that of a node which sends three halves in one tree, and one in the other."""
    cluster, devices = placed(num_nodes, 4)
    expected = carried_s(cluster, devices, "all_reduce", algorithm)
    assert played_s(cluster, devices, "all_reduce", algorithm) <= expected * 1.02
