"""Races between programs: found by happens-before, silent on correct kernels."""

import numpy as np
import pytest
import triton
import triton.language as tl

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank.errors import DeadlockError, RaceError, SpawnException
from simrank.kernels import channels
from simrank.kernels.algorithms import KernelAlgorithm
from simrank.kernels.races import happens_before as values_of
from simrank.kernels.races.findings import ProgramRaceError
from simrank.kernels.races.happens_before import FlagValues, Look, LoopCondition, races_of

from .. import published


@triton.jit
def put_then_signal(
    theirs, flag, mine, own_flag, out, rank, SEM: tl.constexpr, SCOPE: tl.constexpr
):
    offs = tl.arange(0, 8)
    if rank == 0:
        tl.store(theirs + offs, offs + 1.0)
        tl.atomic_xchg(flag, 1, sem=SEM, scope=SCOPE)
    else:
        while tl.atomic_add(own_flag, 0, sem="acquire", scope="sys") != 1:
            pass
        tl.store(out + offs, tl.load(mine + offs))


@triton.jit
def put_signal_and_stay(theirs, their_flag, own_flag):
    offs = tl.arange(0, 8)
    tl.store(theirs + offs, offs + 1.0)
    tl.atomic_xchg(their_flag, 1, sem="release", scope="sys")
    while tl.atomic_add(own_flag, 0, sem="acquire", scope="sys") != 1:
        pass


@triton.jit
def wait_for_signal(own_flag):
    while tl.atomic_add(own_flag, 0, sem="acquire", scope="sys") != 1:
        pass


@triton.jit
def overwrite_then_signal(mine, their_flag):
    tl.store(mine + tl.arange(0, 8), tl.zeros((8,), tl.float32))
    tl.atomic_xchg(their_flag, 1, sem="release", scope="sys")


@triton.jit
def double_once_ready(source, ready, out):
    offs = tl.arange(0, 8)
    while tl.atomic_add(ready, 0, sem="acquire", scope="sys") != 1:
        pass
    tl.store(out + offs, 2 * tl.load(source + offs))


def signalled(run, sem, scope="sys", **options):
    """Run it on two ranks and return the Context."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer = symm_mem.empty(8)
        handle = symm_mem.rendezvous(buffer)
        peer = handle.get_buffer(1 - rank, (8,), simrank.float32)
        flags = [handle.get_signal_pad(r) for r in (1 - rank, rank)]
        out = ctx.zeros(8)
        put_then_signal[(1,)](peer, flags[0], buffer, flags[1], out, rank, SEM=sem, SCOPE=scope)
        ctx.synchronize()

    return run(body, 2, **options)


def test_a_relaxed_signal_after_a_store_is_a_race(run):
    """The data may arrive after its signal; text and facts name both programs and lines."""
    (race,) = signalled(run, "relaxed", races="report").races
    assert isinstance(race, ProgramRaceError)
    lines = str(race).splitlines()
    assert lines[0].startswith("race (proved) at t=")
    assert "nothing orders two programs (allocated at test_happens_before.py:" in lines[0]
    assert lines[1].startswith("  program 0 of kernel 'put_then_signal' of rank 0 writes at test_h")
    assert lines[2].startswith("  program 0 of kernel 'put_then_signal' of rank 1 reads at test_h")
    assert lines[3].startswith('  to fix: signal with sem="release"')
    assert (race.second.verb, race.rank) == ("reads", 1)


def test_a_release_signal_orders_what_was_stored_before_it(run):
    """No finding."""
    assert signalled(run, "release", races="report").races == []


@pytest.mark.parametrize("waits", [True, False])
def test_a_launch_is_ordered_behind_what_the_one_before_it_waited_for(run, waits):
    """The peer that stored still runs; without the wait the two stores race."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer = symm_mem.empty(8)
        handle = symm_mem.rendezvous(buffer)
        theirs, own = (handle.get_signal_pad(peer) for peer in (1 - rank, rank))
        if rank == 0:
            peer = handle.get_buffer(1, (8,), simrank.float32)
            put_signal_and_stay[(1,)](peer, theirs, own)
        else:
            if waits:
                wait_for_signal[(1,)](own)
            overwrite_then_signal[(1,)](buffer, theirs)
        ctx.synchronize()

    assert len(run(body, 2, races="report").races) == (0 if waits else 1)


