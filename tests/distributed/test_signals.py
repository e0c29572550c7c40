"""Signals between streams: a flag is taken before it is set again."""

import pytest

import simrank.distributed.symmetric_memory as symm_mem
from simrank.errors import DeadlockError, SpawnException, WaitTimeoutError


def test_a_barrier_holds_the_stream_until_the_last_member_has_come(run, met):
    """Rank 1 comes a millisecond late; the host does not wait."""

    def body(rank, ctx):
        _, handle = met(ctx)
        start, end = ctx.Event(), ctx.Event()
        if rank == 1:
            ctx.wait(ctx.timer(1_000_000_000))
        start.record()
        handle.barrier(channel=3)
        end.record()
        end.synchronize()
        waited_ms = start.elapsed_time(end)
        assert waited_ms < 0.1 if rank == 1 else 0.9 < waited_ms < 1.1
        assert handle.get_signal_pad(rank).sum().item() == 0

    run(body, 4)


def test_a_second_signal_waits_until_the_first_was_taken(run, met):
    """Two puts and two waits pair up in order."""

    def body(rank, ctx):
        _, handle = met(ctx)
        for _ in range(2):
            if rank == 0:
                handle.put_signal(1)
            else:
                ctx.wait(ctx.timer(1_000_000_000))
                handle.wait_signal(0)
        ctx.synchronize()
        assert ctx.now_ps > (1 + rank) * 1_000_000_000

    run(body, 2)


def test_a_signal_that_never_comes_is_a_deadlock_that_names_the_sender(run, met):
    """Two ranks put, the third does not."""

    def body(rank, ctx):
        _, handle = met(ctx)
        if rank:
            handle.put_signal(0) if rank != 2 else None
        else:
            handle.wait_signal(1)
            handle.wait_signal(2)
        ctx.synchronize()

    with pytest.raises(DeadlockError) as caught:
        run(body, 3)
    text = str(caught.value)
    assert "rank 0: wait_signal on symmetric memory of group 'default_pg', channel 0: " in text
    assert "no signal from 2 at test_signals.py" in text


def test_a_time_limit_turns_a_lost_signal_into_an_error(run, met):
    """Without it the program would hang."""

    def body(rank, ctx):
        _, handle = met(ctx)
        if rank == 0:
            handle.barrier(timeout_ms=5)
        ctx.synchronize()

    with pytest.raises(SpawnException, match=r"waited 5000\.000 us for barrier") as caught:
        run(body, 2)
    assert isinstance(caught.value.errors[0], WaitTimeoutError)


def test_a_channel_beyond_the_signal_pad_is_refused(run, met):
    """Its flags would lie outside."""

    def body(rank, ctx):
        symm_mem.set_signal_pad_size(16)
        _, handle = met(ctx)
        with pytest.raises(RuntimeError, match="channel 2 of 2 ranks"):
            handle.barrier(channel=2)

    run(body, 2)
