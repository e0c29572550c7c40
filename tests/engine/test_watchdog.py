"""The watchdog: tells where a rank computes, ends what takes too long, leaves debuggers alone.

Most tests look by themselves, at times they make up; the slow ones let the thread look.
"""

import _thread
import contextlib
import io
import os
import pdb
import sys
import time

import pytest

import simrank
from simrank.engine import Handle, TimeLimitError, watchdog
from simrank.engine.watchdog import Watchdog
from simrank.errors import RankState, SimrankError

HERE = __file__


@pytest.fixture
def watched(ctx):
    """Return a Context and what makes a watchdog of it that does not look by itself."""

    class Log(list):
        """In place of the log, which reads the clock: the thread that looks here is the rank's."""

        def warning(self, text, *facts):
            self.append(text % facts)

    def watch(watchdog_s=None, limit_s=None):
        dog = Watchdog(ctx.engine, watchdog_s, limit_s)
        dog._log = Log()
        ctx.engine.observers.append(dog)
        return dog

    return ctx, watch


def line_here():
    return sys._getframe(1).f_lineno


def test_the_text_and_the_facts_of_the_error():
    """Limit, simulated time, then the ranks as in every report."""
    states = [RankState((3,), "running", "/home/me/train.py", 41), RankState((0, 1), "a sleep")]
    error = TimeLimitError(12_345_000, 60.0, states, seed=4)
    assert str(error) == (
        "the limit of 60 s of wall-clock time passed at t=12.345 us\n"
        "  rank 3: running at train.py:41\n"
        "  ranks 0-1: a sleep"
    )
    assert isinstance(error, SimrankError)
    facts = error.to_json()
    assert (facts["limit_s"], facts["seed"], facts["time_ps"]) == (60.0, 4, 12_345_000)
    assert facts["waits"][0]["line"] == 41


def test_a_rank_that_computes_for_long_is_told_of_with_time_and_line(watched):
    """Once per time, then after twice that; never before, and never of one that waits."""
    ctx, watch = watched
    dog = watch(watchdog_s=2.0)
    lines = []

    def program(rank):
        ctx.engine.sleep(12_345_000 if rank == 1 else 1)
        if rank == 1:
            for now_s in (0.0, 1.9, 2.0, 3.9, 4.0, 7.9):
                dog.look(now_s)
            lines.append(line_here() - 1)
            ctx.engine.sleep(1000)
            for now_s in (20.0, 21.9):
                dog.look(now_s)

    ctx.multiprocessing.spawn(program, nprocs=3)
    where = f"at t=12.345 us, at {HERE}:{lines[0]}"
    assert dog._log == [
        f"rank 1 has computed for 2.0 s without a wait, {where}",
        f"rank 1 has computed for 4.0 s without a wait, {where}",
    ]


def test_a_limit_that_passes_between_waits_is_raised_by_the_run_with_every_rank(watched):
    """From spawn, as TimeLimitError; nothing is left behind."""
    ctx, watch = watched
    dog = watch(limit_s=10.0)
    ended = []

    def program(rank):
        try:
            for now_s in (0.0, 9.9, 10.1):
                if rank == 0:
                    dog.look(now_s)
                ctx.engine.sleep(10**6)
            ctx.wait(Handle())
        finally:
            ended.append(rank)

    with pytest.raises(TimeLimitError) as caught:
        ctx.multiprocessing.spawn(program, nprocs=3)
    assert caught.value.limit_s == 10.0
    assert caught.value.time_ps == 2 * 10**6
    assert {rank for state in caught.value.waits for rank in state.ranks} == {0, 1, 2}
    assert all(state.file == HERE for state in caught.value.waits)
    assert sorted(ended) == [0, 1, 2]
    assert ctx.pending_waits == []


def test_a_rank_that_never_waits_is_stopped_where_it_computes(watched):
    """`except Exception` in its loop does not keep it; the error names its line."""
    ctx, watch = watched
    dog = watch(limit_s=10.0)
    lines, ended = [], []

    def program(rank):
        if rank == 0:
            ctx.wait(Handle())
        try:
            dog.look(0.0)
            dog.look(1.0)
            lines.append(line_here() + 1)
            dog.look(11.0)
            while True:
                with contextlib.suppress(Exception):  # As some training loops do.
                    sum(range(10))
        finally:
            ended.append(rank)

    started = ctx.multiprocessing.spawn(program, nprocs=2, join=False)
    with pytest.raises(TimeLimitError) as caught:
        started.join()
    running = next(state for state in caught.value.waits if state.ranks == (1,))
    assert (running.state, running.file, running.line) == ("running", HERE, lines[0])
    assert ended == [1]
    assert [process.exitcode for process in started.processes] == [-15, -15]


def test_a_rank_that_swallows_its_end_is_stopped_again(watched):
    """Half a second later, as often as it takes."""
    ctx, watch = watched
    dog = watch(limit_s=1.0)
    swallowed = []

    def program(rank):
        for now_s in (0.0, 2.0, 2.1, 2.6, 3.0, 3.2):
            try:
                dog.look(now_s)
                sum(range(10))
            except SystemExit:
                swallowed.append(now_s)
        dog.look(4.0)
        while True:
            pass

    with pytest.raises(TimeLimitError):
        ctx.multiprocessing.spawn(program, nprocs=1)
    assert swallowed == [2.0, 2.6, 3.2]


