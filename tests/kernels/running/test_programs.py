"""Programs that wait: parked on what they watch, woken by writes, reported when nobody writes."""

import contextlib

import numpy as np
import pytest
import triton
import triton.language as tl

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank.errors import DeadlockError
from simrank.kernels import machine
from simrank.kernels.machine import Programs, RunningLaunch, Statistics
from simrank.kernels.running.programs import spin

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


# ---- how a program waits: what ends a wait, and what its report says ----


@triton.jit
def wait_while_minus_zero(flag, out):
    if tl.program_id(0) == 0:
        while tl.atomic_add(flag, -0.0).to(tl.int32, bitcast=True) != 0:
            pass
        tl.store(out, 1.0)
    else:
        for _ in range(8):
            tl.load(out, volatile=True)
        tl.atomic_xchg(flag, 0.0)


@triton.jit
def wait_while_nan(flag):
    found = tl.atomic_add(flag, 0.0)
    while found != found:
        found = tl.atomic_add(flag, 0.0)


def test_a_zero_of_the_other_sign_ends_a_wait(run):
    """It is equal, but its bits are others: kernels mark with it what has not arrived."""

    def body(rank, ctx):
        flag, out = ctx.full((1,), -0.0), ctx.zeros(1)
        wait_while_minus_zero[(2,)](flag, out)
        assert out.item() == 1

    run(body, 1)


def test_an_atomic_that_finds_the_same_nan_has_changed_nothing(run):
    """Whoever waits for another value is parked, and reported when nobody writes one."""

    def body(rank, ctx):
        flag = ctx.full((1,), float("nan"))
        wait_while_nan[(1,)](flag)
        flag.item()

    with pytest.raises(DeadlockError, match="waits for a change of byte 0"):
        run(body, 1)


def test_a_hang_in_a_poll_says_what_memory_holds_and_what_is_awaited(run):
    """A flag that was counted past its value hangs as one that nobody has set; they differ here."""

    def body(rank, ctx):
        wait_for_one[(1,)](ctx.full((1,), 2, dtype=simrank.int32))
        ctx.synchronize()

    with pytest.raises(DeadlockError) as caught:
        run(body, 1)
    assert "program 0 waits for a change of byte 0 from 2 to 1 of a buffer" in str(caught.value)


@triton.jit
def until_it_is(counter, n):
    while tl.atomic_add(counter, 0) != n:
        pass


@triton.jit
def poll_until_it_is(counter, n):
    tl.atomic_poll(counter, n)


@triton.jit
def barrier_by_callback(counter, out, n, WAIT: tl.constexpr):
    tl.atomic_add(counter, 1)
    WAIT(counter, n)
    tl.store(out + tl.program_id(0), tl.program_id(0))


@pytest.mark.parametrize("wait", [until_it_is, poll_until_it_is])
def test_a_wait_inside_a_callback_is_a_wait(wait):
    """The kernel does not spell it out; its programs still run each at its own time."""
    with simrank.Context("hgx_h100") as ctx:
        counter, out = ctx.zeros(1, dtype="int32"), ctx.zeros(4, dtype="int32")
        barrier_by_callback[(4,)](counter, out, 4, WAIT=wait)
        assert (counter.item(), out.tolist()) == (4, [0, 1, 2, 3])


@triton.jit
def copy_when_told(flag, source, out):
    while tl.atomic_add(flag, 0, sem="acquire", scope="sys") != 7:
        pass
    tl.store(out, tl.load(source))


@pytest.mark.parametrize("is_ordered", [True, False])
def test_a_word_that_a_peers_stream_writes_ends_a_wait_and_orders_what_was_before_it(is_ordered):
    """`stream_write_value32` behind a copy is no race; on a stream beside the copy's it is one."""

    def body(rank, ctx):
        simrank.distributed.init_process_group("nccl")
        handle = symm_mem.rendezvous(symm_mem.empty(4))
        if rank == 0:
            out = ctx.empty(1)
            flag, source = handle.get_signal_pad(0), handle.get_buffer(0, (4,), simrank.float32)
            copy_when_told[(1,)](flag[3:], source, out)
            ctx.synchronize()
        else:
            handle.get_buffer(0, (4,), simrank.float32).copy_(ctx.full((4,), 5.0))
            with ctx.current_stream() if is_ordered else ctx.Stream():
                handle.stream_write_value32(handle.get_signal_pad(0), 3, 7)

    with simrank.Context("hgx_h100", races="report") as ctx:
        ctx.multiprocessing.spawn(body, args=(ctx,), nprocs=2)
        assert bool(ctx.races) is not is_ordered


