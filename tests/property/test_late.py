"""Late ranks: nobody ends sooner for them, and what no buffer holds flows when they are there."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simrank.collectives import Problem, algorithms_for, build
from simrank.collectives.choice import chooser_of
from simrank.collectives.cost import Stretch, cost_level
from simrank.collectives.problem import COLLECTIVES, GATHERED, ROOTED
from simrank.collectives.schedule import step_elements
from simrank.collectives.time_network import Ends
from simrank.collectives.time_rounds import TimePlayer
from simrank.hardware import load_cluster

FIXED = settings(derandomize=True, deadline=None, database=None, max_examples=4)
ALGORITHMS = [
    (coll, name) for coll in (*COLLECTIVES, *GATHERED) for name in algorithms_for(coll, 8)
]
CLUSTER = load_cluster({"name": "h100_ib", "nodes": 2})
SLOW = CLUSTER.with_link("gpu1", "nvswitch", node=0, bandwidth_bytes_per_s=1e9)
ROUNDING_PS = 8  # Of arrivals and ends where times are stretched.


@st.composite
def cases(draw, collective, algorithm):
    """Draw a schedule, a cluster, the devices of its ranks, arrivals and a stretch."""
    sizes = [n for n in (2, 3, 8) if algorithm in algorithms_for(collective, n)]
    num_ranks = draw(st.sampled_from(sizes))
    root = draw(st.integers(0, num_ranks - 1)) if collective in ROOTED else 0
    count = draw(st.sampled_from([1000, 1 << 23, 1 << 26]))
    node_size = draw(st.sampled_from([0, num_ranks]))
    problem = Problem(collective, num_ranks, count, root=root, node_size=node_size)
    arrivals = draw(
        st.lists(st.integers(0, 10**11), min_size=num_ranks, max_size=num_ranks).map(np.array)
    )
    devices = np.array(draw(st.permutations(range(16)))[:num_ranks])
    pieces = {"num_chunks": 16} if algorithm == "chain" else {}
    return (
        build(problem, algorithm, options=pieces),
        draw(st.sampled_from([CLUSTER, SLOW])),
        devices,
        arrivals,
    )


def ends(case, arrivals, stretch):
    """Return when ranks end; at NCCL's level a fourth longer than the schedule takes."""
    schedule, cluster, devices, _ = case
    cost = cost_level(cluster)
    if stretch is None:
        return cost.completions(schedule, arrivals, devices=devices, itemsize=4)
    return stretch.completions(cost, schedule, arrivals, devices=devices, itemsize=4)


def stretch_of(case, level):
    """Return by how much ends are stretched."""
    if level == "schedule":
        return None
    together = ends(case, np.zeros(len(case[3]), np.int64), None)
    return Stretch(int(together.max()) * 5 // 4, int(together.max()))


def flows_ps(schedule, cluster, devices):
    """Return how long each rank gets what no buffer holds, over its best connection alone."""
    num_lanes = schedule.world_size * max(schedule.num_lanes, schedule.num_channels)
    sent = np.zeros((num_lanes, num_lanes), np.int64)
    for loop in range(schedule.num_loops):
        tables = schedule.loop_tables(loop)
        for steps in schedule.rounds():
            src, dst, remote = Ends.of(steps, schedule.world_size)
            np.add.at(sent, (src, dst), step_elements(tables, steps) * 4 * remote)
    costs = cluster.collectives
    room_bytes = costs.buffer_bytes * costs.num_channels // schedule.num_channels
    src, dst = np.nonzero(sent > room_bytes)
    links = cluster.paths(devices[src % schedule.world_size], devices[dst % schedule.world_size])
    rates = cluster.link_bandwidth_bytes_per_s[links.links].min(axis=1, initial=np.inf)
    needs = np.zeros(schedule.world_size)
    np.maximum.at(needs, dst % schedule.world_size, (sent[src, dst] - room_bytes) / rates * 1e12)
    return needs


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
def test_a_late_rank_gets_what_no_buffer_holds_at_the_rate_of_its_link(collective, algorithm):
    """From its own arrival on, whoever else is late; and nobody ends sooner than without it."""

    @FIXED
    @given(
        case=cases(collective, algorithm),
        late=st.integers(0, 7),
        level=st.sampled_from(["schedule", "nccl"]),
    )
    def check(case, late, level):
        schedule, cluster, devices, arrivals = case
        stretch = stretch_of(case, level)
        factor = 1 if stretch is None else stretch.duration_ps / stretch.played_ps
        done = ends(case, arrivals, stretch)
        flows = flows_ps(schedule, cluster, devices) * factor
        assert (done >= arrivals + flows * (1 - 1e-9) - ROUNDING_PS).all()
        later = arrivals.copy()
        later[late % len(later)] += 5 * 10**10
        assert (ends(case, later, stretch) >= done - ROUNDING_PS).all()

    check()


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("name", ["ring", "hierarchical"])
def test_closed_forms_hold_late_ranks_as_rounds_do(collective, name):
    """Large rings on slow links, in loops, phases and channels."""
    if name not in algorithms_for(collective, 8):
        return

    @FIXED
    @given(
        arrivals=st.lists(st.sampled_from([0, 10**9, 5 * 10**10]), min_size=8, max_size=8),
        count=st.sampled_from([1 << 20, 1 << 23, 1 << 24, 1 << 25, 1 << 26, 3 << 26]),
        node_size=st.sampled_from([0, 2, 4, 8]),
        num_loops=st.sampled_from([1, 2, 3]),
        cluster=st.sampled_from([CLUSTER, SLOW]),
    )
    def check(arrivals, count, node_size, num_loops, cluster):
        options = {"num_loops": num_loops} if name == "ring" else {}
        problem = Problem(collective, 8, count, node_size=node_size)
        schedule = build(problem, name, options=options)
        for devices in (np.arange(8), np.arange(8) * 2):
            player = TimePlayer(schedule, network=cluster, devices=devices, itemsize=4)
            done = player.completions(np.array(arrivals))
            assert np.array_equal(done, player.round_completions(np.array(arrivals)))

    check()


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_what_nccl_runs_waits_for_each_late_rank(collective):
    """256 MiB on eight ranks, in its time: whoever is late, none ends before its data can come."""
    cluster = load_cluster("hgx_h100")
    chooser = chooser_of(cluster)
    problem = Problem(collective, 8, 64 << 20)
    choice = chooser.choose(problem, devices=np.arange(8))
    flows = flows_ps(choice.schedule, cluster, np.arange(8))
    factor = choice.stretch.duration_ps / choice.stretch.played_ps
    assert flows.max() > 4 * 10**8
    for late in range(8):
        arrivals = np.zeros(8, np.int64)
        arrivals[late] = 5 * 10**10
        done = choice.stretch.completions(
            chooser.cost, choice.schedule, arrivals, devices=np.arange(8), itemsize=4
        )
        assert done[late] >= arrivals[late] + flows[late] * factor
