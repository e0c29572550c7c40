"""Times of every algorithm: causal, monotone, the same by closed form, round or part."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simrank.collectives import algorithms_for, build, play_time
from simrank.collectives.data import NOT_ARRIVED, NOT_KNOWN
from simrank.collectives.problem import COLLECTIVES, GATHERED, ROOTED, Problem
from simrank.collectives.time_ring import RingCosts, has_closed_form, ring_rounds, ring_times
from simrank.collectives.time_rounds import TimePlayer
from simrank.hardware import load_cluster

FIXED = settings(derandomize=True, deadline=None, database=None, max_examples=4)
ALGORITHMS = [
    (coll, name) for coll in (*COLLECTIVES, *GATHERED) for name in algorithms_for(coll, 8)
]
CLUSTER = load_cluster({"name": "h100_ib", "nodes": 2})
SLOW = CLUSTER.with_link("gpu1", "nvswitch", node=0, bandwidth_bytes_per_s=1e9)


@st.composite
def cases(draw, collective, algorithm):
    """Draw a schedule, its arrivals, a cluster, and the devices of its ranks."""
    sizes = [n for n in (1, 2, 3, 5, 6, 8, 16) if algorithm in algorithms_for(collective, n)]
    world_size = draw(st.sampled_from(sizes))
    root = draw(st.integers(0, world_size - 1)) if collective in ROOTED else 0
    count = draw(st.sampled_from([0, 1, 5, 1000, 1 << 20, 1 << 23]))
    schedule = build(Problem(collective, world_size, count, root=root), algorithm)
    arrivals = draw(st.lists(st.integers(0, 10**8), min_size=world_size, max_size=world_size))
    devices = np.array(draw(st.permutations(range(16)))[:world_size])
    cluster = draw(st.sampled_from([CLUSTER, SLOW]))
    return schedule, np.array(arrivals, dtype=np.int64), cluster, devices


def _play(case, arrivals):
    schedule, _, cluster, devices = case
    return play_time(schedule, arrivals, network=cluster, devices=devices, itemsize=4)


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
def test_completions_follow_arrivals(collective, algorithm):
    """No rank ends before it came; later arrivals never end anything earlier; time is relative."""

    @FIXED
    @given(case=cases(collective, algorithm), delay=st.integers(0, 10**8), late=st.integers(0, 15))
    def check(case, delay, late):
        arrivals = case[1]
        done = _play(case, arrivals)
        assert (done >= arrivals + case[2].collectives.launch_latency_ps).all()
        later = arrivals.copy()
        later[late % len(later)] += delay
        assert (_play(case, later) >= done).all()
        assert np.array_equal(_play(case, arrivals + delay), done + delay)

    check()


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
def test_what_is_known_early_is_final(collective, algorithm):
    """With ranks absent, what is known equals the full times, and the rest depends on them."""

    @FIXED
    @given(case=cases(collective, algorithm), data=st.data())
    def check(case, data):
        arrivals = case[1]
        absent = np.array(data.draw(st.lists(st.booleans(), min_size=16, max_size=16)))
        absent = absent[: len(arrivals)]
        partial = _play(case, np.where(absent, NOT_ARRIVED, arrivals))
        full = _play(case, arrivals)
        known = partial != NOT_KNOWN
        assert not (known & absent).any()
        assert np.array_equal(partial[known], full[known])
        much_later = _play(case, np.where(absent, arrivals + 10**15, arrivals))
        assert np.array_equal(much_later >= 10**15, ~known)
        if case[0].synchronizing and absent.any():
            assert not known.any()

    check()


@pytest.mark.parametrize(("collective", "algorithm"), ALGORITHMS)
def test_synchronizing_schedules_depend_on_everyone(collective, algorithm):
    """The mark is true: one absent rank leaves nobody with a known end."""
    for world_size in (2, 3, 8):
        if algorithm not in algorithms_for(collective, world_size):
            continue
        schedule = build(Problem(collective, world_size, 64), algorithm)
        for absent in range(world_size) if schedule.synchronizing else ():
            arrivals = np.zeros(world_size, dtype=np.int64)
            arrivals[absent] = NOT_ARRIVED
            devices = np.arange(world_size)
            done = play_time(schedule, arrivals, network=CLUSTER, devices=devices, itemsize=4)
            assert (done == NOT_KNOWN).all()


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_ring_without_rounds_equals_ring_with_rounds(collective):
    """Closed form, short cut and generic rounds agree; loops and channels included."""

    @FIXED
    @given(
        case=cases(collective, "ring"),
        num_channels=st.integers(0, 3),
        num_loops=st.integers(1, 4),
        node_size=st.sampled_from([0, 1, 2, 4]),
    )
    def check(case, num_channels, num_loops, node_size):
        first, arrivals, cluster, devices = case
        node_size *= node_size > 0 and first.world_size % node_size == 0
        problem = Problem(collective, first.world_size, first.max_chunk, node_size=node_size)
        options = {"num_channels": num_channels, "num_loops": num_loops}
        schedule = build(problem, "ring", options=options)
        player = TimePlayer(schedule, network=cluster, devices=devices, itemsize=4)
        done = player.completions(arrivals)
        assert np.array_equal(done, player.round_completions(arrivals))

    check()


@settings(derandomize=True, deadline=None, database=None, max_examples=30)
@given(data=st.data())
def test_ring_closed_form_is_exact(data):
    """For any costs, starts and number of rounds, fewer and more than a lap."""
    num_ranks = data.draw(st.integers(1, 12))
    ranks = {"min_size": num_ranks, "max_size": num_ranks}
    stay = np.array(data.draw(st.lists(st.integers(0, 40) | st.just(7), **ranks)))
    extra = np.array(data.draw(st.lists(st.sampled_from([0, 0, 0, 5, 60]), **ranks)))
    if data.draw(st.booleans()):
        stay[:] = stay[0]
    cost = RingCosts(stay, stay + extra)
    start = np.array(data.draw(st.lists(st.integers(0, 300) | st.just(NOT_ARRIVED), **ranks)))
    num_rounds = data.draw(st.integers(0, 50))

    expected = ring_rounds(start, cost, num_rounds, is_eager=True)

    assert np.array_equal(ring_times(start, cost, num_rounds), expected)


def test_closed_form_is_refused_where_it_does_not_pay_or_fit():
    """Many distinct costs are played round by round, and so are sums beyond int64."""
    for cost, is_closed in ((np.full(1000, 7), True), (np.arange(1000), False)):
        assert has_closed_form(RingCosts(cost, cost), 1998) == is_closed
    assert has_closed_form(RingCosts(np.full(1000, 7), 7 + np.arange(1000)), 1998)
    assert not has_closed_form(RingCosts(cost, np.full(1000, 1 << 50)), 1998)
