"""A Context made inside a rank: that rank is the main program of a simulation of its own."""

import time

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import DeadlockError, SpawnException


def inner_sum(world_size, early=None):
    """Run a program on ranks of an own Context; return what they saw and when it ended."""
    sums = []

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.full((4,), float(rank))
        if rank == early:
            return
        time.sleep(1e-3)
        dist.all_reduce(x)
        sums.append(x[0].item())

    with simrank.Context() as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=world_size)
        ctx.wait(ctx.timer(10))
    return sums, ctx.now_ps


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
def test_each_rank_may_run_a_simulation_of_its_own(carrier):
    """As each process would; the rank's own time and groups are left alone."""
    seen = {}

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4)
        dist.all_reduce(x)
        before_s = time.monotonic()
        seen[rank] = inner_sum(rank + 2)
        assert time.monotonic() - before_s < 1e-5
        dist.barrier()
        assert x[0].item() == 2
        assert dist.get_world_size() == 2

    with simrank.Context(carrier=carrier) as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
    expected = {rank: inner_sum(rank + 2) for rank in range(2)}
    assert seen == expected
    assert seen[1][0] == [3.0] * 3


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
def test_a_hang_in_it_is_the_rank_s_failure(carrier):
    """It is raised in the rank, which may deal with it."""
    caught = []

    def deals_with_it(rank):
        with pytest.raises(DeadlockError) as error:
            inner_sum(3, early=1)
        caught.append(str(error.value).splitlines()[-2])

    def fails(rank):
        if rank == 1:
            inner_sum(3, early=1)
        dist.init_process_group()
        dist.barrier()

    with simrank.Context(carrier=carrier) as ctx:
        ctx.multiprocessing.spawn(deals_with_it, nprocs=2)
        assert caught == ["  rank 1: returned"] * 2
        with pytest.raises(SpawnException) as failure:
            ctx.multiprocessing.spawn(fails, nprocs=2)
    assert {rank: type(error) for rank, error in failure.value.errors.items()} == {1: DeadlockError}


def test_it_may_be_nested_further():
    """Three deep."""
    seen = []

    def middle(rank):
        seen.append(inner_sum(2)[0])

    def outer(rank):
        with simrank.Context() as ctx:
            ctx.multiprocessing.spawn(middle, nprocs=2)

    with simrank.Context() as ctx:
        ctx.multiprocessing.spawn(outer, nprocs=2)
    assert seen == [[1.0, 1.0]] * 4
