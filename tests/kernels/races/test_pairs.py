"""Programs of one launch race, or do not, whichever way they run: held against a definition.

What a launch does is drawn as data, played by one kernel, and judged by `expected`: two stores race
unless they store the same, and a load and a store do unless the load finds the same without it.
"""

from itertools import combinations
from typing import NamedTuple

import pytest
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

import simrank

MODES = ("auto", "masked", "one-by-one", "shuffled", "tasks")
WHERES = ("first", "own", "next", "pair", "block", "slide", "same place", "byte", "every second")
WHOS = ("all", "zero", "last", "odd", "branch of zero", "branch of odd")


class Act(NamedTuple):
    """What programs do at one line.

    Attributes:
        what: "load" or "store"; "add" is an atomic elsewhere, which orders nothing.
        where: Which elements, see `places`.
        who: Which programs.
        value: What is stored in each byte; None: each its own id.
    """

    what: str
    where: str
    who: str
    value: int | None


NOTHING = Act("add", "first", "all", 1)


@triton.jit
def access(  # noqa: C901 - a case each
    x, flags, WHAT: tl.constexpr, WHERE: tl.constexpr, VALUE: tl.constexpr, mask
):
    pid, n = tl.program_id(0), tl.num_programs(0)
    there = x
    if WHERE == "own":
        there = x + pid
    elif WHERE == "next":
        there = x + (pid + 1) % n
    elif WHERE == "pair":
        there = x + pid // 2
    elif WHERE == "block":
        there = x + tl.arange(0, 4)
    elif WHERE == "slide":
        there = x + pid + tl.arange(0, 2)
    elif WHERE == "same place":
        there = x + 3 + pid // n
    elif WHERE == "byte":
        there = x.to(tl.pointer_type(tl.int8)) + 5
    elif WHERE == "every second":
        there = x + pid + 2 * tl.arange(0, 2)
    if WHAT == "add":
        tl.atomic_add(flags + 1, 1, sem="relaxed")
    elif WHAT == "load":
        tl.load(there, mask=mask)
    else:
        value = pid if VALUE is None else VALUE
        tl.store(there, value if WHERE == "byte" else value * 0x01010101, mask=mask)


@triton.jit
def act(x, flags, WHAT: tl.constexpr, WHERE: tl.constexpr, WHO: tl.constexpr, VALUE: tl.constexpr):
    pid, n = tl.program_id(0), tl.num_programs(0)
    if WHO == "all":
        access(x, flags, WHAT, WHERE, VALUE, None)
    elif WHO == "zero":
        access(x, flags, WHAT, WHERE, VALUE, pid == 0)
    elif WHO == "last":
        access(x, flags, WHAT, WHERE, VALUE, pid == n - 1)
    elif WHO == "odd":
        access(x, flags, WHAT, WHERE, VALUE, pid % 2 == 1)
    elif WHO == "branch of zero":
        if pid == 0:
            access(x, flags, WHAT, WHERE, VALUE, None)
    elif pid % 2:
        access(x, flags, WHAT, WHERE, VALUE, None)


@triton.jit
def play(
    x, flags, SEM: tl.constexpr,
    WHAT0: tl.constexpr, WHERE0: tl.constexpr, WHO0: tl.constexpr, VALUE0: tl.constexpr,
    WHAT1: tl.constexpr, WHERE1: tl.constexpr, WHO1: tl.constexpr, VALUE1: tl.constexpr,
    WHAT2: tl.constexpr, WHERE2: tl.constexpr, WHO2: tl.constexpr, VALUE2: tl.constexpr,
    WHAT3: tl.constexpr, WHERE3: tl.constexpr, WHO3: tl.constexpr, VALUE3: tl.constexpr,
):  # fmt: skip
    act(x, flags, WHAT0, WHERE0, WHO0, VALUE0)
    act(x, flags, WHAT1, WHERE1, WHO1, VALUE1)
    act(x, flags, WHAT2, WHERE2, WHO2, VALUE2)
    if SEM is None:
        act(x, flags, WHAT3, WHERE3, WHO3, VALUE3)
    else:
        if tl.atomic_add(flags, 1, sem=SEM) == tl.num_programs(0) - 1:
            tl.atomic_xchg(flags + 2, tl.program_id(0), sem="relaxed")
            access(x, flags, WHAT3, WHERE3, VALUE3, None)