def beside_a_copy(ctx, *, announces=True, kernel_first=False):
    """Run a kernel that waits for a flag, and on another stream the copy that it is about."""
    source, ready, out = ctx.zeros(8), ctx.zeros(1, dtype=simrank.int32), ctx.zeros(8)
    values, side = ctx.ones(8), ctx.cuda.Stream()
    side.wait_stream(ctx.cuda.current_stream())
    if not announces:
        ready.fill_(1)
    if kernel_first:
        double_once_ready[(1,)](source, ready, out)
    with ctx.cuda.stream(side):
        source.copy_(values)
        if announces:
            ready.fill_(1)
    if not kernel_first:
        double_once_ready[(1,)](source, ready, out)
    return out


@pytest.mark.parametrize("kernel_first", [True, False])
def test_a_kernel_may_wait_for_the_flag_that_follows_a_copy(run, kernel_first):
    """Nothing of the host orders them, and nothing has to: copies beside a product are made so."""

    def body(rank, ctx):
        assert beside_a_copy(ctx, kernel_first=kernel_first).tolist() == [2.0] * 8

    run(body, 1, races="error")


def test_a_copy_that_no_flag_follows_races_with_a_kernel_that_waits(run):
    """The kernel waits for something else."""

    def body(rank, ctx):
        with pytest.raises(RaceError, match="double_once_ready reads"):
            beside_a_copy(ctx, announces=False)

    run(body, 1, races="error")


def test_a_kernel_that_waits_may_read_what_another_stream_reads(run):
    """Although peers could write it."""

    def body(rank, ctx):
        source, ready = ctx.ones(8), ctx.ones(1, dtype=simrank.int32)
        out, side = ctx.zeros(8), ctx.cuda.Stream()
        side.wait_stream(ctx.cuda.current_stream())
        with ctx.cuda.stream(side):
            copied = source.clone()
        double_once_ready[(1,)](source, ready, out)
        side.synchronize()
        assert out.tolist() == [2.0] * 8
        assert copied.sum().item() == 8

    run(body, 1, races="error")


def test_a_release_for_one_device_does_not_order_another(run):
    """Between devices the scope is sys."""
    assert len(signalled(run, "release", "gpu", races="report").races) == 1


def test_races_may_be_errors_of_the_rank(run):
    """Raised in the program that reads."""
    with pytest.raises(SpawnException) as caught:
        signalled(run, "relaxed", races="error")
    assert isinstance(caught.value.errors[1], ProgramRaceError)


@triton.jit
def same_place(counter, out, DIFFERENT: tl.constexpr):
    tl.atomic_add(counter, 1, sem="relaxed")
    tl.store(out, tl.program_id(0) * DIFFERENT)


def test_programs_that_store_different_values_to_one_place_race(run):
    """Equal values are no finding."""

    def body(rank, ctx, different):
        counter, out = ctx.zeros(1, dtype=simrank.int32), ctx.zeros(1, dtype=simrank.int32)
        same_place[(3,)](counter, out, DIFFERENT=different, mode="tasks")
        ctx.synchronize()

    assert run(body, 1, 0, races="report").races == []
    (race,) = run(body, 1, 1, races="report").races
    assert race.second.verb == "writes"
    assert "to fix: let one program store there" in str(race)


@triton.jit
def meet_on_the_device(counter, target):
    tl.atomic_add(counter, 1, sem="release")
    while tl.atomic_add(counter, 0, sem="acquire") < target:
        pass


def test_flags_forget_programs_that_everything_is_ordered_behind(run):
    """Else every launch makes the next ones slower, and takes more memory."""

    def body(rank, ctx):
        counter = ctx.zeros(1, dtype=simrank.int32)
        for launch in range(20):
            meet_on_the_device[(4,)](counter, 4 * (launch + 1))
        ctx.synchronize()
        known = races_of(ctx.devices[0].races)
        clocks = [c for flags in known.flags.values() for f in flags.values() for c in f.values()]
        assert max(sum(n > 0 for n in clock) for clock in clocks) <= 4

    assert run(body, 1, races="report").races == []


@pytest.mark.parametrize(
    "name",
    ["ring_all_reduce", "one_shot_all_reduce", "two_shot_all_reduce", "all_gather",
     "reduce_scatter", "all_to_all"],
)  # fmt: skip
def test_correct_kernels_on_channels_have_no_findings(run, name):
    """Two launches in a row, on memory that is used again."""
    algorithm = KernelAlgorithm(
        name, f"benches.kernels.{name}", {"num_channels": 2, "num_slots": 2, "slot_size": 32}
    )

    def body(rank, ctx):
        dist.init_process_group("nccl")
        source, target = ctx.ones(80), ctx.zeros(160)
        prepared = algorithm.prepare(40, "float32")
        for _ in range(2):
            prepared.launch(source, target)
        ctx.synchronize()

    assert run(body, 2, races="report").races == []


