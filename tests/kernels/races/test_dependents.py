"""Launches that begin before the one in front of them has ended."""

import pytest
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

import simrank


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