@triton.jit
def fight_for_a_lock(lock, count):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(count, tl.load(count) + 1)
    tl.atomic_xchg(lock, 0)


@triton.jit
def exchange_for_a_lock(lock, count):
    found = tl.atomic_xchg(lock, 1)
    while found != 0:
        found = tl.atomic_xchg(lock, 1)
    tl.store(count, tl.load(count) + 1)
    tl.atomic_store(lock, 0)


@triton.jit
def meet_at_a_counter(counter, count):
    tl.atomic_add(counter, 1)
    while tl.atomic_add(counter, 0) < tl.num_programs(0):
        pass
    tl.atomic_add(count, 1)


@triton.jit
def meet_at_a_flag(counter, count):
    if tl.atomic_add(counter, 1) == tl.num_programs(0) - 1:
        tl.atomic_add(counter, 1000)
    tl.atomic_poll(counter, 1000 + tl.num_programs(0))
    tl.atomic_add(count, 1)


@triton.jit
def pass_a_token(turn, count):
    own = tl.program_id(0)
    while tl.load(turn, volatile=True) != own:
        pass
    tl.store(count, tl.load(count) + 1)
    tl.atomic_xchg(turn, own + 1)


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize(
    "kernel",
    [fight_for_a_lock, exchange_for_a_lock, meet_at_a_counter, meet_at_a_flag, pass_a_token],
)
def test_programs_that_wait_for_one_word_are_not_all_run_at_each_write(run, kernel, seed):
    """What is done grows with the programs: those look again that may go on."""

    def body(rank, ctx):
        done = []
        for num_programs in (64, 128):
            word, count = ctx.zeros(1, dtype="int32"), ctx.zeros(1, dtype="int32")
            launched = kernel[(num_programs,)](word, count)
            assert count.item() == num_programs
            done.append(launched.statistics.num_atomics + launched.statistics.num_steps)
        assert done[1] < 2.2 * done[0]
        assert done[1] < 12 * 128

    run(body, 1, seed=seed)


@triton.jit
def leave_while_others_wait(lock, out):
    if tl.program_id(0) == 0:
        tl.atomic_xchg(lock, 5)
    else:
        while tl.atomic_cas(lock, 7, 1) == 0:
            pass
        tl.store(out + tl.program_id(0), 1)


def test_who_goes_on_without_a_change_lets_others_look(run):
    """The word stays as it is: all that wait for it go on, one after the other."""

    def body(rank, ctx):
        lock, out = ctx.zeros(1, dtype="int32"), ctx.zeros(8, dtype="int32")
        leave_while_others_wait[(8,)](lock, out)
        assert out.tolist() == [0, 1, 1, 1, 1, 1, 1, 1]

    run(body, 1)


# ---- the guard of a loop that may wait ----


class Sync:
    """Notes what a guard tells the program that waits."""

    num_effects = 3

    def __init__(self):
        self.reported = []

    def enter_spin(self):
        self.num_effects += 1
        self.reported.append("enter")

    def next_round(self, effects_before, *, is_pure):
        self.reported.append((effects_before, self.num_effects, is_pure))

    def leave_spin(self, *, for_value):
        self.reported.append(("leave", for_value))


def guarded(sync):
    def body():
        guard = spin(True, False)
        assert guard.again()
        if sync is not None:
            sync.num_effects += 1
        assert guard.again()
        guard.over()

    setting = RunningLaunch("k", (1, 1, 1), None, Statistics())
    machine.run(Programs(setting, np.array([0]), sync=sync), body)


def test_each_round_is_compared_with_what_the_one_before_left():
    """A round that changed memory is no reason to park."""
    sync = Sync()
    guarded(sync)
    assert sync.reported == ["enter", (4, 4, True), (4, 5, True), ("leave", False)]


@pytest.mark.parametrize("sync", [None])
def test_in_lockstep_nothing_is_asked(sync):
    """Programs that neither wait nor publish just go round."""
    guarded(sync)