def places(where, pid, n):
    """Return the bytes of an access by a program."""
    if where == "byte":
        return [5]
    elements = {
        "first": [0], "own": [pid], "next": [(pid + 1) % n], "pair": [pid // 2],
        "block": [0, 1, 2, 3], "slide": [pid, pid + 1], "same place": [3],
        "every second": [pid, pid + 2],
    }[where]  # fmt: skip
    return [4 * element + byte for element in elements for byte in range(4)]


def does(who, pid, n):
    """Return whether a program is among those who do something."""
    return {"all": True, "zero": pid == 0, "last": pid == n - 1}.get(
        who.removeprefix("branch of "), pid % 2 == 1
    )


def expected(acts, n, sem, last):
    """Return which kinds of races there are: "reads writes" and "writes writes"."""
    done = {}  # By byte: program, whether it is behind all, what it stored, what it finds alone.
    for number, (what, where, who, value) in enumerate(acts):
        is_behind = number == 3 and sem is not None
        for pid in range(n):
            if what == "add" or not (pid == last if is_behind else does(who, pid, n)):
                continue
            stored = None if what == "load" else pid if value is None else value
            for byte in places(where, pid, n):
                accesses = done.setdefault(byte, [])
                own = [s for p, _, s, _ in accesses if p == pid and s is not None]
                accesses.append((pid, is_behind, stored, own[-1] if own else 0))
    kinds = set()
    for accesses in done.values():
        for (p, behind, stored, found), (q, also, other, there) in combinations(accesses, 2):
            if p == q or (behind != also and sem != "relaxed"):
                continue
            if None not in (stored, other) and stored != other:
                kinds.add("writes writes")
            elif (stored is None and other not in (None, found)) or (
                other is None and stored not in (None, there)
            ):
                kinds.add("reads writes")
    return kinds


def found(acts, n, sem, mode):
    """Return the kinds of races that a launch reports, and who was the last one."""
    arguments = {
        f"{name}{number}": value
        for number, one in enumerate(acts)
        for name, value in zip(("WHAT", "WHERE", "WHO", "VALUE"), one, strict=True)
    }

    def body(rank, ctx):
        x, flags = ctx.zeros(32, dtype=ctx.int32), ctx.zeros(4, dtype=ctx.int32)
        play[(n,)](x, flags, SEM=sem, mode=mode, **arguments)
        lasts.append(flags[2].item())

    lasts = []
    with simrank.Context("hgx_h100", races="report") as ctx:
        ctx.multiprocessing.spawn(body, args=(ctx,), nprocs=1)
    kinds = {" ".join(sorted((race.first.verb, race.second.verb))) for race in ctx.races}
    return kinds, lasts[0]


ACTS = st.tuples(*[
    st.builds(
        Act, st.sampled_from(["store", "store", "load", "add"]), st.sampled_from(WHERES),
        st.sampled_from(WHOS), st.sampled_from([0, 1, 2, None]),
    )
] * 4)  # fmt: skip


def check(acts, n, sem, modes=MODES):
    """Hold what is found in modes against the definition."""
    for mode in modes:
        kinds, last = found(acts, n, sem, mode)
        right = expected(acts, n, sem, last)
        if mode == "tasks" and "writes writes" in right:  # Of a byte it knows the last store alone:
            kinds, right = kinds - {"reads writes"}, right - {"reads writes"}  # loads by luck.
        assert kinds == right, (mode, acts, n, sem)


PLANTED = {
    "all store, then one": [
        Act("store", "first", "all", 1), Act("store", "first", "zero", 2), NOTHING, NOTHING,
    ],
    "all store twice": [
        Act("store", "first", "all", 1), Act("store", "first", "all", 2), NOTHING, NOTHING,
    ],
    "one stores twice, and one as the second": [
        Act("store", "first", "zero", 1), Act("store", "first", "all", 2), NOTHING, NOTHING,
    ],
    "two store alike, then one of them another": [
        Act("store", "first", "odd", 1), Act("store", "first", "last", 2), NOTHING, NOTHING,
    ],
    "all store what was there, then one another": [
        Act("store", "first", "all", 0), Act("load", "first", "odd", 0),
        Act("store", "first", "last", 2), NOTHING,
    ],
    "a block, then one element of it": [
        Act("store", "block", "zero", 1), Act("load", "own", "all", 0), NOTHING, NOTHING,
    ],
    "a byte of an element": [
        Act("store", "block", "all", 1), Act("store", "byte", "odd", 2), NOTHING, NOTHING,
    ],
}  # fmt: skip


HARMLESS = {
    "all store a byte of what they load": [
        Act("store", "byte", "all", 1), Act("load", "own", "all", 0), NOTHING, NOTHING,
    ],
    "all store what they load": [
        Act("store", "block", "all", 1), Act("load", "own", "all", 0), NOTHING, NOTHING,
    ],
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", HARMLESS)
def test_who_loads_what_it_has_stored_is_not_disturbed_by_the_same(name, mode):
    """Others stored just that."""
    assert not expected(HARMLESS[name], 2, None, 1)
    check(HARMLESS[name], 2, None, (mode,))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found_in_each_mode(name, mode):
    """Each of them is a race by the definition too."""
    assert expected(PLANTED[name], 4, None, 3)
    check(PLANTED[name], 4, None, (mode,))


DRAWN = ACTS, st.sampled_from([2, 5, 11]), st.sampled_from([None, None, "acq_rel", "relaxed"])


@settings(max_examples=3)
@given(*DRAWN)
def test_random_programs_race_alike_in_all_modes(acts, n, sem):
    """A few; see below."""
    check(acts, n, sem)


@pytest.mark.slow
@settings(max_examples=600)
@given(*DRAWN)
def test_many_random_programs_race_alike_in_all_modes(acts, n, sem):
    """Stores, loads and atomics behind masks and branches, and one program that ends for all."""
    check(acts, n, sem)


# ---- atomics beside loads and stores ----


@triton.jit
def zeroes_first(y, flag, HOW: tl.constexpr):  # noqa: C901 - a case each
    pid, i = tl.program_id(0), tl.arange(0, 8)
    if HOW == "one stores and all add":
        if pid == 0:
            tl.store(y + i, tl.zeros((8,), tl.float32))
        tl.atomic_add(y + i, 1.0)
    elif HOW == "a result that nothing looks at":
        if pid == 0:
            tl.store(y + i, tl.zeros((8,), tl.float32))
        _old = tl.atomic_add(y + i, 1.0)
    elif HOW == "the first to come stores":
        if tl.atomic_add(flag, 1) == 0:
            tl.store(y + i, tl.zeros((8,), tl.float32))
        tl.atomic_add(y + i, 1.0)
    elif HOW == "all add and one loads":
        tl.atomic_add(y + i, 1.0)
        if pid == 0:
            tl.store(y + 64 + i, tl.load(y + i))
    elif HOW == "one exchanges and others load":
        if pid == 0:
            tl.atomic_xchg(y, 3.0)
        tl.store(y + 64 + pid, tl.load(y))
    elif HOW == "relaxed counter":
        tl.atomic_add(y + i, 1.0, sem="relaxed")
        if tl.atomic_add(flag, 1, sem="relaxed") == tl.num_programs(0) - 1:
            tl.store(y + i, tl.load(y + i) + 1.0)
    elif HOW == "scope of a program":
        tl.atomic_add(y + i, 1.0)
        if tl.atomic_add(flag, 1, scope="cta") == tl.num_programs(0) - 1:
            tl.store(y + i, tl.load(y + i) + 1.0)
    elif HOW == "atomics with the scope of a program":
        tl.atomic_add(y + i, 1.0, scope="cta")
    elif HOW == "reduces through a descriptor":
        rows = tl.make_tensor_descriptor(y, [8, 4], [4, 1], [8, 4])
        if pid == 0:
            tl.store(y + tl.arange(0, 32), tl.zeros((32,), tl.float32))
        rows.atomic_add([0, 0], tl.full((8, 4), 1.0, tl.float32))


@triton.jit
def orders_all(y, flag, HOW: tl.constexpr):  # noqa: C901 - a case each
    pid, i = tl.program_id(0), tl.arange(0, 8)
    if HOW == "all add":
        tl.atomic_add(y + i, 1.0)
    elif HOW == "the last one loads":
        tl.atomic_add(y + i, 1.0)
        if tl.atomic_add(flag, 1) == tl.num_programs(0) - 1:
            tl.store(y + 64 + i, tl.load(y + i))
            tl.store(flag, 0)
    elif HOW == "own elements":
        tl.store(y + pid, 0.0)
        tl.atomic_add(y + pid, 1.0)
        tl.store(y + 64 + pid, tl.load(y + pid))
    elif HOW == "a lock":
        while tl.atomic_cas(flag, 0, 1) == 1:
            pass
        tl.store(y, tl.load(y) + 1.0)
        tl.atomic_xchg(flag, 0)
    elif HOW == "a release that others wait for":
        if pid == 0:
            tl.store(y + i, tl.zeros((8,), tl.float32))
            tl.atomic_xchg(flag, 1, sem="release")
        else:
            while tl.atomic_add(flag, 0, sem="acquire") != 1:
                pass
            tl.atomic_add(y + i, 1.0)
    elif HOW == "signals that are passed on":
        if pid == 0:
            tl.store(y + i, tl.zeros((8,), tl.float32))
        else:
            while tl.atomic_add(flag, 0, sem="acquire") != pid:
                pass
        tl.atomic_add(y + i, 1.0)
        tl.atomic_xchg(flag, pid + 1, sem="release")
    elif HOW == "a barrier of all":
        tl.atomic_add(y + i, 1.0)
        tl.atomic_add(flag, 1)
        while tl.atomic_add(flag, 0) < tl.num_programs(0):
            pass
        tl.store(y + 64 + 8 * pid + i, tl.load(y + i))


RACING = (
    "one stores and all add", "a result that nothing looks at", "the first to come stores",
    "all add and one loads",
    "one exchanges and others load", "relaxed counter", "scope of a program",
    "atomics with the scope of a program", "reduces through a descriptor",
)  # fmt: skip
ORDERED = (
    "all add", "the last one loads", "own elements", "a lock", "a release that others wait for",
    "signals that are passed on", "a barrier of all",
)  # fmt: skip


def races_of_atomics(kernel, how, mode):
    """The races of a launch of eight programs, twice."""

    def body(_rank):
        y, flag = ctx.full((256,), 9.0), ctx.zeros(1, dtype="int32")
        for _ in range(2):
            kernel[(8,)](y, flag, HOW=how, mode=mode)
            flag.zero_()
        ctx.cuda.synchronize()

    with simrank.Context("hgx_h100", races="report") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
    return ctx.races


@pytest.mark.parametrize("mode", ["auto", "one-by-one", "tasks"])
@pytest.mark.parametrize("how", RACING)
def test_an_atomic_races_with_an_access_that_nothing_orders(how, mode):
    """Whoever comes first in this run, and whatever the values are."""
    found = races_of_atomics(zeroes_first, how, mode)
    assert found
    assert "updates atomically" in {found[0].first.verb, found[0].second.verb}
    assert all(
        access.file.endswith("test_pairs.py") for access in (found[0].first, found[0].second)
    )


@pytest.mark.parametrize("mode", ["auto", "tasks"])
@pytest.mark.parametrize("how", ORDERED)
def test_atomics_that_are_ordered_are_no_race(how, mode):
    """By locks, flags, barriers, and counters whose value says that all have come."""
    assert [str(race) for race in races_of_atomics(orders_all, how, mode)] == []
