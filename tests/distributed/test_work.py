"""Work: what wait means, polls, time limits."""

from datetime import timedelta

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import LivelockError, PeerDiedError, SpawnException, WaitTimeoutError


def test_wait_blocks_the_current_stream_and_not_the_host(run):
    """The host returns at once; work issued afterwards sees the result."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.full((4,), float(rank))
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        assert ctx.now_ps == 0
        assert (x + 1).tolist() == [2.0] * 4

    run(program, 2)


def test_polling_ends_when_the_work_is_complete(run):
    """is_completed turns true, and each negative answer costs simulated time."""

    def program(rank, ctx):
        dist.init_process_group()
        work = dist.all_reduce(ctx.ones(2**20), async_op=True)
        polls = 0
        while not work.is_completed():
            polls += 1
        assert 0 < polls < 100

    run(program, 2)


def test_polling_for_what_never_comes_is_a_suspected_livelock(run):
    """The report names the ranks that poll, what for, and the rank that returned."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank == 2:
            return
        work = dist.all_reduce(ctx.ones(4), async_op=True)
        while not work.is_completed():
            pass

    with pytest.raises(LivelockError, match=r"livelock \(suspected\)") as caught:
        run(program, 3)
    polling, ended = caught.value.waits
    assert polling.ranks == (0, 1)
    assert polling.state == "is_completed of all_reduce #1 on group 'default_pg'"
    assert (ended.ranks, ended.state) == ((2,), "returned")


def test_a_wait_with_a_timeout_raises_at_that_simulated_time(run):
    """It blocks the host; the error says who waited for what, with the report as a note."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank == 1:
            return
        work = dist.all_reduce(ctx.ones(4), async_op=True)
        work.wait(timedelta(seconds=2))

    with pytest.raises(SpawnException) as caught:
        run(program, 2)
    error = caught.value.errors[0]
    assert isinstance(error, WaitTimeoutError)
    assert isinstance(error, TimeoutError)
    assert error.time_ps >= 2 * 10**12
    assert any("rank 1: returned" in note for note in error.__notes__)


def test_a_wait_with_a_timeout_that_is_not_needed_returns_true(run):
    """The limit is forgotten once the work is complete."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4)
        assert dist.all_reduce(x, async_op=True).wait(timedelta(seconds=5))
        assert 0 < ctx.now_ps < 10**9
        assert x.array[0] == 2

    assert run(program, 2).now_ps < 10**9


def test_only_receives_have_a_source(run):
    """Of a collective it is torch's error."""

    def program(rank, ctx):
        dist.init_process_group()
        work = dist.all_reduce(ctx.ones(1), async_op=True)
        with pytest.raises(RuntimeError, match="sourceRank"):
            work._source_rank()
        work.wait()
        assert work.exception() is None

    run(program, 2)


def test_a_barrier_takes_a_time_limit(run):
    """Torch 2.13's `timeout`: an explicit one, so it fires."""

    def program(rank, ctx):
        dist.init_process_group()
        dist.barrier(timeout=timedelta(seconds=1))
        if rank:
            dist.barrier(timeout=timedelta(seconds=1))

    with pytest.raises(SpawnException) as caught:
        run(program, 2)
    assert isinstance(caught.value.errors[1], WaitTimeoutError)


def test_members_whose_limits_pass_together_all_have_a_time_out():
    """Nobody has died; a member with a longer limit sees that the others have given up."""
    errors = {}

    def program(rank):
        dist.init_process_group("nccl")
        if rank == 0:
            return
        work = dist.all_reduce(simrank.ones(4), async_op=True)
        try:
            work.wait(timedelta(seconds=3 if rank < 3 else 4))
        except RuntimeError as error:
            errors[rank] = type(error)

    with simrank.Context("hgx_h100", checks="off") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=4)
    assert errors == {1: WaitTimeoutError, 2: WaitTimeoutError, 3: PeerDiedError}
