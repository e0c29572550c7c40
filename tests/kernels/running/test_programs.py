"""Programs that wait: parked on what they watch, woken by writes, reported when nobody writes."""

import contextlib

import pytest
import triton
import triton.language as tl

import simrank
import simrank.distributed as dist
from simrank.errors import DeadlockError
from simrank.kernels import machine

PADS = {}


@triton.jit
def ping_pong(mine, peer, out, rank, rounds: tl.constexpr):
    for i in range(rounds):
        if rank == 0:
            tl.atomic_xchg(peer, i + 1, sem="release", scope="sys")
            while tl.atomic_add(mine, 0, sem="acquire", scope="sys") != i + 1:
                pass
        else:
            while tl.load(mine, volatile=True) != i + 1:
                pass
            tl.atomic_xchg(peer, i + 1, sem="release", scope="sys")
    tl.store(out, rounds)


@triton.jit
def grid_barrier(counter, out, n):
    tl.atomic_add(counter, 1)
    while tl.atomic_add(counter, 0) != n:
        pass
    tl.store(out + tl.program_id(0), 1)


def exchange(rank, ctx, ranks_that_play=(0, 1)):
    """Run ten rounds of ping-pong between two ranks."""
    PADS[rank] = ctx.zeros(4, dtype=simrank.int32)
    dist.init_process_group("nccl")
    dist.barrier()
    out = ctx.zeros(1, dtype=simrank.int32)
    if rank in ranks_that_play:
        operation = ping_pong[(1,)](PADS[rank], PADS[1 - rank], out, rank, rounds=10)
        assert out.item() == 10
        assert operation.mode == "tasks"
        # Ten round trips over the switch: two routes each, and two atomics' worth of L2.
        assert 10e6 < operation.cost.duration_ps < 60e6


def test_two_ranks_signal_each_other(run):
    """Each waits for the other's flag; time is what the routes take."""
    run(exchange, 2)


def test_a_signal_that_never_comes_is_a_deadlock_that_names_kernel_program_and_line(run):
    """Instead of a machine that hangs."""
    with pytest.raises(DeadlockError) as caught:
        run(exchange, 2, (0,))
    text = str(caught.value)
    assert "kernel 'ping_pong' program 0 waits for a change" in text
    assert "test_programs.py:" in text


@triton.jit
def wait_for_one(flag):
    tl.atomic_poll(flag, 1)


def test_a_collective_behind_a_kernel_that_hangs_is_not_blamed(run):
    """Every rank has issued it; the flag is what is missing."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        x, flag = ctx.ones(1), ctx.zeros(1, dtype=simrank.int32)
        wait_for_one[(1,)](flag)
        dist.all_reduce(x)
        ctx.synchronize()

    with pytest.raises(DeadlockError) as caught:
        run(body, 2)
    assert "same collectives" not in str(caught.value)


def test_a_barrier_of_all_programs_ends_where_they_fit_on_the_device(run):
    """132 SMs hold two programs each."""

    def body(rank, ctx):
        counter = ctx.zeros(1, dtype=simrank.int32)
        out = ctx.zeros(264, dtype=simrank.int32)
        grid_barrier[(264,)](counter, out, 264)
        assert out.sum().item() == 264

    run(body, 1)


def test_a_barrier_of_more_programs_than_fit_is_a_deadlock_that_says_so(run):
    """The last program never starts, as it was said how many an SM holds."""

    def body(rank, ctx):
        counter = ctx.zeros(1, dtype=simrank.int32)
        out = ctx.zeros(400, dtype=simrank.int32)
        grid_barrier[(265,)](counter, out, 265, num_ctas_per_sm=2)
        out.tolist()

    with pytest.raises(DeadlockError) as caught:
        run(body, 1)
    assert "1 of 265 programs have not started: the device holds 264 at once" in str(caught.value)
    assert "assumed" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(("num_programs", "hangs"), [(264, False), (265, True)])
def test_how_many_programs_fit_is_what_the_compiler_says(run, num_programs, hangs):
    """With 32 warps each, two of them fill an SM's 64."""

    def body(rank, ctx):
        counter = ctx.zeros(1, dtype=simrank.int32)
        out = ctx.zeros(400, dtype=simrank.int32)
        grid_barrier[(num_programs,)](counter, out, num_programs, num_warps=32)
        out.tolist()

    if hangs:
        with pytest.raises(DeadlockError, match="the device holds 264 at once"):
            run(body, 1)
    else:
        run(body, 1)


def test_an_error_in_one_program_reaches_the_rank_that_launched(run):
    """And ends the others."""

    def body(rank, ctx):
        counter = ctx.zeros(1, dtype=simrank.int32)
        grid_barrier[(4,)](counter, ctx.zeros(2, dtype=simrank.int32), 4)
        ctx.synchronize()

    with pytest.raises(Exception, match="illegal memory access in kernel 'grid_barrier'"):
        run(body, 1)


@pytest.mark.parametrize("slots", [4, 2])
def test_nobody_runs_when_a_launch_has_ended(run, slots):
    """In order or in an error: what a function of tl says outside a kernel is not another's."""

    def body(rank, ctx):
        counter = ctx.zeros(1, dtype=simrank.int32)
        grid_barrier[(4,)](counter, ctx.zeros(slots, dtype=simrank.int32), 4)
        ctx.synchronize()

    with contextlib.suppress(Exception):
        run(body, 1)
    assert not machine.is_running()
