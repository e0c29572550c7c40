"""Who is active, while calls are in flight: numbers go on, and everybody agrees on each of them."""

import time

import pytest

import simrank
import simrank.distributed as dist
from simrank.distributed.active_members import roster_of
from simrank.errors import PeerDiedError, SpawnException


def test_numbers_go_on_where_nobody_has_called_yet(spawned):
    """Who comes back has the next number, however many calls it has missed."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        group = dist.group.WORLD
        dist.set_active_ranks([0, 1])
        for _ in range(5):
            dist.all_reduce(ctx.ones(1), group=group) if rank < 2 else None
        dist.set_active_ranks([0, 1, 2])
        assert group.num_calls(rank) == 5
        x = ctx.ones(1)
        dist.all_reduce(x)
        assert x.item() == 3.0

    spawned(program, 3)


def test_a_member_that_is_behind_makes_the_calls_of_before_first(spawned):
    """Rank 1 has one call more to make without rank 2 when rank 2 comes back."""
    sums = {}

    def program(rank, ctx):
        dist.init_process_group("gloo")
        group = dist.group.WORLD
        dist.set_active_ranks([0, 1])
        sums[rank] = []
        if rank == 2:
            ctx.engine.sleep(2_000_000_000)
            group.roster.activate([2])  # As a fault does that ends.
        works = []
        for step in range(4 if rank < 2 else 2):
            x = ctx.full((1,), float(1 << rank), device="cpu")
            if rank == 1 and step == 1:
                ctx.engine.sleep(3_000_000_000)
            if rank == 0 and step == 2:
                ctx.engine.sleep(2_500_000_000)
            works.append((x, dist.all_reduce(x, async_op=True)))
        for x, work in works:
            work.wait()
            sums[rank].append(x.item())

    spawned(program, 3)
    assert sums == {0: [3.0, 3.0, 7.0, 7.0], 1: [3.0, 3.0, 7.0, 7.0], 2: [7.0, 7.0]}


def test_several_calls_in_flight_all_go_on(spawned):
    """Streams of asynchronous calls, of which the broken rank has made the first only."""
    sums = {}

    def program(rank, ctx):
        dist.init_process_group("nccl")
        works = []
        for _ in range(1 if rank == 2 else 3):
            x = ctx.full((4,), float(1 << rank))
            works.append((x, dist.all_reduce(x, async_op=True)))
        if rank == 0:
            ctx.engine.sleep(1_000_000_000)
            dist.deactivate_rank(2)
        for _, work in works:
            work.wait()
        sums[rank] = [x[0].item() for x, _ in works]

    spawned(program, 3)
    assert sums == {0: [7.0, 3.0, 3.0], 1: [7.0, 3.0, 3.0], 2: [7.0]}


def test_an_agreed_change_goes_on_without_a_rank_that_breaks_meanwhile(spawned):
    """Those that have come are not held by it."""
    seen = {}

    def program(rank, ctx):
        dist.init_process_group("nccl")
        if rank == 2:
            ctx.engine.sleep(1_000_000)
            dist.deactivate_rank(2)
            return
        dist.set_active_ranks([0, 1])
        seen[rank] = dist.active_ranks()

    spawned(program, 3)
    assert seen == {0: [0, 1], 1: [0, 1]}


def test_a_rank_that_dies_while_it_sits_out_does_not_come_back(spawned):
    """It is noted as dead, and nobody waits for it."""

    def program(rank, ctx):
        dist.init_process_group("nccl", pg_options=dist.ElasticOptions())
        dist.set_active_ranks([0, 1])
        if rank == 2:
            raise ValueError("gone")
        ctx.engine.sleep(1_000_000)
        absence = roster_of(dist.group.WORLD).absent[2]
        assert isinstance(absence.error, ValueError)

    with pytest.raises(SpawnException) as caught:
        spawned(program, 3, on_failure="continue")
    assert list(caught.value.errors) == [2]


def test_a_call_that_only_broken_ranks_had_not_ended_is_over(spawned):
    """The root of a broadcast has left it early; nobody waits for it any more."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.ones(16)
        dist.broadcast(x, 0)
        if rank == 0:
            ctx.synchronize()
            dist.deactivate_rank(1)
            assert not dist.group.WORLD.calls

    def late(rank, ctx):
        if rank == 0:
            program(rank, ctx)
        else:
            dist.init_process_group("nccl")
            ctx.engine.sleep(10**9)

    spawned(late, 2)


def test_tensors_on_other_devices_than_the_ranks_own_stay_there(spawned):
    """The part runs where the group's communicators are."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        device = f"cuda:{rank + 4}"
        x = ctx.full((2,), float(1 << rank), device=device)
        dist.all_reduce(x)
        dist.set_active_ranks([0, 2])
        if rank != 1:
            dist.all_reduce(x)
            assert x[0].item() == 14.0

    spawned(program, 3)


@pytest.fixture
def spawned():
    """Return what runs a program on ranks of a Context."""

    def run(program, nprocs, **options):
        with simrank.Context("hgx_h100", **options) as ctx:
            ctx.multiprocessing.spawn(program, (ctx,), nprocs=nprocs)

    return run


def test_a_rooted_call_that_its_root_leaves_takes_later_calls_of_its_streams_along():
    """Both ranks that wait are told; what failed with it is not looked for again."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.ones(1024)
        dist.all_reduce(x)
        ctx.synchronize()
        if rank == 1:
            time.sleep(1e-4)
        works = [dist.broadcast(x, 1, async_op=True), dist.all_reduce(x, async_op=True)]
        for work in works:
            work.wait()
        ctx.synchronize()

    faults = [{"deactivate": 1, "at": "90 us"}]
    with (
        simrank.Context("hgx_h100", faults=faults) as ctx,
        pytest.raises(SpawnException) as caught,
    ):
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=3)
    assert {0, 2} <= set(caught.value.errors)
    assert all(isinstance(caught.value.errors[rank], PeerDiedError) for rank in (0, 2))