def test_a_limit_that_passes_on_the_hub_is_raised_there(watched):
    """In what the engine calls at a simulated time, for example."""
    ctx, watch = watched
    dog = watch(limit_s=1.0)

    def stuck():
        dog.look(0.0)
        dog.look(2.0)
        while True:
            pass

    ctx.engine.call_at(1000, stuck)
    with pytest.raises(TimeLimitError, match=r"1 s of wall-clock time passed at t=0.001 us"):
        ctx.drain()


def test_time_in_which_nothing_is_simulated_does_not_count(watched):
    """The main program may compute between two spawns."""
    ctx, watch = watched
    dog = watch(limit_s=10.0)
    dog.look(0.0)
    dog.look(1000.0)
    ctx.multiprocessing.spawn(lambda rank: dog.look(1001.0), nprocs=1)


def test_time_at_the_prompt_of_a_debugger_and_under_its_steps_does_not_count(watched):
    """Nothing is told, nothing ended."""
    ctx, watch = watched
    dog = watch(1.0, 10.0)
    out, before = io.StringIO(), sys.gettrace()

    def program(rank, stdin):
        dog.look(0.0)
        pdb.Pdb(stdin=stdin, stdout=out, nosigint=True, readrc=False).set_trace()
        dog.look(2000.0)
        dog.look(3000.0)

    try:
        commands = io.StringIO("!dog.look(999)\n!dog.look(1000)\nn\nn\nc\n")
        spawn = ctx.multiprocessing.spawn
        spawn(program, (commands,), nprocs=1, share_args=True)
    finally:
        sys.settrace(before)
    assert out.getvalue().count("simrank: rank 0") == 3
    assert dog._log == []


def test_no_frame_is_taken_of_a_rank_that_goes_on(watched, monkeypatch):
    """What it holds would be freed at moments of the wall clock: peaks of memory would vary."""
    ctx, watch = watched
    dog = watch(1.0, 10.0)
    taken = []
    monkeypatch.setattr(watchdog, "frame_of_thread", taken.append)

    def program(rank):
        dog.look(1.0)
        time.sleep(1e-6)
        dog.look(2.0)
        assert taken == []
        dog.look(3.0)
        assert len(taken) == 1

    ctx.multiprocessing.spawn(program, nprocs=1, share_args=True)


def test_without_limits_there_is_neither_observer_nor_thread():
    """Nothing is paid for what is off."""
    num_threads = _thread._count()
    with simrank.Context("hgx_h100") as ctx:
        assert ctx.engine.observers == []
        assert _thread._count() == num_threads
    with simrank.Context("hgx_h100", time_limit_s=100, watchdog_s=100) as ctx:
        assert len(ctx.engine.observers) == 1
        ctx.multiprocessing.spawn(lambda rank: ctx.engine.sleep(1000), nprocs=4)
    assert ctx.engine.observers == []


@pytest.mark.parametrize("name", ["watchdog_s", "time_limit_s"])
def test_a_limit_is_a_positive_number(name):
    """0 is no way to say none."""
    with pytest.raises(ValueError, match=f"{name}=0: expected seconds above 0, or None"):
        simrank.Context("hgx_h100", **{name: 0})


@pytest.mark.slow
def test_the_thread_stops_a_rank_that_computes_for_ever(caplog):
    """By itself, after the limit, having told where it is."""

    def program(rank):
        while rank:
            pass

    with (
        pytest.raises(TimeLimitError, match=r"\n  rank 1: running at test_watchdog.py:\d+"),
        simrank.Context("hgx_h100", watchdog_s=0.1, time_limit_s=0.3) as ctx,
    ):
        ctx.multiprocessing.spawn(program, nprocs=2)
    assert "rank 1 has computed for" in caplog.records[0].getMessage()


@pytest.mark.slow
def test_the_thread_stops_a_simulation_that_goes_on_for_ever():
    """Where nothing is stuck, between two waits; the next Context is not concerned."""

    def program(rank, ctx):
        while True:
            ctx.engine.sleep(1000)

    with (
        pytest.raises(TimeLimitError, match=r"0\.3 s of wall-clock time passed"),
        simrank.Context("hgx_h100", time_limit_s=0.3) as ctx,
    ):
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
    with simrank.Context("hgx_h100", time_limit_s=0.3) as ctx:
        ctx.multiprocessing.spawn(lambda rank: ctx.engine.sleep(1000), nprocs=2)


NATIVE = [_thread.allocate_lock()]  # In a container, where no Context finds it.


def wait_for_a_lock(folder):
    """Wait for a lock that was made before the Context and that nobody gives back."""
    NATIVE[0].acquire(blocking=False)
    NATIVE[0].acquire()


def wait_for_a_pipe(folder):
    """Read what nobody writes."""
    end, other = os.pipe()
    try:
        os.read(end, 1)
    finally:
        os.close(end)
        os.close(other)


def wait_for_a_file(folder):
    """Open a named pipe that nobody else opens."""
    os.mkfifo(folder / "pipe")
    (folder / "pipe").open("rb").close()


@pytest.mark.slow
@pytest.mark.parametrize("wait", [wait_for_a_lock, wait_for_a_pipe, wait_for_a_file])
def test_the_limit_ends_native_waits_too(tmp_path, wait):
    """Of which Python's interpreter sees nothing; the text names the line."""
    with (
        pytest.raises(TimeLimitError, match=r"\n  rank 0: running at test_watchdog.py:\d+"),
        simrank.Context("hgx_h100", time_limit_s=0.2) as ctx,
    ):
        ctx.multiprocessing.spawn(lambda rank: wait(tmp_path), nprocs=2)