def test_published_kernels_have_no_findings(run):
    """Barriers in inline PTX order the programs of all ranks."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer = symm_mem.empty(128, dtype=simrank.bfloat16)
        buffer.fill_(1.0)
        handle = symm_mem.rendezvous(buffer)
        for _ in range(2):
            published.two_shot_all_reduce[(2,)](
                handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev, 128,
                rank=rank, world_size=2, BLOCK_SIZE=16,
            )  # fmt: skip
        assert np.all(buffer.float().numpy() == 4.0)

    assert run(body, 2, races="report").races == []


@triton.jit
def read_peer_then_overwrite_own(mine, theirs, out, pads, rank, HAS_BARRIER: tl.constexpr):
    offs = tl.arange(0, 8)
    channels.barrier(pads, 0, rank, 2)
    tl.store(out + offs, tl.load(theirs + offs))
    if HAS_BARRIER:
        channels.barrier(pads, 0, rank, 2)
    tl.store(mine + offs, offs + 7.0)


@pytest.mark.parametrize("has_barrier", [False, True])
def test_a_store_to_what_a_peer_still_reads_is_a_race(run, has_barrier):
    """The second barrier of a symmetric-memory kernel is the one that people forget."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer = symm_mem.empty(8)
        buffer.fill_(float(rank))
        handle = symm_mem.rendezvous(buffer)
        peer, out = handle.get_buffer(1 - rank, (8,), simrank.float32), ctx.zeros(8)
        read_peer_then_overwrite_own[(1,)](
            buffer, peer, out, handle.signal_pad_ptrs_dev, rank, HAS_BARRIER=has_barrier
        )
        ctx.synchronize()

    races = run(body, 2, races="report").races
    assert bool(races) is not has_barrier
    if races:
        assert (races[0].first.verb, races[0].second.verb) == ("reads", "writes")
        assert "after the load and wait" in str(races[0])


@triton.jit
def every_other(memory, flag, rank, FIRST: tl.constexpr):
    offs = 2 * tl.arange(0, 8)
    if rank == 0:
        tl.load(memory + offs)
        tl.atomic_xchg(flag, 1, sem="relaxed", scope="sys")
    else:
        while tl.atomic_add(flag, 0, sem="relaxed", scope="sys") != 1:
            pass
        tl.store(memory + FIRST + offs, 3.0)


