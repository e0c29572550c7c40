"""Flags that are never reset: found in the launch that takes an old signal for a new one."""

import pytest
import triton
import triton.language as tl

import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank.kernels import channels
from simrank.kernels.races.happens_before import StaleSignalError


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
    assert "a signal that an earlier launch had taken ended a wait (allocated at test_sig" in first
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
