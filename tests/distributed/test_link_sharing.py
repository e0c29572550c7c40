"""Collectives of different groups, messages and copies share the links that they cross."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simrank
import simrank.distributed as dist
from simrank.collectives import Problem
from simrank.collectives.choice import chooser_of
from simrank.device import Network
from simrank.errors import ProcessExitedException
from simrank.hardware import load_cluster

LINKS = {"name": "hgx_h100", "cost_level": "schedule"}
FIXED = settings(derandomize=True, deadline=None, database=None, max_examples=8)
NUM_ELEMENTS = 64 << 20


def took_ps(program, cluster="hgx_h100", nprocs=8, **options):
    """Return the simulated time of a program on shape-only data."""
    with simrank.Context(cluster, data=False, **options) as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=nprocs)
        return ctx.now_ps


def at_once(num_groups):
    """Return a program whose groups all reduce at the same time."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        groups = [dist.new_group() for _ in range(num_groups)]
        tensors = [ctx.empty(NUM_ELEMENTS) for _ in groups]
        works = [
            dist.all_reduce(tensor, group=group, async_op=True)
            for tensor, group in zip(tensors, groups, strict=True)
        ]
        for work in works:
            work.wait()
        ctx.synchronize()

    return program


@pytest.mark.parametrize("cluster", ["hgx_h100", LINKS, "hgx_b200", "mi300x"])
def test_groups_on_the_same_links_share_them(cluster):
    """Two all_reduces of 256 MiB take twice as long as one, three three times, but for latency."""
    one, two, three = (took_ps(at_once(number), cluster) for number in (1, 2, 3))
    assert 1.8 * one < two < 2.01 * one
    assert two - one == pytest.approx(three - two, rel=0.01)


def test_only_the_flow_of_bytes_is_shared():
    """Launch, set-up and steps pass whatever others do: of two, the bytes take twice their time."""
    chooser = chooser_of(load_cluster("hgx_h100"))
    choice = chooser.choose(Problem("all_reduce", 8, NUM_ELEMENTS), devices=np.arange(8))
    flow_ps = choice.stretch.duration_ps - choice.stretch.latency_ps
    assert 0 < flow_ps < choice.stretch.duration_ps
    launches_ps = 2 * 10**6  # The second group is launched that much later.
    difference = took_ps(at_once(2)) - took_ps(at_once(1))
    assert flow_ps - launches_ps <= difference <= flow_ps + launches_ps


