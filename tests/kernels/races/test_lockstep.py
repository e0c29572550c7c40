"""Programs of one launch that store different values to one address: found in lockstep too."""

import pytest

from simrank.errors import SpawnException
from simrank.kernels.races.findings import ProgramRaceError

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


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


def races(run, how, mode="auto", **options):
    """Launch it with races reported."""

    def body(rank, ctx):
        store[(6,)](ctx.zeros(64, dtype=ctx.int32), HOW=how, mode=mode)
        ctx.synchronize()

    return run(body, 1, **{"races": "report", **options}).races


@pytest.mark.parametrize("mode", ["auto", "one-by-one", "masked"])
@pytest.mark.parametrize(
    "how", ["one address", "overlapping blocks", "two lines", "by address", "only some"]
)
def test_different_values_at_one_place_are_a_race(run, how, mode):
    """Whatever the mode, with programs and lines."""
    found = races(run, how, mode)
    assert found
    assert all(isinstance(race, ProgramRaceError) for race in found)
    first, one, other = str(found[0]).splitlines()[:3]
    assert first.startswith("race (proved) at t=")
    assert one.startswith("  program ")
    assert "of kernel 'store' of rank 0 writes at test_lockstep.py:" in one
    assert one.split()[1] != other.split()[1]


@pytest.mark.parametrize("how", ["same value", "own addresses", "after an atomic"])
def test_what_depends_on_no_order_is_no_race(run, how):
    """Equal values, addresses of one program, and what atomics may have ordered."""
    assert races(run, how) == []


def test_such_a_race_may_be_an_error(run):
    """Raised in the rank that launched it."""
    with pytest.raises(SpawnException) as caught:
        races(run, "one address", races="error")
    assert isinstance(caught.value.errors[0], ProgramRaceError)
