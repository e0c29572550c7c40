"""The state that every case starts from."""

from __future__ import annotations

import os
import random
import sys

import numpy as np
import pytest

from simrank.errors import RanksRaisedError
from simrank.validate import Limits, Options, WorkerPool
from simrank.validate.reset import Baseline

from . import leftovers, threaded


def test_environment_folder_arguments_and_seeds_are_restored(monkeypatch, tmp_path):
    """Whatever a case did to them."""
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["program"])
    baseline = Baseline()
    baseline.restore()
    drawn = random.random(), np.random.rand()
    monkeypatch.delenv("KEPT")
    monkeypatch.setenv("ADDED", "1")
    os.chdir("/")
    sys.argv.append("more")
    baseline.restore()
    assert (os.environ["KEPT"], os.environ.get("ADDED")) == ("1", None)
    assert os.getcwd() == str(tmp_path)
    assert sys.argv == ["program"]
    assert (random.random(), np.random.rand()) == drawn


def test_a_folder_that_is_gone_is_passed_over(monkeypatch, tmp_path):
    """The case that needs it says so."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    baseline = Baseline()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").rmdir()
    baseline.restore()
    assert os.getcwd() == str(tmp_path)


# ---- what a case leaves behind ----


KEPT = threaded.stay  # A hook whose module starts a thread: the worker keeps its process.


@pytest.fixture(scope="module", params=[None, KEPT], ids=["forks", "is kept"])
def worker(request):
    """One process that these tests share: it runs cases in forks, or keeps its process."""
    options = Options(retry=False, limits=Limits(end_s=0.3))
    with WorkerPool(1, None, 60, reset=request.param, options=options) as pool:
        yield pool


@pytest.fixture(scope="module")
def fresh(worker):
    """The state of a worker that has run no case."""
    return worker.run(leftovers.state, fresh=True)


@pytest.mark.parametrize("name", leftovers.CHANGES)
def test_a_case_starts_as_in_a_fresh_worker(worker, fresh, name):
    """After a case that changed the state of the process, and was judged rightly."""
    assert worker.run(leftovers.change, name) == [None]
    assert worker.run(leftovers.state) == fresh


@pytest.mark.parametrize("name", leftovers.FOR_GOOD)
def test_a_kept_worker_is_replaced_where_a_change_stays(name):
    """And only there; a fork's changes end with it."""
    for reset, num_starts in ((None, 1), (KEPT, 2)):
        options = Options(retry=False, limits=Limits(end_s=0.3))
        with WorkerPool(1, None, 60, reset=reset, options=options) as pool:
            pool.run(leftovers.change, name)
            pool.run(leftovers.state)
            assert pool.num_starts == num_starts, (reset, list(pool.events))


@pytest.mark.slow
def test_other_changes_are_put_back_in_a_kept_worker():
    """In its process: none is replaced."""
    with WorkerPool(1, None, 60, reset=KEPT, options=Options(retry=False)) as pool:
        for name in leftovers.CHANGES.keys() - set(leftovers.FOR_GOOD):
            pool.run(leftovers.change, name)
            pool.run(leftovers.state)
            assert pool.num_starts == 1, (name, list(pool.events))


def test_what_a_later_case_prints_and_writes_goes_where_it_should(worker, tmp_path):
    """Also from child processes, whichever descriptors the case before closed."""
    worker.run(leftovers.change, "standard output is closed")
    assert worker.run(leftovers.write_and_say, str(tmp_path / "file")) == ["written"]
    assert worker.output(0) == "from a child\nfrom Python\n" or "from Python" in worker.output(0)


def test_a_worker_that_only_a_new_process_is_free_of_is_replaced_and_the_case_named():
    """A thread that goes on, here."""
    options = Options(retry=False, limits=Limits(end_s=0.3))  # The thread outlives any.
    with WorkerPool(1, None, 60, reset=KEPT, options=options) as pool:
        pool.run(leftovers.leave_a_thread)
        assert pool.events[-1].endswith(
            "(leave_a_thread) left thread 'left' on rank 0; the workers are ended"
        )
        pool.run(leftovers.state)
        assert pool.num_starts == 2


def test_settings_of_torch_are_restored():
    """Default device and dtype, threads, modes, determinism; and its generator is seeded."""
    pytest.importorskip("torch", reason="torch is not installed")
    options = Options(retry=False, preload=("torch",))
    with WorkerPool(1, None, 60, reset=KEPT, options=options) as pool:
        fresh = pool.run(leftovers.torch_state)
        pool.run(leftovers.change_torch)
        assert pool.run(leftovers.torch_state) == fresh
        assert pool.num_starts == 1
        pool.run(leftovers.enter_inference_mode)
        assert "left torch.inference_mode on rank 0" in pool.events[-1]
        assert pool.run(leftovers.torch_state) == fresh


@pytest.mark.slow
@pytest.mark.parametrize("reset", [None, KEPT], ids=["forks", "is kept"])
def test_a_soak_of_300_cases_that_leave_something_behind(reset):
    """Each passes or fails as it would alone, some after several changes at once."""
    rng = np.random.default_rng(0)
    names = list(leftovers.CHANGES)
    options = Options(retry=False, limits=Limits(end_s=0.3))
    with WorkerPool(2, None, 60, reset=reset, options=options) as pool:
        fresh = pool.run(leftovers.state)
        for number in range(300):
            mine = [names[each] for each in rng.integers(len(names), size=rng.integers(1, 4))]
            if number % 3:
                assert pool.run(leftovers.change, *mine) == [None, None], (number, mine)
            else:
                with pytest.raises(RanksRaisedError, match="after the changes"):
                    pool.run(leftovers.change_and_raise, *mine)
            assert pool.run(leftovers.state) == fresh, (number, mine)
        assert (pool.num_starts == 1) == (reset is None)