@pytest.mark.parametrize("cluster", ["hgx_h100", LINKS])
def test_disjoint_ports_do_not_slow_each_other_down(cluster):
    """Two groups of four: to the picosecond as one of them alone."""

    def halves(which):
        def program(rank, ctx):
            dist.init_process_group("nccl")
            groups = [dist.new_group([0, 1, 2, 3]), dist.new_group([4, 5, 6, 7])]
            if rank // 4 in which:
                dist.all_reduce(ctx.empty(NUM_ELEMENTS), group=groups[rank // 4])
            ctx.synchronize()

        return program

    assert took_ps(halves({0, 1}), cluster) == took_ps(halves({0}), cluster)


@FIXED
@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from(["all_reduce", "broadcast", "all_gather_into_tensor", "barrier"]),
            st.integers(1, 1 << 22),
            st.integers(0, 50),
        ),
        min_size=1,
        max_size=5,
    ),
    cluster=st.sampled_from(["hgx_h100", "schedule"]),
)
def test_what_shares_with_nobody_takes_what_it_took(calls, cluster):
    """One collective after the other: equal to the picosecond whether links are shared or not."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        for name, count, late_us in calls:
            time.sleep(rank * late_us * 1e-6)
            if name == "barrier":
                dist.barrier()
            elif name == "all_gather_into_tensor":
                dist.all_gather_into_tensor(ctx.empty(4 * count), ctx.empty(count))
            elif name == "broadcast":
                dist.broadcast(ctx.empty(count), 1)
            else:
                dist.all_reduce(ctx.empty(count))
            ctx.synchronize()

    where = LINKS if cluster == "schedule" else cluster
    shared = took_ps(program, where, nprocs=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Network, "join", lambda self, newcomer: newcomer.share())
        always = took_ps(program, where, nprocs=4)
        patch.setattr(Network, "join", lambda self, newcomer: None)
        never = took_ps(program, where, nprocs=4)
    assert shared == always == never


def test_who_comes_later_shares_what_is_left():
    """A second group that starts half-way: both slow down from there, and bytes are conserved."""
    alone_ps = took_ps(at_once(1), LINKS)

    def program(rank, ctx):
        dist.init_process_group("nccl")
        groups = [dist.new_group(), dist.new_group()]
        tensors = [ctx.empty(NUM_ELEMENTS), ctx.empty(NUM_ELEMENTS)]
        first = dist.all_reduce(tensors[0], group=groups[0], async_op=True)
        time.sleep(alone_ps / 2e12)
        second = dist.all_reduce(tensors[1], group=groups[1], async_op=True)
        first.wait()
        ctx.synchronize()
        second.wait()
        ctx.synchronize()

    assert took_ps(program, LINKS) == pytest.approx(2 * alone_ps, rel=0.01)


def test_messages_and_collectives_share_links():
    """A message out of a port that an all_reduce uses slows both down."""

    def program_of(has_message, has_collective):
        def program(rank, ctx):
            dist.init_process_group("nccl")
            group = dist.new_group()
            tensor, message = ctx.empty(NUM_ELEMENTS), ctx.empty(NUM_ELEMENTS)
            work = None
            if has_collective:
                work = dist.all_reduce(tensor, group=group, async_op=True)
            if has_message and rank == 0:
                dist.send(message, 1)
            if has_message and rank == 1:
                dist.recv(message, 0)
            if work is not None:
                work.wait()
            ctx.synchronize()

        return program

    message = took_ps(program_of(True, False), LINKS)
    collective = took_ps(program_of(False, True), LINKS)
    both = took_ps(program_of(True, True), LINKS)
    assert both > collective + 0.9 * message * 0.5
    assert both < collective + message


def test_a_link_that_slows_down_slows_what_is_on_it():
    """An all_reduce that has begun too: half the rate from half-way on."""
    alone_ps = took_ps(at_once(1), LINKS)
    fault = {"slow_link": "gpu3 -> nvswitch", "factor": 2, "from": f"{alone_ps / 2e6} us"}
    assert took_ps(at_once(1), LINKS, faults=[fault]) == pytest.approx(1.5 * alone_ps, rel=0.01)


def test_a_link_that_recovers_lets_it_go_on():
    """Down for a while: as much later."""
    alone_ps = took_ps(at_once(1), LINKS)
    fault = {
        "slow_link": "gpu3 -> nvswitch",
        "factor": 2,
        "from": f"{alone_ps / 2e6} us",
        "until": f"{alone_ps * 0.75 / 1e6} us",
    }
    expected = 1.125 * alone_ps
    assert took_ps(at_once(1), LINKS, faults=[fault]) == pytest.approx(expected, rel=0.01)


def test_pairs_over_nodes_with_a_card_each_do_not_share():
    """Eight data-parallel pairs take what one takes."""

    def pairs(num_pairs):
        def program(rank, ctx):
            dist.init_process_group("nccl")
            groups = [dist.new_group([i, i + 8]) for i in range(8)]
            if rank % 8 < num_pairs:
                dist.all_reduce(ctx.empty(NUM_ELEMENTS), group=groups[rank % 8])
            ctx.synchronize()

        return program

    cluster = {"name": "h100_ib", "nodes": 2}
    assert took_ps(pairs(8), cluster, nprocs=16) == took_ps(pairs(1), cluster, nprocs=16)


@pytest.mark.parametrize(("count", "slow"), [(100_000, True), (1 << 22, False)])
def test_who_of_those_that_come_together_is_first_decides_nothing(count, slow):
    """Rooted collectives of two groups, on a slow link too: every seed gives every rank its end."""
    fault = {"slow_link": "gpu1 -> nvswitch", "factor": 4, "from": "16 us"}

    def ends_us(seed, collective):
        found = {}

        def program(rank, ctx):
            dist.init_process_group("nccl")
            groups = [dist.new_group(range(4)) for _ in range(2)]
            works = [collective(ctx.empty(count), 1, group=g, async_op=True) for g in groups]
            for work in works:
                work.wait()
            ctx.synchronize()
            found[rank] = ctx.now_ps

        took_ps(program, nprocs=4, seed=seed, faults=[fault] if slow else [])
        return found

    for collective in (dist.broadcast, dist.reduce):
        first = ends_us(0, collective)
        assert all(ends_us(seed, collective) == first for seed in (1, 2))


def test_a_job_that_was_killed_leaves_the_links_to_the_next():
    """Nothing of its all_reduce is in flight any more."""

    def program(rank, ctx, count):
        dist.init_process_group("nccl")
        dist.all_reduce(ctx.empty(count))
        ctx.synchronize()

    def second_us(faults):
        with simrank.Context("hgx_h100", data=False, faults=faults) as ctx:
            try:
                ctx.multiprocessing.spawn(program, (ctx, 1 << 24), nprocs=8)
            except ProcessExitedException:
                assert faults
            begin_ps = ctx.now_ps
            ctx.multiprocessing.spawn(program, (ctx, 1 << 22), nprocs=8)
            return (ctx.now_ps - begin_ps) / 1e6

    alone_us = second_us([])
    assert second_us([{"kill": 3, "at": "300 us"}]) == pytest.approx(alone_us, rel=0.001)
    assert second_us([{"kill": 3, "at": "40 us"}]) == pytest.approx(alone_us, rel=0.001)


@pytest.mark.parametrize("count", [1_000, 100_000, 1 << 22])
def test_when_a_link_becomes_slow_decides_nothing_before_bytes_flow(count):
    """Planned on a slow link, or just before: its bytes take four times longer all the same."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        dist.all_reduce(ctx.empty(count))
        ctx.synchronize()

    def slow_from(time):
        fault = {"slow_link": "gpu3 -> nvswitch", "factor": 4, "from": time}
        return took_ps(program, "hgx_h100", nprocs=8, faults=[fault])

    arrival = "8 us"  # Of all ranks: launched at 7 us, and some 6 us of latency follow.
    assert slow_from("0 s") == pytest.approx(slow_from(arrival), abs=1000)
    assert slow_from("0 s") > took_ps(program, "hgx_h100", nprocs=8)


@pytest.mark.parametrize(("cluster", "op"), [("hgx_h100", "broadcast"), (LINKS, "reduce")])
def test_late_ranks_wait_for_what_no_buffer_holds_while_others_send(cluster, op):
    """256 MiB, of which 64 MiB lie ready, beside all_reduces of the ranks that it does not find."""
    late, took_of_late_ps = {"broadcast": 7, "reduce": 0}[op], []

    def program(rank, ctx):
        dist.init_process_group("nccl")
        others = dist.new_group([2, 3, 4, 5])
        works = []
        if rank == late:
            time.sleep(0.01)
        if rank in (2, 3, 4, 5):
            works = [
                dist.all_reduce(ctx.empty(NUM_ELEMENTS), group=others, async_op=True)
                for _ in range(20)
            ]
        begun_ps = ctx.now_ps
        getattr(dist, op)(ctx.empty(NUM_ELEMENTS), 0)
        ctx.synchronize()
        took_of_late_ps.extend([ctx.now_ps - begun_ps] * (rank == late))
        for work in works:
            work.wait()

    took_ps(program, cluster)
    assert took_of_late_ps[0] >= (4 * NUM_ELEMENTS - (64 << 20)) / 0.45
