"""cuda-python PR 2124: tests with child processes, guarded by a limit per child and one outside.

Numbers 1 to 8 are its requirements; "caveat" is what its review left open.
"""

import gc
import multiprocessing
import os
import time
from datetime import timedelta

import pytest

import simrank.distributed as dist
import simrank.suites.on_processes  # noqa: F401 - once: pytester forgets what its sessions import
from simrank.errors import SpawnException, WaitTimeoutError
from simrank.validate import (
    WorkerPool,
    child_timeout,
    kill_subprocesses,
    outer_timeout,
    track_child_processes,
)

pytest_plugins = ["pytester"]

FORK = multiprocessing.get_context("fork")  # Fast; what is started imports nothing.
FACTORS = ("CUDA_PYTHON_UNDER_SANITIZER", "CUDA_INJECTION64_PATH", "LD_PRELOAD")


def started(fn, *args):
    process = FORK.Process(target=fn, args=args, daemon=True)  # A failed test leaves none.
    process.start()
    return process


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [({}, 30), ({"CUDA_PYTHON_UNDER_SANITIZER": "1"}, 120),
     ({"CUDA_INJECTION64_PATH": "/opt/compute-sanitizer/libsanitizer.so"}, 120),
     ({"SIMRANK_TIMEOUT_FACTOR": "2"}, 60)],
)  # fmt: skip
def test_a_child_has_30_seconds_and_120_under_compute_sanitizer(monkeypatch, variables, seconds):
    """1, 6, 8: read at each call. A test has 30 s more, for any number of children.

    The variables are those of the parent, so a sanitizer on the parent alone is seen.
    """
    for name in FACTORS:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert child_timeout() == seconds
    assert outer_timeout() == seconds + 30


def test_exactly_the_live_children_are_killed():
    """2: a child that was not started, has ended, was closed or has another parent is left out."""
    fresh, closed = FORK.Process(target=time.sleep), started(int)
    closed.join()
    closed.close()
    finished, stuck = started(int), started(time.sleep, 600)
    finished.join()
    foreign = started(time.sleep, 600)
    foreign._parent_pid = -1  # As of a process that another one has started.
    assert kill_subprocesses(fresh, closed, finished, foreign, stuck) == [stuck]
    assert stuck.exitcode == -9
    foreign._parent_pid = os.getpid()
    assert kill_subprocesses(foreign) == [foreign]
    assert kill_subprocesses(stuck) == []


def test_the_state_of_all_children_is_gathered_before_an_assertion():
    """3: join with a limit, kill the survivors, then look at exit codes."""
    children = [started(os._exit, 3), started(time.sleep, 600), started(int)]
    for child in (children[0], children[2]):
        child.join(child_timeout())
    killed = kill_subprocesses(*children)
    assert killed == [children[1]]
    assert [child.exitcode for child in children] == [3, -9, 0]


def test_the_errors_of_all_ranks_are_gathered_before_spawn_raises(run):
    """3: on simulated ranks in one exception."""

    def program(rank, ctx):
        if rank:
            raise ValueError(rank)

    with pytest.raises(SpawnException) as caught:
        run(program, 3)
    assert sorted(caught.value.errors) == [1, 2]


def test_a_wait_that_runs_out_of_time_is_an_error(run):
    """4: not a return value that a test may forget; it names the missing rank."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        if rank == 0:
            dist.all_reduce(ctx.ones(4), async_op=True).wait(timedelta(seconds=2))

    with pytest.raises(SpawnException) as caught:
        run(program, 2)
    error = caught.value.errors[0]
    assert isinstance(error, WaitTimeoutError)
    assert any("rank 1: returned" in note for note in error.__notes__)


def test_children_of_every_kind_are_tracked_and_survivors_killed():
    """5: of every start method, and of a pool; `__init__` is restored, also after an error.

    A process object that is dropped is not kept.
    """
    original = multiprocessing.process.BaseProcess.__init__
    try:
        with track_child_processes() as made:
            stuck, clean = started(time.sleep, 600), started(int)
            pool = FORK.Pool(1)
            clean.join()
            pool.terminate()
            pool.join()
            assert len(made) == 3
            methods = multiprocessing.get_all_start_methods()
            kept = [multiprocessing.get_context(name).Process() for name in methods]
            kept.append(multiprocessing.Process())
            assert set(kept) < set(made)
            del kept
            gc.collect()
            assert len(made) == 3
            raise ValueError
    except ValueError:
        pass
    assert multiprocessing.process.BaseProcess.__init__ is original
    assert stuck.exitcode == -9
    assert clean.exitcode == 0
    assert not any(process.is_alive() for process in made)


@pytest.mark.parametrize(("marker", "outcome"), [("", "passed"), ("timeout", "failed")])
def test_the_outer_limit_has_a_test_of_its_own(pytester, marker, outcome):
    """7: a suite imports it; it fails where a test on real ranks has lost its limit."""
    pytester.makeconftest(f"""
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items):
    yield
    for item in items:
        item.own_markers[:] = [each for each in item.own_markers if each.name != {marker!r}]
""")
    pytester.makepyfile("""
import pytest
from simrank.validate.testing import test_every_test_on_real_ranks_has_an_outer_time_limit

@pytest.mark.skip
@pytest.mark.ranks(2)
def test_it(rank):
    pass
""")
    result = pytester.runpytest_inprocess("--ranks-on=processes", "-p", "no:cacheprovider")
    result.assert_outcomes(**{outcome: 1}, skipped=1)


@pytest.mark.slow
def test_a_pool_kills_its_workers_before_it_closes_their_resources():
    """caveat: there `close()` of a resource runs first, and waits for a child that holds it."""
    alive = []

    class Resource:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            for pid in pids:
                try:
                    os.kill(pid, 0)
                except ProcessLookupError:
                    continue
                alive.append(pid)

    with WorkerPool(1, None) as one:
        one.enter(Resource())
        pids = one.run(os.getppid)
    assert alive == []
