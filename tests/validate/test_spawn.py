"""A suite that was written for torch.multiprocessing.spawn, with one line changed."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import time
import types

import pytest

import simrank.validate as mp
from simrank import errors
from simrank.validate.spawn import _pool

from . import cases


@pytest.fixture(autouse=True, scope="module")
def _ends():
    """Pools of `spawn` end with the process; here with the module."""
    yield
    for nprocs in (1, 2, 3):
        _pool(nprocs).close()
    _pool.cache_clear()


def program(rank, world_size, queue):
    queue.put((rank, world_size, os.environ.get("SPAWN_TEST"), os.getppid()))


def failing(rank, ranks):
    if rank in ranks:
        raise ValueError(f"boom {rank}")


def leaving(rank, code):
    sys.exit(code)


def dying(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def exiting(rank):
    if rank == 1:
        os._exit(7)
    time.sleep(600)


def sleeping(rank, seconds):
    time.sleep(seconds)


def received(queue, count):
    found = sorted(queue.get(timeout=20) for _ in range(count))
    queue.close()
    queue.join_thread()
    return found


def test_a_program_of_mp_spawn_runs_unchanged(monkeypatch):
    """Its queue, its rank, and the environment as it is at the call."""
    pids = []
    for value in ("first", "second"):
        monkeypatch.setenv("SPAWN_TEST", value)
        queue = multiprocessing.get_context("spawn").SimpleQueue()
        assert mp.spawn(program, args=(2, queue), nprocs=2) is None
        found = sorted(queue.get() for _ in range(2))
        queue.close()
        assert [entry[:3] for entry in found] == [(0, 2, value), (1, 2, value)]
        pids.append([entry[3] for entry in found])
    assert pids[0] == pids[1], "the processes are warm"


def test_a_queue_with_a_thread_of_its_own_comes_through():
    """multiprocessing.Queue, too."""
    queue = multiprocessing.get_context("spawn").Queue()
    mp.spawn(program, args=(2, queue), nprocs=2)
    assert [entry[0] for entry in received(queue, 2)] == [0, 1]


def test_what_a_rank_raises_is_torchs_error_with_every_root_cause():
    """The lowest rank's traceback as torch words it; the pool's report is its cause."""
    with pytest.raises(mp.ProcessRaisedException) as caught:
        mp.spawn(failing, args=([0, 1],), nprocs=2)
    error = caught.value
    assert isinstance(error, errors.SpawnException)
    assert error.msg.startswith("\n\n-- Process 0 terminated with the following error:\nTraceback")
    assert (error.error_index, sorted(error.errors)) == (0, [0, 1])
    assert error.error_pid > 0
    assert isinstance(error.__cause__, errors.RanksRaisedError)


def test_an_exit_code_of_zero_is_no_error():
    """And another is what torch makes of it."""
    mp.spawn(leaving, args=(0,), nprocs=2)
    with pytest.raises(mp.ProcessExitedException) as caught:
        mp.spawn(leaving, args=(3,), nprocs=2)
    assert caught.value.exit_code == 3


def test_a_rank_that_dies_is_torchs_error():
    """By a signal, or by an exit that nobody could catch."""
    with pytest.raises(mp.ProcessExitedException) as caught:
        mp.spawn(dying, nprocs=2)
    error = caught.value
    assert (error.error_index, error.exit_code, error.signal_name) == (1, -9, "SIGKILL")
    assert str(error) == "process 1 terminated with signal SIGKILL"
    with pytest.raises(mp.ProcessExitedException, match="exit code 7") as caught:
        mp.spawn(exiting, nprocs=2)
    assert (caught.value.exit_code, caught.value.signal_name) == (7, None)


def test_a_hang_ends_although_torchs_spawn_would_wait_for_ever():
    """With the stacks of all ranks."""
    with pytest.raises(errors.WorkerTimeoutError, match="in sleeping"):
        mp.spawn(sleeping, args=(600,), nprocs=2, timeout=1.0)


def test_a_context_is_joined_until_it_returns_true():
    """`join=False`."""
    context = mp.spawn(sleeping, args=(0.2,), nprocs=2, join=False)
    while not context.join(timeout=0.05):
        pass
    assert len(context.pids()) == 2
    failed = mp.spawn(failing, args=([1],), nprocs=2, join=False)
    with pytest.raises(mp.ProcessRaisedException):
        failed.join()


def test_a_start_method_that_is_none_is_refused():
    """As multiprocessing does."""
    with pytest.raises(ValueError, match="cannot find context for 'thread'"):
        mp.spawn(sleeping, args=(0,), start_method="thread")


def test_torchs_own_classes_catch_it(monkeypatch):
    """Where torch.multiprocessing is imported; here a stand-in with its classes."""

    class ProcessException(Exception):  # noqa: N818 - torch's names, and its slots
        __slots__ = ("error_index", "error_pid")

    class ProcessRaisedException(ProcessException):
        def __init__(self, msg, error_index, error_pid):
            super().__init__(msg)

    class ProcessExitedException(ProcessException):
        __slots__ = ("exit_code",)

    theirs = types.ModuleType("torch.multiprocessing")
    theirs.ProcessRaisedException = ProcessRaisedException
    theirs.ProcessExitedException = ProcessExitedException
    monkeypatch.setitem(sys.modules, "torch.multiprocessing", theirs)
    with pytest.raises(ProcessRaisedException) as caught:
        mp.spawn(failing, args=([1],), nprocs=2)
    assert isinstance(caught.value, errors.SpawnException)
    assert caught.value.error_index == 1
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(ProcessExitedException) as caught:
        mp.spawn(leaving, args=(4,), nprocs=1)
    assert (caught.value.error_index, caught.value.exit_code) == (0, 4)


@pytest.mark.slow
def test_torch_programs_make_and_leave_their_own_groups(tmp_path, monkeypatch):
    """One after the other, also after one that failed and left its group behind."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import torch.multiprocessing as torchs

    from . import gloo_cases

    mp.spawn(gloo_cases.spawned, args=(2, str(tmp_path / "a")), nprocs=2)
    monkeypatch.setenv("FAIL_ON", "1")
    with pytest.raises(torchs.ProcessRaisedException, match="failed on 1"):
        mp.spawn(gloo_cases.spawned, args=(2, str(tmp_path / "b")), nprocs=2)
    monkeypatch.delenv("FAIL_ON")
    mp.spawn(gloo_cases.spawned, args=(2, str(tmp_path / "c")), nprocs=2)
    assert torch.__version__


def test_cases_of_a_pool_and_of_spawn_are_the_same_functions():
    """A function that takes no rank asks for it."""
    with mp.WorkerPool(1, None) as one:
        assert one.run(cases.rank_and, 5) == [(0, 5)]
