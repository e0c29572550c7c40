"""No algorithm beats theory, and those with a known time take exactly that.

On one NVSwitch node every route takes the library's step overhead, so alpha is both what a sender
spends on a step and how long an empty message takes. Where routes take longer, a bound that counts
messages of one rank needs the former: alpha is the step overhead there.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simrank.collectives import algorithms_for, build, play_time
from simrank.collectives.bounds import (
    bandwidth_bound_ps,
    chain_ps,
    latency_bound_ps,
    ring_ps,
    two_level_all_reduce_bound_ps,
)
from simrank.collectives.problem import COLLECTIVES, GATHERED, Problem
from simrank.hardware import load_cluster

FIXED = settings(derandomize=True, deadline=None, database=None, max_examples=15)
ALGORITHMS = [
    (coll, name) for coll in (*COLLECTIVES, *GATHERED) for name in algorithms_for(coll, 8)
]
CLUSTER = load_cluster("hgx_h100")
ALPHA_PS = int(CLUSTER.paths(0, 1).latency_ps[0])
RATE = float(CLUSTER.link_bandwidth_bytes_per_s[0])
DIRECT = ("one_shot", "two_shot", "direct", "nvls", "nvls_tree")


def duration_ps(schedule, cluster=CLUSTER):
    """Return the time of a collective from a common arrival, without its launch."""
    zeros = np.zeros(schedule.world_size, dtype=np.int64)
    devices = np.arange(schedule.world_size)
    done = play_time(schedule, zeros, network=cluster, devices=devices, itemsize=4)
    return int(done.max()) - cluster.collectives.launch_latency_ps


def size_bytes(problem):
    """Return the size as nccl-tests counts it."""
    blocks = ("all_gather", "reduce_scatter", "all_to_all", *GATHERED)
    return 4 * problem.count * (problem.world_size if problem.collective in blocks else 1)


def num_ports(algorithm, problem):
    """Return how many messages may reach a rank in one step's time.

    In a binomial reduce, eager messages of several rounds can be on their way to one rank.
    """
    ports = problem.world_size - 1 if algorithm in DIRECT else 1
    if (problem.collective, algorithm) == ("reduce", "binomial"):
        ports = (problem.world_size - 1).bit_length()
    return max(1, ports)


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
def test_no_algorithm_beats_theory(collective, algorithm):
    """Latency bound, bandwidth bound, and no more than a rounding per step below either."""

    @FIXED
    @given(world_size=st.integers(1, 8), count=st.integers(1, 1 << 24))
    def check(world_size, count):
        if algorithm not in algorithms_for(collective, world_size):
            return
        problem = Problem(collective, world_size, count)
        took = duration_ps(build(problem, algorithm))
        latency = latency_bound_ps(
            collective, world_size, alpha_ps=ALPHA_PS, num_ports=num_ports(algorithm, problem)
        )
        bandwidth = bandwidth_bound_ps(
            collective,
            world_size,
            size_bytes=size_bytes(problem),
            bandwidth_bytes_per_s=RATE,
            in_switch=algorithm == "nvls",
        )
        assert took >= max(latency, bandwidth) * (1 - 1e-12)

    check()


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 6, 8])
@pytest.mark.parametrize("count", [0, 8 * 9 * 5, 8 * 9 * 40_000])
def test_ring_takes_its_textbook_time(collective, world_size, count):
    """(n - 1) or 2 (n - 1) steps of alpha + S / n B, when chunks are even."""
    problem = Problem(collective, world_size, count)
    schedule = build(problem, "pairwise" if collective == "all_to_all" else "ring")
    expected = ring_ps(
        collective,
        world_size,
        size_bytes=size_bytes(problem),
        alpha_ps=ALPHA_PS,
        bandwidth_bytes_per_s=RATE,
    )
    num_steps = 2 * world_size  # Each may be rounded up by less than one picosecond.
    assert expected - 1e-3 <= duration_ps(schedule) < expected + num_steps


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("num_chunks", [1, 4, 25])
def test_chain_takes_its_textbook_time(collective, num_chunks):
    """Both take n - 2 + m steps of alpha + S / m B; the reduce runs the rounds backwards."""
    problem = Problem(collective, 8, 100_000, root=3)
    schedule = build(problem, "chain", options={"num_chunks": num_chunks})
    expected = chain_ps(
        8, num_chunks, size_bytes=400_000, alpha_ps=ALPHA_PS, bandwidth_bytes_per_s=RATE
    )
    assert expected - 1e-3 <= duration_ps(schedule) < expected + 40


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
@pytest.mark.parametrize("node_size", [0, 8])
def test_latency_bound_holds_across_nodes(collective, algorithm, node_size):
    """What is known doubles per step overhead at best, because a sender spends that on each."""
    cluster = load_cluster({"name": "h100_ib", "nodes": 2})
    for world_size in (9, 16):
        if algorithm not in algorithms_for(collective, world_size) or world_size % 8 * node_size:
            continue
        problem = Problem(collective, world_size, 1, node_size=node_size)
        alpha_ps = cluster.collectives.step_overhead_ps
        ports = num_ports(algorithm, problem)
        bound = latency_bound_ps(collective, world_size, alpha_ps=alpha_ps, num_ports=ports)
        assert duration_ps(build(problem, algorithm), cluster) >= bound


def test_rings_pay_the_way_between_nodes_at_crossings_only():
    """As NCCL's formula: all steps the overhead, those that cross the rest of their latency.

    The longest way around the 16 ranks crosses four times in 30 steps (NCCL counts two), each time
    over NVSwitch to the next rail: 3.3 us.
    """
    cluster = load_cluster({"name": "h100_ib", "nodes": 2})
    problem = Problem("all_reduce", 16, 0, node_size=8)
    for num_channels in (1, 8):
        schedule = build(problem, "ring", options={"num_channels": num_channels})
        assert duration_ps(schedule, cluster) == 26 * 600_000 + 4 * 3_300_000


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_ring_uses_every_rail(collective):
    """Eight channels on eight NICs: the bus bandwidth of large rings is theirs together."""
    cluster = load_cluster({"name": "h100_ib", "nodes": 2})
    count = 1 << (30 if collective == "all_reduce" else 26)
    problem = Problem(collective, 16, count, node_size=8)
    nic = float(cluster.link_bandwidth_bytes_per_s[cluster.paths(0, 8).links[0]].min())
    bound = bandwidth_bound_ps(
        collective, 16, size_bytes=size_bytes(problem), bandwidth_bytes_per_s=8 * nic
    )
    assert bound <= duration_ps(build(problem, "ring"), cluster) <= 1.01 * bound


@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling", "two_shot"])
def test_two_level_bound_holds_across_nodes(algorithm):
    """On 4 nodes, no algorithm moves more through NICs and NVLink than they carry."""
    cluster = load_cluster({"name": "h100_ib", "nodes": 4})
    nic = float(cluster.link_bandwidth_bytes_per_s[cluster.paths(0, 8).links[0]].min())
    bound = two_level_all_reduce_bound_ps(
        8, 4, size_bytes=4 << 24, node_bytes_per_s=RATE, nic_bytes_per_s=nic
    )
    problem = Problem("all_reduce", 32, 1 << 24, node_size=8)
    assert duration_ps(build(problem, algorithm), cluster) >= bound
