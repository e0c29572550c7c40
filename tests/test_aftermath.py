"""A failure is told once: what comes after it in the same Context starts clean."""

import asyncio
import gc
import time
import weakref

import pytest

import simrank
import simrank.distributed as dist
from simrank.engine import Handle
from simrank.errors import DeadlockError, LivelockError, SpawnException

LARGE = 1 << 26  # An all-reduce of so many elements takes most of a millisecond.


def init(rank, world_size=4):
    """Join the default group."""
    dist.init_process_group("nccl", rank=rank, world_size=world_size)


def sum_of_ones(ctx):
    """Run a correct program and return what rank 0 has of it."""
    sums = []

    def body(rank):
        init(rank)
        ones = ctx.ones(4)
        dist.all_reduce(ones)
        if rank == 0:
            sums.extend(ones.tolist())

    ctx.multiprocessing.spawn(body, nprocs=4)
    return sums


def leaves_a_call(ctx):
    """Return a program whose call can never complete after all ranks have returned."""

    def body(rank):
        init(rank)
        if rank != 2:
            dist.all_reduce(ctx.ones(4), async_op=True)

    return body


def waits_for_ever(ctx):
    """Return a program whose rank 0 never returns."""

    def body(rank):
        init(rank)
        if rank == 0:
            ones = ctx.ones(4)
            dist.recv(ones, src=1)
            ones.tolist()

    return body


@pytest.mark.parametrize("program", [leaves_a_call, waits_for_ever])
@pytest.mark.parametrize("of", ["abort", "continue"])
def test_a_hang_is_raised_once_and_the_next_spawn_is_not_blamed_for_it(program, of):
    """Nor does the Context raise it again at its end, so that `pytest.raises` fits in it."""
    with simrank.Context(on_failure=of) as ctx:
        for _ in range(2):
            with pytest.raises(DeadlockError):
                ctx.multiprocessing.spawn(program(ctx), nprocs=4)
        assert sum_of_ones(ctx) == [4.0] * 4


@pytest.mark.parametrize("program", [leaves_a_call, waits_for_ever])
def test_so_is_one_that_the_main_program_met_itself(program):
    """It drains, or waits for a handle; the ranks were never joined."""
    with simrank.Context() as ctx:
        ctx.multiprocessing.spawn(program(ctx), nprocs=4, join=False)
        with pytest.raises(DeadlockError):
            ctx.drain()
        with pytest.raises(DeadlockError):
            ctx.wait(Handle())
        assert sum_of_ones(ctx) == [4.0] * 4


def test_a_hang_that_nobody_has_seen_is_raised_at_the_end_of_the_context():
    """Dealing with one does not hide another."""
    with pytest.raises(DeadlockError, match="ranks 0-1, 3: returned, but all_reduce #1"):  # noqa: SIM117
        with simrank.Context() as ctx:
            with pytest.raises(DeadlockError):
                ctx.wait(Handle())
            ctx.multiprocessing.spawn(leaves_a_call(ctx), nprocs=4, join=False)


def test_so_is_the_failure_of_ranks_that_nobody_joined():
    """Though a hang was dealt with before."""

    def fail(rank):
        raise KeyError(rank)

    with pytest.raises(SpawnException, match="KeyError"):  # noqa: SIM117
        with simrank.Context() as ctx:
            ctx.multiprocessing.spawn(fail, nprocs=2, join=False)
            with pytest.raises(DeadlockError):
                ctx.wait(Handle())


def test_a_livelock_is_raised_once():
    """The ranks that poll are ended with the Context."""

    def body(rank):
        init(rank)
        if rank == 0:
            work = dist.irecv(simrank.zeros(4), src=1)
            while not work.is_completed():
                pass

    with simrank.Context() as ctx:
        ctx.multiprocessing.spawn(body, nprocs=4, join=False)
        with pytest.raises(LivelockError):
            ctx.drain()


@pytest.mark.parametrize("call", ["all_reduce", "broadcast", "reduce"])
@pytest.mark.parametrize("delay_s", [0, 100e-6, 300e-6])
def test_a_rank_that_dies_while_its_collective_runs_leaves_nothing_in_flight(call, delay_s):
    """The others go on, and so does the next spawn; its data had been sent."""

    def body(rank, ctx):
        init(rank)
        ones = ctx.ones(LARGE)
        work = getattr(dist, call)(ones, *([] if call == "all_reduce" else [0]), async_op=True)
        if rank == 3:
            time.sleep(delay_s)
            raise ValueError("after it was issued")
        ctx.wait(work)

    with simrank.Context(on_failure="continue", data=False) as ctx:
        with pytest.raises(SpawnException) as caught:
            ctx.multiprocessing.spawn(body, (ctx,), nprocs=4)
        assert [type(error) for error in caught.value.errors.values()] == [ValueError]
        assert sum_of_ones(ctx) == [4.0] * 4


def test_ranks_that_are_left_when_the_block_fails_run_their_finally_blocks_at_once():
    """Not when the collector comes by."""
    ended = []

    def body(rank, ctx):
        try:
            waits_for_ever(ctx)(rank)
        finally:
            ended.append(rank)

    with pytest.raises(KeyError), simrank.Context() as ctx:
        ctx.multiprocessing.spawn(body, (ctx,), nprocs=4, join=False)
        ctx.wait(ctx.timer(10**9))
        raise KeyError("in the main program")
    assert sorted(ended) == [0, 1, 2, 3]


def test_a_meeting_of_an_aborted_spawn_is_not_told_again():
    """The failure ends the run: who waited in a monitored barrier has left it."""

    def body(rank):
        dist.init_process_group("gloo")
        if rank == 1:
            raise ValueError("told once")
        dist.monitored_barrier()

    with simrank.Context("hgx_h100") as ctx:
        with pytest.raises(SpawnException, match="told once"):
            ctx.multiprocessing.spawn(body, nprocs=2)
        assert sum_of_ones(ctx) == [4.0] * 4


def returns(ctx):
    """Return a correct program, with an event loop."""

    def body(rank):
        init(rank)
        ctx.ones(4)
        asyncio.run(asyncio.sleep(1e-6))

    return body


def run(rank, program):
    """Run a program on the Context of the rank."""
    program(simrank)(rank)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("program", [returns, leaves_a_call, waits_for_ever])
def test_a_context_is_freed_once_its_ranks_have_ended_or_failed(program, strict):
    """A process that runs thousands of them does not grow."""
    with simrank.Context(strict=strict) as ctx:
        left = weakref.ref(ctx)
        try:
            ctx.multiprocessing.spawn(run, (program,), nprocs=4)
        except DeadlockError:
            assert program is not returns
    del ctx
    gc.collect()
    assert left() is None
