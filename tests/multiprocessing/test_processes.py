"""ProcessContext and its processes: the names, texts and rules of torch and multiprocessing."""

import contextlib
import inspect
import multiprocessing.process
import sys

import pytest

import simrank
import simrank.distributed as dist
import simrank.multiprocessing as mp
from simrank.engine import Handle
from simrank.errors import DeadlockError, ProcessExitedException, SpawnException
from simrank.multiprocessing.processes import RankProcess

S = 10**12


def start(ctx, program, nprocs=3, **options):
    return ctx.multiprocessing.spawn(program, nprocs=nprocs, join=False, **options)


def exit_codes(started):
    return [process.exitcode for process in started.processes]


def test_processes_have_the_names_of_multiprocessing(ctx):
    """Name, pid, daemon, sentinel; alive until joined, then exit code 0."""
    started = start(ctx, lambda rank: ctx.engine.sleep(S * (rank + 1)))
    names = [process.name for process in started.processes]
    assert names == ["SpawnProcess-1", "SpawnProcess-2", "SpawnProcess-3"]
    assert [process.pid for process in started.processes] == started.pids()
    assert exit_codes(started) == [None] * 3
    assert repr(started.processes[0]) == "<RankProcess name='SpawnProcess-1' pid=5000000 started>"
    started.processes[1].join()
    assert ctx.now_ps == 2 * S
    assert [process.is_alive() for process in started.processes] == [False, False, True]
    assert exit_codes(started) == [0, 0, None]
    assert "stopped exitcode=0" in repr(started.processes[0])
    assert started.join()
    assert exit_codes(started) == [0, 0, 0]


def test_every_public_name_is_one_of_multiprocessing_process():
    """A program that uses them runs on real processes too."""
    ours = {name for name in dir(RankProcess) if not name.startswith("_")}
    theirs = {name for name, _ in inspect.getmembers(multiprocessing.process.BaseProcess)}
    assert ours <= theirs


def test_a_join_with_a_negative_timeout_only_asks(ctx):
    """As multiprocessing's: elastic's agents ask so."""
    started = ctx.multiprocessing.spawn(lambda rank: ctx.wait(ctx.timer(10)), nprocs=2, join=False)
    assert not started.join(timeout=-1)
    assert ctx.now_ps == 0
    assert started.processes[0].join(-2.5) is None
    assert started.join()
    assert started.join(timeout=-1)


def test_join_of_a_process_takes_a_timeout_and_returns_nothing(ctx):
    """In simulated seconds; the failure of the rank is raised by the context's join alone."""

    def program(rank):
        ctx.engine.sleep(S)
        raise ValueError(rank)

    started = start(ctx, program)
    first = started.processes[0]
    assert first.join(0.5) is None
    assert ctx.now_ps == S // 2
    assert first.is_alive()
    assert first.join() is None
    assert first.exitcode == 1
    assert first.join() is None
    with pytest.raises(SpawnException):
        started.join()


def test_a_rank_may_join_the_processes_it_started(run):
    """It waits as for everything else."""

    def program(rank, ctx):
        started = start(ctx, lambda _: ctx.engine.sleep(5 * S), 2)
        started.processes[0].join()
        assert ctx.now_ps == 5 * S
        started.join()

    run(program, 2)


def test_exit_codes_are_those_of_real_processes(ctx):
    """0, n modulo 256, 1 for text and exceptions, -15 for siblings that were ended."""
    codes = [None, 0, 7, -1, 256, "text", True]

    def program(rank):
        if rank == len(codes):
            ctx.wait(Handle())
        sys.exit(codes[rank])

    started = start(ctx, program, 8)
    with pytest.raises(ProcessExitedException, match="process 2 terminated with exit code 7") as e:
        started.join()
    assert e.value.signal_name is None
    assert exit_codes(started) == [0, 0, 7, 255, 0, 1, 1, -15]


