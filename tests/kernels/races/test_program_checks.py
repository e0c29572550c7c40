"""What programs have loaded: rows of ranges, exact where a load leaves bytes out."""

import random

import numpy as np
import pytest
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank import multiprocessing as mp
from simrank.kernels import channels
from simrank.kernels.races.happens_before import StaleSignalError
from simrank.kernels.races.program_checks import Reads

from ..planted import MISTAKES, PROGRAMS, body

ITEM = 4
LOADS = st.lists(
    st.tuples(st.integers(1, 5), st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True)),
    max_size=90,
)


@given(loads=LOADS, stored=st.lists(st.integers(0, 30), min_size=1, max_size=4, unique=True))
def test_a_store_meets_exactly_the_loads_of_its_elements(loads, stored):
    """Against a plain list of who has loaded what."""
    reads = Reads()
    for epoch, (reader, elements) in enumerate(loads):
        reads.add(np.array(elements) * ITEM, ITEM, reader, epoch, 0)
    expected = {reader for reader, elements in loads if set(elements) & set(stored)}
    found = {reader for reader, *_ in reads.touched_by(np.array(stored) * ITEM, ITEM)}
    assert found == expected


@given(
    loads=st.lists(
        st.tuples(st.sampled_from([1, 4, 8]), st.sets(st.integers(0, 12), min_size=1)), max_size=9
    ),
    stored=st.sets(st.integers(0, 12), min_size=1),
    itemsize=st.sampled_from([1, 4, 8]),
)
def test_elements_of_other_sizes_meet_where_they_share_a_byte(loads, stored, itemsize):
    """Against sets of bytes."""

    def bytes_of(elements, size):
        return {element * size + byte for element in elements for byte in range(size)}

    reads = Reads()
    for reader, (size, elements) in enumerate(loads):
        reads.add(np.array(sorted(elements)) * size, size, reader, 1, 0)
    wanted = bytes_of(stored, itemsize)
    expected = {r for r, (size, elements) in enumerate(loads) if bytes_of(elements, size) & wanted}
    touched = reads.touched_by(np.array(sorted(stored)) * itemsize, itemsize)
    assert {reader for reader, *_ in touched} == expected


@given(loads=LOADS, gone=st.sets(st.integers(1, 5)))
def test_forgotten_programs_are_the_only_ones_that_go(loads, gone):
    """What is left is found as before, and new loads are found too."""
    reads = Reads()
    for epoch, (reader, elements) in enumerate(loads):
        reads.add(np.array(elements) * ITEM, ITEM, reader, epoch, 0)
    everything = np.arange(31) * ITEM
    before = sorted(reads.touched_by(everything, ITEM))
    reads.forget(gone.__contains__)
    assert sorted(reads.touched_by(everything, ITEM)) == [r for r in before if r[0] not in gone]
    reads.add(everything, ITEM, 9, 99, 1)
    assert (9, 99, 1, False) in reads.touched_by(everything[:1], ITEM)


# ---- low-latency protocols: the flag sits in the data's own word, and no fence is needed ----


@triton.jit
def send_words(pointers, peer, x, flag, N: tl.constexpr):
    at = tl.arange(0, N)
    words = (flag.to(tl.int64) << 32) | tl.load(x + at).to(tl.int64)
    tl.store(channels.peer_pointer(pointers, peer, tl.int64) + at, words)


@triton.jit
def receive_words(pointers, own, out, flag, N: tl.constexpr):
    at = tl.arange(0, N)
    mailbox = channels.peer_pointer(pointers, own, tl.int64) + at
    words = tl.load(mailbox, volatile=True)
    while tl.max((words >> 32 != flag).to(tl.int32)) > 0:
        words = tl.load(mailbox, volatile=True)
    tl.store(out + at, (words & 0xFFFFFFFF).to(tl.int32))


@triton.jit
def receive_word_by_word(pointers, own, out, flag, N: tl.constexpr):
    mailbox = channels.peer_pointer(pointers, own, tl.int64)
    for index in range(N):
        word = tl.load(mailbox + index, volatile=True)
        while word >> 32 != flag:
            word = tl.load(mailbox + index, volatile=True)
        tl.store(out + index, (word & 0xFFFFFFFF).to(tl.int32))


