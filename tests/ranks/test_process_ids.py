"""Process ids of ranks: as different as those of processes, and the same in every run."""

import multiprocessing.util
import os
import signal
import subprocess
import sys

import pytest

import simrank
from simrank.errors import ProcessExitedException, UnsupportedError

CARRIERS = ["greenlet", "thread"]


def ids(carrier):
    """Return the ids that ranks of two spawns find, and what the spawns say of them."""
    found, real = [], os.getpid()

    def inner(rank):
        found.append((os.getpid(), os.getppid()))

    def program(rank, ctx):
        found.append((os.getpid(), os.getppid()))
        if rank == 1:
            ctx.multiprocessing.spawn(inner, nprocs=2)

    with simrank.Context("hgx_h100", carrier=carrier) as ctx:
        started = ctx.multiprocessing.spawn(program, (ctx,), nprocs=2, join=False)
        started.join()
        assert os.getpid() == real
        assert [pid for pid, _ in found[:2]] == started.pids()
        assert [parent for _, parent in found[:2]] == [real, real]
        assert [parent for _, parent in found[2:]] == [found[1][0]] * 2
    return [pid for pid, _ in found]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_each_rank_has_a_number_of_its_own_that_repeats(carrier):
    """Nested spawns too; parents are who spawned."""
    first = ids(carrier)
    assert len(set(first)) == 4
    assert first == ids(carrier)
    assert os.getpid() not in first


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_signal_for_another_rank_ends_that_one(carrier):
    """By its number, and nobody else of the machine; 0 asks whether it lives."""
    asked = []

    def program(rank, ctx):
        me = os.getpid()
        if rank == 0:
            os.kill(me + 1, 0)
            os.kill(me + 1, signal.SIGKILL)
            ctx.engine.sleep(10)
            with pytest.raises(ProcessLookupError):
                os.kill(me + 1, 0)
            asked.append(rank)
        ctx.engine.sleep(1000)

    with (
        pytest.raises(ProcessExitedException) as caught,
        simrank.Context("hgx_h100", carrier=carrier, on_failure="continue") as ctx,
    ):
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
    assert (caught.value.error_index, caught.value.exit_code) == (1, -signal.SIGKILL)
    assert asked == [0]


def test_a_signal_for_another_rank_that_handles_it_is_refused(run):
    """It would have to run the handler at once; one that ignores it ignores it."""

    def program(rank, ctx):
        if rank == 1:
            signal.signal(signal.SIGTERM, print)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        ctx.engine.sleep(10)
        if rank == 0:
            os.kill(os.getpid() + 1, signal.SIGUSR1)
            with pytest.raises(UnsupportedError, match="which handles it, from another rank"):
                os.kill(os.getpid() + 1, signal.SIGTERM)
        ctx.engine.sleep(10)

    run(program, 2)


def test_what_is_no_rank_s_number_is_the_system_s(run):
    """A child is signalled as ever, and finds the real process as its parent."""

    def program(rank, ctx):
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
            os.kill(child.pid, signal.SIGKILL)
        assert child.returncode == -signal.SIGKILL
        with pytest.raises(ProcessLookupError):
            os.kill(os.getpid() + 1000, signal.SIGKILL)

    run(program, 1)


def test_the_standard_library_finds_the_real_process(run):
    """A finalizer of multiprocessing would take itself for a forked one's."""
    ran = []

    def program(rank, ctx):
        multiprocessing.util.Finalize(None, ran.append, (rank,), exitpriority=0)()

    run(program, 2)
    assert ran == [0, 1]


def test_a_package_that_ranks_share_does_not_take_them_for_forked(run):
    """By the number: filelock forgets its open files in a child that was forked."""
    kept = {"os": os, "__name__": "filelock._api"}
    exec("pid = os.getpid()\nwas_forked = lambda: os.getpid() != pid", kept)  # noqa: S102 - of that name

    def program(rank, ctx):
        assert not kept["was_forked"]()
        assert os.getpid() != kept["pid"]

    run(program, 2)


def test_psutil_finds_the_process_under_the_number_of_the_rank(run):
    """As programs ask for their memory: `psutil.Process(os.getpid())`."""
    psutil = pytest.importorskip("psutil")

    def program(rank, ctx):
        assert psutil.Process(os.getpid()).memory_info().rss > 0
        assert psutil.Process(os.getpid()) == psutil.Process()

    run(program, 2)