def test_a_rank_that_swallows_its_end_is_killed(ctx):
    """As torch does after SIGTERM: exit code -9."""

    def program(rank):
        if rank == 0:
            raise ValueError
        while True:
            with contextlib.suppress(SystemExit):
                ctx.wait(Handle())

    started = start(ctx, program, 2)
    with pytest.raises(SpawnException):
        started.join()
    assert exit_codes(started) == [1, -9]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("is_running", [False, True])
def test_terminate_ends_a_rank_as_a_signal_and_its_siblings_with_it(ctx, name, is_running):
    """None of its code runs on; join raises torch's text with the signal."""
    ended = []

    def program(rank):
        try:
            ctx.engine.sleep(5 * S)
        finally:
            ended.append(rank)

    started = start(ctx, program)
    if is_running:
        assert not started.join(timeout=1)
    process = started.processes[1]
    (process.terminate if name == "SIGTERM" else process.kill)()
    assert not process.is_alive()
    with pytest.raises(ProcessExitedException, match=f"process 1 terminated with signal {name}"):
        started.join()
    code = -15 if name == "SIGTERM" else -9
    assert exit_codes(started) == [-15, code, -15]
    assert ended == [0, 2]
    assert ctx.now_ps == (S if is_running else 0)
    process.terminate()  # Of what has ended: nothing.
    assert process.exitcode == code


def test_a_rank_that_terminates_itself_runs_no_line_more(ctx):
    """With a sibling's reference to the processes."""
    started, ended = [], []

    def program(rank):
        if rank == 1:
            started[0].processes[1].kill()
            ended.append(rank)

    started.append(start(ctx, program, 2))
    with pytest.raises(ProcessExitedException) as caught:
        started[0].join()
    assert (caught.value.error_index, caught.value.exit_code) == (1, -9)
    assert caught.value.signal_name == "SIGKILL"
    assert not ended


def test_after_a_terminated_rank_later_runs_are_clean(ctx):
    """Collectives that were under way are dropped."""

    def program(rank):
        dist.init_process_group()
        dist.all_reduce(ctx.ones(2**20))
        ctx.synchronize()

    started = start(ctx, program)
    started.join(timeout=1e-6)
    started.processes[0].terminate()
    with pytest.raises(ProcessExitedException):
        started.join()
    assert not ctx.engine.pending
    ctx.multiprocessing.spawn(program, nprocs=3)


def test_a_process_is_closed_once_it_has_ended(ctx):
    """Before, it is a ValueError as in multiprocessing."""
    started = start(ctx, lambda rank: None, 1)
    with pytest.raises(ValueError, match="rank 0 still runs: it cannot be closed"):
        started.processes[0].close()
    started.join()
    started.processes[0].close()


def test_sentinels_are_those_whose_end_no_join_has_seen(ctx):
    """Sentinel -> rank, as torch keeps them."""
    started = start(ctx, lambda rank: ctx.engine.sleep(S * rank))
    assert list(started.sentinels.values()) == [0, 1, 2]
    assert list(started.sentinels) == [process.sentinel for process in started.processes]
    assert not started.join(timeout=1.5)
    assert list(started.sentinels.values()) == [2]
    assert started.join()
    assert started.sentinels == {}


def test_error_files_are_paths_where_nothing_is(ctx):
    """One per rank, as torch names them."""
    from pathlib import Path

    started = start(ctx, lambda rank: 1 / 0)
    with pytest.raises(SpawnException):
        started.join()
    assert len(set(started.error_files)) == 3
    assert not any(Path(path).exists() for path in started.error_files)


def test_spawn_context_is_torchs_old_name_and_warns(ctx):
    """With torch's text."""
    started = start(ctx, lambda rank: None)
    with pytest.warns(UserWarning, match="SpawnContext is renamed to ProcessContext since 1.4"):
        old = mp.SpawnContext(started.group, ctx)
    assert isinstance(old, mp.ProcessContext)


