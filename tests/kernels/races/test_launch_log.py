"""Programs of one launch that store different values to one address: found in lockstep too."""

import pytest
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

import simrank
import simrank.distributed as dist
from simrank.distributed import symmetric_memory
from simrank.errors import SpawnException
from simrank.kernels.races.findings import ProgramRaceError


@triton.jit
def store(out, HOW: tl.constexpr):  # noqa: C901 - a case each
    pid = tl.program_id(0)
    lanes = tl.arange(0, 8)
    if HOW == "one address":
        tl.store(out, pid)
    elif HOW == "overlapping blocks":
        tl.store(out + 4 * pid + lanes, lanes + pid)
    elif HOW == "two lines":
        tl.store(out + 2 * pid, 1)
        tl.store(out + 2 * pid + 2, 5, mask=pid == 0)
    elif HOW == "by address":
        tl.store((out.to(tl.int64) + 4 * (pid // 2)).to(tl.pointer_type(tl.int32)), pid)
    elif HOW == "only some":
        if pid % 2:
            tl.store(out, pid)
    elif HOW == "same value":
        tl.store(out + 4 * pid + lanes, 7)
        tl.store(out, 7)
    elif HOW == "own addresses":
        tl.store(out + 8 * pid + lanes, pid)
        tl.store(out + 8 * pid + lanes, lanes)
    elif HOW == "after an atomic":
        if tl.atomic_add(out + 60, 1) == tl.num_programs(0) - 1:
            tl.store(out, pid)
        else:
            tl.store(out, -1)
    elif HOW == "before an atomic":
        tl.store(out, -1)
        if tl.atomic_add(out + 60, 1) == tl.num_programs(0) - 1:
            tl.store(out, pid)
    elif HOW == "all and then one":
        tl.store(out, 1)
        tl.store(out, 2, mask=pid == 3)


def races(run, how, mode="auto", **options):
    """Launch it with races reported."""

    def body(rank, ctx):
        store[(6,)](ctx.zeros(64, dtype=ctx.int32), HOW=how, mode=mode)
        ctx.synchronize()

    return run(body, 1, **{"races": "report", **options}).races


@pytest.mark.parametrize("mode", ["auto", "one-by-one", "masked"])
@pytest.mark.parametrize(
    "how",
    ["one address", "overlapping blocks", "two lines", "by address", "only some", "after an atomic",
     "all and then one"],
)  # fmt: skip
def test_different_values_at_one_place_are_a_race(run, how, mode):
    """Whatever the mode, with programs and lines."""
    found = races(run, how, mode)
    assert found
    assert all(isinstance(race, ProgramRaceError) for race in found)
    first, one, other = str(found[0]).splitlines()[:3]
    assert first.startswith("race (proved) at t=")
    assert one.startswith("  program ")
    assert "of kernel 'store' of rank 0 writes at test_launch_log.py:" in one
    assert one.split()[1] != other.split()[1]


@pytest.mark.parametrize("how", ["same value", "own addresses", "before an atomic"])
def test_what_depends_on_no_order_is_no_race(run, how):
    """Equal values, addresses of one program, and what atomics have ordered."""
    assert races(run, how) == []


def test_such_a_race_may_be_an_error(run):
    """Raised in the rank that launched it."""
    with pytest.raises(SpawnException) as caught:
        races(run, "one address", races="error")
    assert isinstance(caught.value.errors[0], ProgramRaceError)


@triton.jit
def neighbours(x, n, HOW: tl.constexpr):
    pid = tl.program_id(0)
    if HOW == "reads the next one":
        tl.store(x + pid, tl.load(x + pid) + tl.load(x + (pid + 1) % n))
    elif HOW == "reads it where a mask says":
        there = tl.load(x + (pid + 1) % n, mask=pid == 2, other=0.0)
        tl.store(x + pid, tl.load(x + pid) + there + 1)
    elif HOW == "reads it after it was stored":
        tl.store(x + pid, pid + 1.0)
        tl.store(x + n + pid, tl.load(x + (pid + 1) % n))
    elif HOW == "all read one":
        tl.store(x + 1 + pid, tl.load(x + 2) + 1)
    elif HOW == "by address":
        there = (x.to(tl.int64) + 4 * ((pid + 1) % n)).to(tl.pointer_type(tl.float32))
        tl.store(x + pid, tl.load(there) + 1)
    elif HOW == "some branch":
        if pid % 2:
            tl.store(x + pid, 3.0)
        else:
            tl.store(x + n + pid, tl.load(x + pid + 1))


@triton.jit
def alone(x, n, HOW: tl.constexpr):
    pid = tl.program_id(0)
    if HOW == "in place":
        tl.store(x + pid, tl.load(x + pid) * 2 + 1)
    elif HOW == "masked off":
        there = tl.load(x + (pid + 1) % n, mask=pid < 0, other=1.0)
        tl.store(x + pid, tl.load(x + pid) + there)
    elif HOW == "stores what was there":
        tl.store(x + pid, tl.load(x + (pid + 1) % n))
    elif HOW == "elsewhere":
        tl.store(x + n + pid, tl.load(x + (pid + 1) % n) + 1)
    elif HOW == "all store one value":
        tl.store(x, 7.0)
        tl.store(x + n + pid, tl.load(x))


READS = ["reads the next one", "reads it where a mask says", "reads it after it was stored",
         "all read one", "by address", "some branch"]  # fmt: skip


@pytest.mark.parametrize("mode", ["auto", "one-by-one", "masked", "shuffled"])
@pytest.mark.parametrize("how", READS)
def test_a_load_of_what_another_program_stores_is_a_race(run, how, mode):
    """In lockstep every program has loaded before one stores; a device has no such order."""

    def body(rank, ctx):
        neighbours[(6,)](ctx.arange(16).to(ctx.float32), 6, HOW=how, mode=mode)
        ctx.synchronize()

    found = run(body, 1, races="report").races
    assert found
    assert all({race.first.verb, race.second.verb} == {"reads", "writes"} for race in found)
    assert "test_launch_log.py" in str(found[0])


@pytest.mark.parametrize("mode", ["auto", "one-by-one", "masked"])
@pytest.mark.parametrize(
    "how", ["in place", "masked off", "stores what was there", "elsewhere", "all store one value"]
)
def test_loads_of_what_nobody_else_changes_are_no_race(run, how, mode):
    """A program's own stores, masked-off lanes, and stores that change nothing."""

    def body(rank, ctx):
        alone[(6,)](ctx.ones(16), 6, HOW=how, mode=mode)
        ctx.synchronize()

    assert run(body, 1, races="report").races == []


@triton.jit
def reduce_in_last(x, parts, count, out, SEM: tl.constexpr, SCOPE: tl.constexpr, B: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(parts + pid, tl.sum(tl.load(x + pid * B + tl.arange(0, B))))
    if SEM == "fences":
        tl.inline_asm_elementwise(
            "fence.acq_rel.gpu; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )
        turn = tl.atomic_add(count, 1, sem="relaxed")
    else:
        turn = tl.atomic_add(count, 1, sem=SEM, scope=SCOPE)
    if turn == tl.num_programs(0) - 1:
        if SEM == "fences":
            tl.inline_asm_elementwise(
                "fence.acq_rel.gpu; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
            )
        total = 0.0
        for other in range(tl.num_programs(0)):
            total += tl.load(parts + other)
        tl.store(out, total)


@pytest.mark.parametrize("mode", ["auto", "one-by-one", "tasks"])
@pytest.mark.parametrize(
    ("sem", "scope", "is_right"),
    [("acq_rel", "gpu", True), ("fences", "gpu", True), ("relaxed", "gpu", False),
     ("release", "gpu", False), ("acquire", "gpu", False), ("acq_rel", "cta", False)],
)  # fmt: skip
def test_the_last_program_may_reduce_what_it_has_acquired(run, sem, scope, is_right, mode):
    """Relaxed atomics, or those of one side only, or of a block, order nothing."""

    def body(rank, ctx):
        parts, out = ctx.zeros(12), ctx.zeros(1)
        count = ctx.zeros(1, dtype=ctx.int32)
        reduce_in_last[(12,)](ctx.ones(96), parts, count, out, SEM=sem, SCOPE=scope, B=8, mode=mode)
        assert out.item() == 96

    assert (run(body, 1, races="report").races == []) is is_right


def test_without_race_checks_a_sample_of_programs_gives_a_hint(run):
    """The first programs of a launch that loads from what it stores to."""

    def body(rank, ctx):
        for _ in range(2):
            neighbours[(600,)](ctx.arange(601).to(ctx.float32), 600, HOW=READS[0])
            alone[(600,)](ctx.ones(600), 600, HOW="in place")
        ctx.synchronize()

    (hint,) = run(body, 1).findings
    assert hint.startswith("  program ")
    assert "of kernel 'neighbours' of rank 0 reads at test_launch_log.py:" in hint
    assert "writes at test_launch_log.py:" in hint


def test_atomics_and_other_memory_give_no_hint(run):
    """They may order programs; what is only loaded or only stored needs no order."""

    def body(rank, ctx):
        alone[(6,)](ctx.ones(16), 6, HOW="elsewhere")
        out, count = ctx.zeros(1), ctx.zeros(1, dtype=ctx.int32)
        reduce_in_last[(12,)](
            ctx.ones(96), ctx.zeros(12), count, out, SEM="relaxed", SCOPE="gpu", B=8
        )
        ctx.synchronize()

    assert run(body, 1).findings == []


@triton.jit
def last_stores_by_number(x, y, address, n):
    pid = tl.program_id(0)
    there = tl.load(x + (pid + 1) % n)
    tl.store(y + pid, there)
    if pid == n - 2:
        tl.store((address + 4 * pid).to(tl.pointer_type(tl.float32)), there + 1)


@pytest.mark.parametrize("mode", ["auto", "masked", "one-by-one", "shuffled", "tasks"])
def test_loads_count_of_memory_that_is_stored_to_by_a_number_later(run, mode):
    """Of a tensor that is an argument too."""

    def body(rank, ctx):
        x = ctx.ones(16)
        last_stores_by_number[(12,)](x, ctx.ones(16), x.data_ptr(), 12, mode=mode)
        ctx.synchronize()

    (race,) = run(body, 1, races="report").races
    assert {race.first.verb, race.second.verb} == {"reads", "writes"}


@triton.jit
def one_publishes(x, peers, WHO: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(x, pid)
    if pid == WHO:
        tl.store(tl.load(peers).to(tl.pointer_type(tl.float32)), 1.0)


@pytest.mark.parametrize("who", [0, 20])
def test_races_are_told_of_programs_that_ran_before_one_published(run, who):
    """In lockstep, while the others are tasks: what is not looked for between them is said."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        handle = symmetric_memory.rendezvous(symmetric_memory.empty(64))
        if rank == 0:
            peers = ctx.tensor([handle.buffer_ptrs[1]], dtype=ctx.int64)
            ctx.launch(one_publishes, (24,), ctx.zeros(4), peers, WHO=who, mode="batched")
        ctx.synchronize()

    context = run(body, 2, races="report")
    assert context.races
    reported = "programs that ran before one stored to another rank are not looked for"
    assert any(reported in finding for finding in context.findings) == (who == 20)


# ---- launches that begin before the one in front of them has ended ----


@triton.jit
def first(x, y, TRIGGERS: tl.constexpr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    if TRIGGERS:
        gdc_launch_dependents()
    tl.store(x + i, tl.load(y + i) + 1)


@triton.jit
def second(x, y, z, HOW: tl.constexpr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    if HOW == "waits":
        own = tl.load(z + i)
        gdc_wait()
        tl.store(y + i, tl.load(x + i) + own)
    elif HOW == "waits too late":
        own = tl.load(x + i)
        gdc_wait()
        tl.store(z + i, own)
    elif HOW == "loads":
        tl.store(z + i, tl.load(x + i))
    elif HOW == "overwrites what is stored":
        tl.store(x + i, 7)
    elif HOW == "overwrites what is loaded":
        tl.store(y + i, 7)
    elif HOW == "adds":
        tl.atomic_add(x + i, 7)
    elif HOW == "touches others":
        tl.store(z + i, 7)


RACING = [
    "waits too late",
    "loads",
    "overwrites what is stored",
    "overwrites what is loaded",
    "adds",
]


def found(how, *, triggers=True, launch_pdl=True, between=False):
    """The races of two launches, one behind the other."""

    def body(_rank):
        x, y, z = (ctx.zeros(16, dtype="int32") for _ in range(3))
        for _ in range(2):
            first[(2,)](x, y, TRIGGERS=triggers, N=8, launch_pdl=launch_pdl)
            if between:
                z.add_(1)
            second[(2,)](x, y, z, HOW=how, N=8, launch_pdl=launch_pdl)
        ctx.cuda.synchronize()

    with simrank.Context("hgx_h100", races="report") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
    return ctx.races


@pytest.mark.parametrize("how", RACING)
def test_what_does_not_wait_for_the_launch_in_front_races_with_it(how):
    """Its loads and stores, with both lines and a way to mend it."""
    (race,) = found(how)
    assert (race.first.name, race.second.name) == (
        "program 0 of kernel 'first' of rank 0", "program 0 of kernel 'second' of rank 0",
    )  # fmt: skip
    assert race.first.line == first.starting_line_number + 5
    assert "gdc_wait()" in str(race).splitlines()[-1]


@pytest.mark.parametrize("how", ["waits", "touches others"])
def test_what_waits_or_touches_other_memory_is_no_race(how):
    """Loads of other memory may come before the wait."""
    assert found(how) == []


@pytest.mark.parametrize("options", [{"triggers": False}, {"launch_pdl": False}, {"between": True}])
def test_launches_end_before_those_behind_unless_both_say_otherwise(options):
    """The first lets dependents begin, the second is one, and nothing stands between."""
    assert found("loads", **options) == []