@triton.jit
def receive_late(pointers, own, out, flag, N: tl.constexpr):
    mailbox = channels.peer_pointer(pointers, own, tl.int64)
    while tl.load(mailbox, volatile=True) >> 32 != flag:
        pass
    at = tl.arange(0, N)
    tl.store(out + at, (tl.load(mailbox + at) & 0xFFFFFFFF).to(tl.int32))


def exchange(rank, ctx, receive, results):
    """Send a row of numbers to the next rank, twice, into the same words under another flag."""
    dist.init_process_group("nccl")
    world, n = dist.get_world_size(), 16
    words = symm_mem.empty(n, dtype=simrank.int64)
    words.fill_(0)
    handle = symm_mem.rendezvous(words)
    handle.barrier()
    for flag in (1, 2):
        x = ctx.arange(n, dtype=simrank.int32) + 100 * rank + 1000 * flag
        out = ctx.zeros(n, dtype=simrank.int32)
        send_words[(1,)](handle.buffer_ptrs_dev, (rank + 1) % world, x, flag, N=n)
        receive[(1,)](handle.buffer_ptrs_dev, rank, out, flag, N=n)
        results[rank, flag] = out.tolist()
        handle.barrier()  # The words may be written again.


@pytest.mark.parametrize("receive", [receive_words, receive_word_by_word], ids=lambda k: k.__name__)
@pytest.mark.parametrize("world", [2, 4])
def test_data_that_comes_with_its_flag_needs_no_fence(run, receive, world):
    """Each word is written and read as one: no race, no stale signal, and right numbers."""
    results = mp.Manager().dict()
    ctx = run(exchange, world, receive, results, races="error")
    for rank in range(world):
        for flag in (1, 2):
            first = 100 * ((rank - 1) % world) + 1000 * flag
            assert results[rank, flag] == list(range(first, first + 16))
    assert [line for line in ctx.findings if "stale" in line or "race" in line] == []


def test_a_flag_says_nothing_of_the_words_beside_it(run):
    """Who looks at the first word's flag only may read the others too early."""
    with pytest.raises(simrank.errors.SpawnException, match="race"):
        run(exchange, 2, receive_late, mp.Manager().dict(), races="error")


# ---- flags that are never reset: found in the launch that takes an old signal for a new one ----


