"""Ctrl-C and other signals at any instruction: all ranks end, and nothing is left behind."""

import contextlib
import gc
import io
import math
import os
import random
import signal
import sys
import threading
import time
import warnings
from unittest import mock

import greenlet
import pytest

import simrank
import simrank.distributed as dist
from simrank.engine import interrupts
from simrank.engine.bare_greenlets import driving
from simrank.isolation import stdlib
from simrank.ranks import current, current_program

HERE = __file__
NUM_INTERRUPTS = 300


def state():
    """Return what an interrupted run could have changed."""
    return {
        "clocks": (time.sleep, time.time, threading.Lock, threading.Thread.start, sys.argv),
        "environment": type(os.environ._data),
        "collector": (gc.isenabled(), gc.get_threshold()),
        "handlers": [signal.getsignal(number) for number in signal.valid_signals()],
        "warnings": list(warnings.filters),
        "streams": (sys.stdout, sys.stderr),
        "modules": (list(sys.path), list(sys.meta_path), sys.gettrace(), math.tau),
        "classes": (type(sys), type(warnings), warnings.showwarning, type(warnings.filters)),
        "ours": (current_program(), list(current.engines), list(driving), stdlib.NAMES.entries[:]),
        "threads": threading.active_count(),
    }


def num_greenlets():
    """Return how many greenlets live that have started and not ended."""
    gc.collect()
    return sum(isinstance(each, greenlet.greenlet) and bool(each) for each in gc.get_objects())


def train(rank, ctx):
    """Do a little of everything that changes what is shared: sleep, patch, lock, spawn, reduce."""
    dist.init_process_group("nccl")
    random.random()
    with (
        mock.patch("math.tau", rank),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        time.sleep(1e-3)
    lock = threading.Lock()
    with lock:
        dist.all_reduce(ctx.ones(8))
    if rank == 0:
        ctx.multiprocessing.spawn(lambda _: time.sleep(1e-3), nprocs=2)
    dist.barrier()
    dist.destroy_process_group()


def run_once():
    with simrank.Context("hgx_h100", seed=3) as ctx:
        ctx.multiprocessing.spawn(train, (ctx,), nprocs=3)


def wait_for_due():
    """Wait for a deferred signal; in the loop of a `try` itself Python 3.13 raised it past it."""
    deadline = time.perf_counter() + 1
    while interrupts._due and time.perf_counter() < deadline:
        pass


def interrupted_at(number):
    """Run under a tracer that presses Ctrl-C at a line; return how many lines ran, and its end."""
    seen, error = 0, None

    def trace(frame, event, argument):
        nonlocal seen
        if event == "line":
            seen += 1
            if seen == number:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return trace

    # Where a signal finds it, its frame counts as Python's own, not as the user's.
    trace.__code__ = trace.__code__.replace(co_filename="<frozen tracer>")
    before = sys.gettrace()
    try:
        sys.settrace(trace)
        run_once()
        sys.settrace(before)
        wait_for_due()
    except KeyboardInterrupt as caught:
        error = caught
    finally:
        sys.settrace(before)
    return seen, error


@pytest.mark.slow
def test_ctrl_c_at_any_line_leaves_no_state_behind():
    """300 lines of a run, from its first to its last."""
    run_once()
    num_lines, _ = interrupted_at(0)
    before, greenlets_before = state(), num_greenlets()
    for index in range(NUM_INTERRUPTS):
        line = 1 + index * num_lines // NUM_INTERRUPTS
        _, error = interrupted_at(line)
        assert error is not None, line
        del error
        now = state()
        assert {key: now[key] for key in now if now[key] != before[key]} == {}, line
    assert num_greenlets() == greenlets_before
    run_once()


def press_in(seconds):
    """Press Ctrl-C in so many seconds of wall-clock time."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


@pytest.fixture(name="press")
def fixture_press():
    """Press Ctrl-C a moment later: an alarm whose handler is Ctrl-C's; pytest's own comes back."""
    left = signal.getitimer(signal.ITIMER_REAL)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield press_in
    signal.signal(signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, *left)


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
def test_one_ctrl_c_ends_eight_ranks_that_turn_in_place(press, carrier):
    """At once, with a note of where they are and what is finished; the Context works on."""
    ended = []

    def turn(rank, ctx):
        try:
            if rank == 7:
                return
            time.sleep(1e-3 * (rank + 1))
            press(0.01)
            while True:
                pass
        finally:
            ended.append(rank)

    with simrank.Context("hgx_h100", carrier=carrier) as ctx:
        with pytest.raises(KeyboardInterrupt) as caught:
            ctx.multiprocessing.spawn(turn, (ctx,), nprocs=8)
        ctx.multiprocessing.spawn(lambda rank: time.sleep(1), nprocs=8)
    assert sorted(ended) == list(range(8))
    note = "\n".join(caught.value.__notes__)
    assert note.startswith("simrank: interrupted at t=1000.000 us")
    assert "rank 0: running at test_interrupts.py:" in note
    assert "rank 1: time.sleep(0.002) at test_interrupts.py:" in note
    assert "rank 7: returned" in note


@pytest.mark.parametrize("carrier", ["greenlet", "thread"])
def test_ranks_that_have_not_started_never_do(press, carrier):
    """All of them are due at once; the first turns in place."""
    started = []

    def turn(rank):
        started.append(rank)
        press(0.01)
        while True:
            pass

    with (
        pytest.raises(KeyboardInterrupt) as caught,
        simrank.Context("hgx_h100", carrier=carrier) as ctx,
    ):
        ctx.multiprocessing.spawn(turn, nprocs=8)
    assert started == [0]
    assert "ranks 1-7: not started" in caught.value.__notes__[0]


def test_what_any_handler_raises_ends_all_ranks(press):
    """A test's time limit, as pytest-timeout's alarm; set within the Context too."""

    class LimitError(BaseException):
        pass

    def handler(number, frame):
        raise LimitError

    def turn(rank):
        while True:
            pass

    with simrank.Context("hgx_h100") as ctx, pytest.raises(LimitError):
        press(0.03)
        assert signal.signal(signal.SIGALRM, handler) is signal.default_int_handler
        assert signal.getsignal(signal.SIGALRM) is handler
        ctx.multiprocessing.spawn(turn, nprocs=4)
    assert signal.getsignal(signal.SIGALRM) is handler


def test_a_handler_that_returns_changes_nothing(press):
    """The run goes on where it was."""
    rung = []
    press(0.02)
    with simrank.Context("hgx_h100") as ctx:
        signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))

        def turn(rank):
            while not rung:
                pass

        ctx.multiprocessing.spawn(turn, nprocs=4)
    assert rung == [signal.SIGALRM]