@pytest.mark.parametrize(("first", "num_races"), [(0, 1), (1, 0)])
def test_loads_with_gaps_count_for_what_they_load(run, first, num_races):
    """A store between the elements that another program loads races with nothing."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        handle = symm_mem.rendezvous(symm_mem.empty(16))
        memory = handle.get_buffer(0, (16,), simrank.float32)
        flag = handle.get_signal_pad(1)
        every_other[(1,)](memory, flag, rank, FIRST=first)
        ctx.synchronize()

    assert len(run(body, 2, races="report").races) == num_races


@triton.jit
def load_wider(buffer, flag, out):
    if tl.program_id(0) == 0:
        tl.store(buffer + 1, 7)
        tl.atomic_add(flag, 1, sem="relaxed")
    else:
        while tl.atomic_add(flag, 0, sem="relaxed") != 1:
            pass
        tl.store(out, tl.load(buffer.to(tl.pointer_type(tl.int64))))


def test_a_load_is_checked_for_every_byte_of_its_elements(run):
    """A store may have written their last ones only."""

    def body(rank, ctx):
        buffer, flag = ctx.zeros(2, dtype=simrank.int32), ctx.zeros(1, dtype=simrank.int32)
        out = ctx.zeros(1, dtype=simrank.int64)
        load_wider[(2,)](buffer, flag, out)
        assert out.item() == 7 << 32

    assert len(run(body, 1, races="report").races) == 1


@triton.jit
def look_at_several(table, out, N: tl.constexpr):
    flags = table + tl.arange(0, N)
    if tl.program_id(0) == N:
        seen = 0
        while seen != N:
            pointers = tl.load(flags).to(tl.pointer_type(tl.int32))
            seen = tl.sum(tl.load(pointers, volatile=True))
        tl.store(out, seen)
    else:
        flag = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.int32))
        tl.store(flag, 1)


def test_a_volatile_load_looks_at_all_its_flags(run):
    """Also where they lie in several buffers."""

    def body(rank, ctx):
        flags = [ctx.zeros(1, dtype=simrank.int32) for _ in range(4)]
        table = simrank.tensor([flag.data_ptr() for flag in flags], dtype=simrank.int64)
        out = ctx.zeros(1, dtype=simrank.int32)
        look_at_several[(5,)](table, out, N=4)
        assert out.item() == 4

    run(body, 1, races="error")


@triton.jit
def count_up(flag):
    tl.atomic_add(flag, 1, sem="acq_rel")


def test_what_flags_carry_does_not_grow_with_the_launches(run):
    """Programs that all are ordered behind are forgotten; launches of none change nothing."""

    def body(rank, ctx):
        flag = ctx.zeros(1, dtype=simrank.int32)
        for num_programs in (0, 4, 4, 4, 0, 4):
            count_up[(num_programs,)](flag)
            flag.item()
        known = races_of(flag.device.races)
        (clocks,) = known.flags[flag.storage].values()
        assert [sum(n > 0 for n in clock) for clock in clocks.values()] == [4]

    run(body, 1, races="error")


@triton.jit
def produce_late(x, flag, out):
    if tl.program_id(0) == 0:
        for _ in range(20):
            tl.load(out + 1, volatile=True)
        tl.store(x, 1.0)
        tl.atomic_xchg(flag, 1, sem="release")
    else:
        while tl.atomic_add(flag, 0, sem="acquire") != 1:
            pass
        tl.store(out, tl.load(x))


def test_what_the_host_has_set_back_is_changed_by_the_same_value_again(run):
    """In the second launch the flag is stale: zero is read before one is stored."""

    def body(rank, ctx):
        x, out, flag = ctx.zeros(1), ctx.zeros(2), ctx.zeros(1, dtype=simrank.int32)
        for _ in range(2):
            x.zero_()
            produce_late[(2,)](x, flag, out)
        assert out[0].item() == 0

    races = run(body, 1, races="report").races
    assert any(isinstance(race, ProgramRaceError) for race in races)


@triton.jit
def store_zero_beside_a_load(x, out, counter):
    if tl.program_id(0) == 0:
        tl.store(x, 0.0)
    else:
        tl.store(out, tl.load(x))
    tl.atomic_add(counter, 1, sem="release")


@triton.jit
def store_one(x, counter):
    tl.store(x, 1.0)
    tl.atomic_add(counter, 1, sem="release")


def test_a_store_of_what_the_host_has_set_changes_nothing(run):
    """Though an earlier launch had stored something else."""

    def body(rank, ctx):
        x, out, counter = ctx.zeros(1), ctx.zeros(1), ctx.zeros(1, dtype=simrank.int32)
        store_one[(1,)](x, counter)
        x.zero_()
        store_zero_beside_a_load[(2,)](x, out, counter)
        assert out.item() == 0

    run(body, 1, races="error")


@triton.jit
def store_own_number(x, counter):
    tl.store(x, tl.program_id(0).to(tl.float32))
    tl.atomic_add(counter, 1, sem="release")


def test_a_store_of_what_is_there_races_with_stores_of_something_else(run):
    """In this order it changes nothing; in the other one it does."""

    def body(rank, ctx):
        x, counter = ctx.zeros(1), ctx.zeros(1, dtype=simrank.int32)
        store_own_number[(2,)](x, counter)
        ctx.synchronize()

    assert len(run(body, 1, races="report").races) == 1


# ---- what a flag carried when it first might have ended a wait ----


def flags(*values):
    """Return values of a flag that went from 0 to each; each carries one program more."""
    with simrank.Context() as ctx:
        storage, known, before = ctx.zeros(1, dtype=ctx.int32).storage, FlagValues(), 0
    for program, value in enumerate(values, 1):
        known.note(storage, 0, (before, value), {0: dict.fromkeys(range(1, program + 1), 1)})
        before = value
    return known, Look(storage, 0, known.of(storage, 0), {}, (0,), False), storage


def sure(comparison, bound, *values):
    _, look, _ = flags(*values)
    clock = values_of.sure(look, LoopCondition(comparison, bound))
    return clock if clock is None else set(clock)


def test_a_count_is_sure_of_those_that_it_waits_for():
    """Who came later has come by luck."""
    assert sure("Lt", 2, 1, 2, 3) == {1, 2}
    assert sure("LtE", 2, 1, 2, 3) == {1, 2, 3}
    assert sure("Lt", 0, 1, 2, 3) == set()


def test_a_flag_that_was_set_back_begins_anew():
    """What ended a wait before it is past."""
    assert sure("NotEq", 1, 1, 0, 1, 1) == {1, 2, 3}
    assert sure("Gt", 0, 1, 0, 0) == {1, 2}
    assert sure("GtE", 1, 1, 0) == {1, 2}
    assert sure("Eq", 0, 0, 1) == {1, 2}


def test_what_is_not_known_says_nothing():
    """A value that ends nothing, and a flag that nobody has written."""
    assert sure("Lt", 5, 1, 2) is None
    assert sure("Lt", 1) is None


def test_a_write_that_was_not_seen_makes_what_was_before_unsure():
    """Nothing is left out then of what the flag carries."""
    known, look, storage = flags(1, 2)
    known.note(storage, 0, (7, 8), {0: {9: 1}})
    look = look._replace(values=known.of(storage, 0))
    assert values_of.sure(look, LoopCondition("Lt", 1)) == {9: 1}
    known.forget(storage, 0, 4)
    assert known.of(storage, 0) == ()


# ---- what reports advise ----


@triton.jit
def meets(counter, parts, out, NEED: tl.constexpr):
    pid, n = tl.program_id(0), tl.num_programs(0)
    tl.store(parts + pid, tl.load(parts + pid) + pid + 1)
    tl.atomic_add(counter, 1, sem="acq_rel")
    while tl.atomic_add(counter, 0, sem="acquire") < NEED:
        pass
    tl.store(out + pid, tl.load(parts + (pid + 1) % n))


@triton.jit
def waits_for_a_flag(flag, x, out):
    if tl.program_id(0) == 0:
        tl.store(x, tl.load(x) + 1)
        tl.atomic_xchg(flag, 1, sem="release")
    else:
        while tl.atomic_add(flag, 0, sem="acquire") != 1:
            pass
        tl.store(out, tl.load(x))


def advice_of(body):
    """The last line of each race."""
    with simrank.Context("hgx_h100", races="report") as ctx:
        ctx.multiprocessing.spawn(lambda _rank: body(ctx), nprocs=1)
    return [str(race).splitlines()[-1] for race in ctx.races]


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_counter_that_is_never_reset_is_named(is_reset):
    """The second launch's barrier is over before it begins."""

    def body(ctx):
        counter, parts, out = ctx.zeros(1, dtype="int32"), ctx.zeros(8), ctx.zeros(8)
        for _ in range(2):
            meets[(8,)](counter, parts, out, NEED=8)
            if is_reset:
                counter.zero_()
        ctx.cuda.synchronize()

    advice = advice_of(body)
    assert len(advice) == (not is_reset)
    for line in advice:
        assert (
            "set back the counter at byte 0 of a buffer (allocated at test_happens_before.py:"
            in line
        )
        assert "it held 8 as this launch began" in line


def test_a_flag_that_is_never_reset_is_named():
    """It has the value of the launch before."""

    def body(ctx):
        flag, x, out = ctx.zeros(1, dtype="int32"), ctx.zeros(1), ctx.zeros(1)
        for _ in range(2):
            waits_for_a_flag[(2,)](flag, x, out)
        ctx.cuda.synchronize()

    assert any("set back the flag at byte 0" in line for line in advice_of(body))


def test_a_barrier_of_the_wrong_count_is_named():
    """One signal too few is a race, one too many a hang that shows what is there."""

    def few(ctx):
        meets[(8,)](ctx.zeros(1, dtype="int32"), ctx.zeros(8), ctx.zeros(8), NEED=7)
        ctx.cuda.synchronize()

    def many(_rank):
        counter = ctx.zeros(1, dtype="int32")
        meets[(8,)](counter, ctx.zeros(8), ctx.zeros(8), NEED=9)
        counter.item()

    assert "count all signals: it ends at 7 or more" in advice_of(few)[0]
    with simrank.Context("hgx_h100") as ctx, pytest.raises(DeadlockError) as caught:
        ctx.multiprocessing.spawn(many, nprocs=1)
    assert "wait for a change of byte 0 from 8 to 9 or more" in str(caught.value)
