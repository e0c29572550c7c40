"""Programs that wait: parked on what they watch, woken by writes, reported when nobody writes."""

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import DeadlockError

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

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


@triton.jit
def histogram(x, out, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bins = tl.load(x + offs, mask=offs < n, other=0)
    tl.atomic_add(out + bins, 1, mask=offs < n)


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


@triton.jit
def wait_for_one(flag):
    tl.atomic_poll(flag, 1)


def test_a_hang_in_a_poll_says_what_memory_holds_and_what_is_awaited(run):
    """A flag that was counted past its value hangs as one that nobody has set; they differ here."""

    def body(rank, ctx):
        wait_for_one[(1,)](ctx.full((1,), 2, dtype=simrank.int32))
        ctx.synchronize()

    with pytest.raises(DeadlockError) as caught:
        run(body, 1)
    assert "program 0 waits for a change of byte 0 from 2 to 1 of a buffer" in str(caught.value)


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


@pytest.mark.parametrize("mode", ["batched", "one-by-one", "tasks"])
def test_atomics_count_right_in_every_mode(run, mode):
    """Many lanes and programs on few elements."""

    def body(rank, ctx):
        x = ctx.randint(0, 16, (1000,), dtype=simrank.int32)
        out = ctx.zeros(16, dtype=simrank.int32)
        histogram[(4,)](x, out, 1000, BLOCK=256, mode=mode)
        numbers = x.tolist()
        assert out.tolist() == [numbers.count(value) for value in range(16)]

    run(body, 1)


def test_an_error_in_one_program_reaches_the_rank_that_launched(run):
    """And ends the others."""

    def body(rank, ctx):
        counter = ctx.zeros(1, dtype=simrank.int32)
        grid_barrier[(4,)](counter, ctx.zeros(2, dtype=simrank.int32), 4)
        ctx.synchronize()

    with pytest.raises(Exception, match="illegal memory access in kernel 'grid_barrier'"):
        run(body, 1)


NEGATE = tl.constexpr("neg.f32 $0, $1;")
SPIN = "{\n.reg .pred %p;\nspin: ld.global.u32 $0, [$1];\nsetp.eq.u32 %p, $0, 0;\n@%p bra spin;\n}"


@triton.jit
def negate_by_name(x, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.inline_asm_elementwise(
        asm=NEGATE, constraints="=f,f", args=[tl.load(x + offs)], dtype=tl.float32,
        is_pure=True, pack=1,
    )  # fmt: skip
    tl.store(x + offs, found)


@triton.jit
def spin_by_name(flag, text: tl.constexpr):
    tl.inline_asm_elementwise(text, "=r,l", [flag], dtype=tl.int32, is_pure=False, pack=1)


def test_assembly_that_a_name_stands_for_is_read_before_a_kernel_is_taken_to_wait(run):
    """Arithmetic runs in lockstep; what nobody can know yet runs as tasks."""

    def body(rank, ctx):
        x = ctx.arange(64, dtype=simrank.float32)
        assert negate_by_name[(4,)](x, BLOCK=16).mode == "batched"
        assert x.tolist() == [-float(i) for i in range(64)]
        flag = ctx.ones(1, dtype=simrank.int32)
        assert spin_by_name[(1,)](flag, SPIN).mode == "tasks"

    run(body, 1)


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