@triton.jit
def wait_in_ptx(flag):
    tl.inline_asm_elementwise(
        """
        {
            .reg .u32 %seen;
            .reg .pred %done;
            again:
                ld.global.acquire.sys.u32 %seen, [$1];
                setp.eq.u32 %done, %seen, 1;
                @!%done bra again;
        }
        """,
        "=r, l",
        [flag],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def signal_and_wait(pads, rank, step, HOW: tl.constexpr, RESET: tl.constexpr):
    theirs = channels.peer_pointer(pads, 1 - rank, tl.int32)
    own = channels.peer_pointer(pads, rank, tl.int32)
    tl.atomic_xchg(theirs, step, sem="release", scope="sys")
    if HOW == "poll":
        tl.atomic_poll(own, step, sem="acquire", scope="sys")
    elif HOW == "load":
        while tl.load(own, volatile=True) != step:
            pass
    elif HOW == "not equal":
        seen = 0
        while not (seen == step):  # noqa: SIM201 - as people write it
            seen = tl.atomic_add(own, 0, sem="acquire", scope="sys")
    elif HOW == "past":
        while tl.atomic_add(own, 0, sem="acquire", scope="sys") < step:
            pass
    else:
        wait_in_ptx(own)
    if RESET:
        tl.store(own, 0)


def findings(run, how, *, reset=False, grows=False, races="report"):
    """Launch it three times on two ranks, with all ranks together between launches."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        handle = symm_mem.rendezvous(symm_mem.empty(1))
        for launch in range(3):
            step = launch + 1 if grows else 1
            signal_and_wait[(1,)](handle.signal_pad_ptrs_dev, rank, step, HOW=how, RESET=reset)
            ctx.synchronize()
            dist.barrier()

    races_found = run(body, 2, races=races).races
    return [found for found in races_found if isinstance(found, StaleSignalError)]


@pytest.mark.parametrize("how", ["poll", "load", "not equal", "ptx"])
def test_a_flag_that_is_never_reset_is_reported_once(run, how):
    """The second launch's wait is over before its peer has signalled."""
    (found,) = findings(run, how)
    first, _, waits, fix = str(found).splitlines()
    assert first.startswith("stale signal (suspected) at t=")
    assert "a signal that an earlier launch had taken ended a wait (allocated at test_pro" in first
    assert waits.startswith(f"  program 0 of kernel 'signal_and_wait' of rank {found.rank} waits")
    assert fix.startswith("  to fix: set the flag back after the wait, or wait for a value that")
    assert (found.first.verb, found.second.verb) == ("waited", "waits")


@pytest.mark.parametrize("how", ["poll", "load", "not equal", "ptx"])
def test_a_flag_that_is_set_back_is_no_finding(run, how):
    """Every launch takes a signal of its own."""
    assert findings(run, how, reset=True) == []


@pytest.mark.parametrize("how", ["poll", "load", "not equal"])
def test_a_value_that_grows_is_no_finding(run, how):
    """Nothing needs to be reset."""
    assert findings(run, how, grows=True) == []


def test_a_wait_for_no_less_than_a_value_is_no_finding(run):
    """A peer that is ahead may have signalled twice, so such a wait is never suspected."""
    assert findings(run, "past") == []


def test_a_suspicion_is_not_raised(run):
    """A flag may be meant to be set once for all launches."""
    assert len(findings(run, "poll", races="error")) == 1


@triton.jit
def signal_peer(flag):
    tl.atomic_xchg(flag, 1, sem="release", scope="sys")


@triton.jit
def wait_own(flag):
    while tl.atomic_add(flag, 0, sem="acquire", scope="sys") != 1:
        pass


@pytest.mark.parametrize("by_copy", [False, True])
def test_a_flag_that_is_set_again_before_the_next_wait_is_not_stale(run, by_copy):
    """It has the same value, but is a new signal: the host has ordered the wait behind it."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        handle = symm_mem.rendezvous(symm_mem.empty(8))
        for _ in range(3):
            if by_copy:
                handle.get_signal_pad(1 - rank)[:1].fill_(1)
            else:
                signal_peer[(1,)](handle.get_signal_pad(1 - rank))
            ctx.synchronize()
            dist.barrier()
            wait_own[(1,)](handle.get_signal_pad(rank))
            ctx.synchronize()
            dist.barrier()

    assert run(body, 2, races="report").races == []


# ---- Mistakes planted in kernels that are right ----

SEED = 12


def races(run, program, size, bug, num_ranks, seed=0):
    return run(body, num_ranks, program, size, bug, races="report", seed=seed).races


def least(program):
    return PROGRAMS[program][1]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_programs_that_are_right_have_no_findings(run, program):
    """And leave the right numbers."""
    assert races(run, program, 16, None, max(least(program), 2)) == []


@pytest.mark.parametrize(
    ("program", "bug"), MISTAKES, ids=[f"{p.__name__}: {bug}" for p, bug in MISTAKES]
)
def test_a_planted_mistake_is_found_in_the_first_run(run, program, bug):
    """Whoever happens to be early."""
    assert races(run, program, 16, bug, max(least(program), 2))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(16))
def test_random_programs_are_right_or_their_mistake_is_found(run, part):
    """Of other sizes, on other numbers of ranks, with other orders of what happens at one time."""
    choose = random.Random(f"{SEED}:{part}")
    for _ in range(150):
        program = choose.choice(list(PROGRAMS))
        bug = choose.choice([None, *PROGRAMS[program][0]])
        size = choose.choice([1, 2, 8, 32, 128])
        num_ranks = choose.randint(least(program), 6)
        seed = choose.randrange(100)
        found = races(run, program, size, bug, num_ranks, seed)
        assert bool(found) is (bug is not None), (program.__name__, bug, size, num_ranks, seed)
