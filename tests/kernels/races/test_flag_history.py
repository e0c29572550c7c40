"""What a flag carried when it first might have ended a wait."""

import pytest
import triton
import triton.language as tl

import simrank
from simrank.errors import DeadlockError
from simrank.kernels.races import flag_history as values_of
from simrank.kernels.races.flag_history import FlagValues, Look, Wait


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
    clock = values_of.sure(look, Wait(comparison, bound))
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
    assert values_of.sure(look, Wait("Lt", 1)) == {9: 1}
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
            "set back the counter at byte 0 of a buffer (allocated at test_flag_history.py:" in line
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