@pytest.mark.parametrize("is_in_context", [False, True])
def test_spawn_warns_of_another_start_method(ctx, is_in_context):
    """Torch's FutureWarning, at the caller's line; start_processes takes them."""
    names = ctx.multiprocessing if is_in_context else mp
    text = r"only supports start_method=spawn \(got: fork\)\.\nTo use a different start_method use:"
    with pytest.warns(FutureWarning, match=text) as warned:
        names.spawn(print, nprocs=0, start_method="fork")
    assert warned[0].filename == __file__
    names.start_processes(print, nprocs=0, start_method="fork")
    with pytest.raises(ValueError, match="cannot find context for 'vfork'"):
        names.start_processes(print, nprocs=0, start_method="vfork")


def test_a_daemonic_rank_cannot_have_children(run):
    """Multiprocessing's AssertionError; none is started for zero ranks."""

    def program(rank, ctx):
        ctx.multiprocessing.spawn(print, nprocs=0)
        with pytest.raises(AssertionError, match="daemonic processes are not allowed to have chil"):
            ctx.multiprocessing.spawn(print, nprocs=1)

    with simrank.Context("hgx_h100") as ctx:
        started = start(ctx, lambda rank: program(rank, ctx), 2, daemon=True)
        assert all(process.daemon for process in started.processes)
        started.join()


def test_daemonic_ranks_end_with_the_program_that_started_them():
    """Those of the main program when the Context exits, those of a rank when it returns."""
    with simrank.Context("hgx_h100") as ctx:
        inner = []

        def program(rank):
            inner.append(start(ctx, lambda _: ctx.wait(Handle()), 2, daemon=True))
            ctx.engine.sleep(S)

        outer = start(ctx, lambda rank: ctx.engine.sleep(100 * S), 2, daemon=True)
        ctx.multiprocessing.spawn(program, nprocs=1)
        assert exit_codes(inner[0]) == [-15, -15]
        assert exit_codes(outer) == [None, None]
    assert exit_codes(outer) == [-15, -15]
    assert ctx.now_ps == S


def test_siblings_run_on_for_the_grace_period_after_a_failure(ctx):
    """What ends by itself within it is not aborted; failures within it are root causes too."""
    ended = []

    def program(rank):
        ctx.engine.sleep(S * rank)
        if rank in (1, 2):
            raise ValueError(rank)
        if rank == 4:
            raise KeyError(rank)
        if rank == 5:
            ctx.wait(Handle())
        ended.append(rank)

    started = start(ctx, program, 6)
    with pytest.raises(SpawnException) as caught:
        started.join(grace_period=2.5)
    assert ctx.now_ps == 3.5 * S
    assert ended == [0, 3]
    assert list(caught.value.errors) == [1, 2]
    assert exit_codes(started) == [0, 1, 1, 0, -15, -15]
    assert "raised by rank 2 at t=2000000.000 us" in caught.value.errors[2].__notes__[0]


def test_the_grace_period_ends_with_the_last_sibling(ctx):
    """Time does not pass for nobody; the first failure is described first."""

    def program(rank):
        ctx.engine.sleep(S * (3 - rank))
        if rank != 1:
            raise ValueError(rank)

    started = start(ctx, program)
    with pytest.raises(SpawnException) as caught:
        started.join(grace_period=30)
    assert list(caught.value.errors) == [2, 0]
    assert caught.value.error_index == 2
    assert ctx.now_ps == 3 * S
    ctx.drain()
    assert ctx.now_ps == 3 * S


def test_a_deadlock_while_one_process_is_joined_ends_the_spawn(ctx):
    """The report is raised there; nothing is left behind."""
    started = start(ctx, lambda rank: ctx.wait(Handle()), 2)
    with pytest.raises(DeadlockError):
        started.processes[0].join()
    assert exit_codes(started) == [-15, -15]
    assert ctx.pending_waits == []
