"""Ranks that end as processes do: at once, or by a signal; the process they live in goes on."""

# Names are looked up within the Context, where they differ.
# ruff: noqa: PLW0108

import os
import signal
import time

import pytest

import simrank
from simrank.errors import ProcessExitedException


def end(run, how):
    """Let rank 1 of two end itself; return what spawn raised and what ran on."""
    ran_on = []

    def program(rank, ctx):
        ctx.wait(ctx.timer(1000 * (1 + rank)))
        if rank == 1:
            try:
                how()
            finally:
                ran_on.append(rank)

    with pytest.raises(ProcessExitedException) as caught:
        run(program, 2)
    assert ran_on == []
    assert caught.value.error_index == 1
    return caught.value


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
def test_os_exit_ends_the_rank_with_its_status(run, carrier):
    """As torch's: ProcessExitedException, and none of the rank's code runs on."""
    error = end(lambda *args: run(*args, carrier=carrier), lambda: os._exit(7))
    assert (error.exit_code, error.signal_name) == (7, None)


@pytest.mark.parametrize("how", ["kill", "raise_signal", "abort"])
def test_a_signal_that_a_rank_sends_itself_ends_the_rank_alone(run, how):
    """With the signal's name."""
    hows = {
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "raise_signal": lambda: signal.raise_signal(signal.SIGKILL),
        "abort": lambda: os.abort(),
    }
    error = end(run, hows[how])
    number = signal.SIGABRT if how == "abort" else signal.SIGKILL
    assert (error.exit_code, error.signal_name) == (-number, number.name)


def test_os_exit_with_0_is_success(run):
    """As in a process; the others go on."""
    ended = []

    def program(rank, ctx):
        if rank == 0:
            os._exit(0)
        ctx.wait(ctx.timer(1000))
        ended.append(rank)

    run(program, 2)
    assert ended == [1]


def test_a_signal_that_ends_nothing_ends_nothing(run):
    """0 asks whether the process is there; SIGCHLD has no effect."""

    def program(rank, ctx):
        os.kill(os.getpid(), 0)
        os.kill(os.getpid(), signal.SIGCHLD)

    run(program, 1)


def test_a_rank_has_its_own_handlers(run):
    """What one sets another does not see, and the process never; what it sends itself comes."""
    before, rung = signal.getsignal(signal.SIGTERM), []

    def program(rank, ctx):
        if rank == 1:
            ctx.wait(ctx.timer(1000))
            assert signal.getsignal(signal.SIGTERM) is before
            return
        handler = lambda number, frame: rung.append((number, frame.f_code.co_name))  # noqa: E731
        assert signal.signal(signal.SIGTERM, handler) is before
        assert signal.getsignal(signal.SIGTERM) is handler
        ctx.wait(ctx.timer(2000))
        signal.raise_signal(signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(TypeError):
            signal.signal(signal.SIGTERM, "text")

    run(program, 2)
    assert rung == [(signal.SIGTERM, "program")] * 2
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_handler_of_a_timer_that_a_rank_sets_is_gone_after_the_run(run):
    """The process has one such timer; pytest's own stays what it was."""
    before = signal.getsignal(signal.SIGALRM)
    run(lambda rank, ctx: signal.signal(signal.SIGALRM, lambda *_: None), 2)
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
def test_a_rank_sets_handlers_of_signals_as_a_process_does(run, carrier):
    """Also those of timers, which only Python's main thread may set; Ctrl-C keeps its own."""
    seen = []

    def program(rank, ctx):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            before = signal.signal(number, lambda number, _: seen.append((rank, number)))
            assert signal.signal(number, before) is not before
        with pytest.raises(TypeError):
            signal.signal(signal.SIGALRM, "no handler")
        signal.signal(signal.SIGUSR1, lambda number, _: seen.append((rank, number)))
        os.kill(os.getpid(), signal.SIGUSR1)

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)]
    run(program, 2, carrier=carrier)
    assert seen == [(0, signal.SIGUSR1), (1, signal.SIGUSR1)]
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)]


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
def test_nothing_waits_for_the_sleep_of_a_rank_that_is_killed(carrier):
    """Time stands where the others end."""
    pids = {}

    def program(rank):
        pids[rank] = os.getpid()
        time.sleep(1 + 1000 * rank)
        os.kill(pids[1], signal.SIGKILL)

    with (
        pytest.raises(ProcessExitedException, match="process 1 terminated with signal SIGKILL"),
        simrank.Context("hgx_h100", carrier=carrier, on_failure="continue") as ctx,
    ):
        ctx.multiprocessing.spawn(program, nprocs=2, share_args=True)
    assert 1e12 <= ctx.now_ps < 2e12
