"""The state that every case starts from."""

from __future__ import annotations

import os
import random
import sys

import numpy as np
import pytest

from simrank.validate import Limits, Options, WorkerPool
from simrank.validate.reset import Baseline

from . import leftovers


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


@pytest.fixture(scope="module")
def worker():
    """One plain process that these tests share."""
    with WorkerPool(1, None, 60, options=Options(retry=False)) as pool:
        yield pool


@pytest.fixture(scope="module")
def fresh(worker):
    """The state of a worker that has run no case."""
    return worker.run(leftovers.state, fresh=True)


@pytest.mark.parametrize("name", leftovers.CHANGES)
def test_a_case_starts_as_in_a_fresh_worker(worker, fresh, name):
    """After a case that changed the state of the process; and the worker stays."""
    starts = worker.num_starts
    worker.run(leftovers.change, name)
    assert worker.run(leftovers.state) == fresh
    assert worker.num_starts == starts, list(worker.events)[-1]


def test_what_a_later_case_prints_and_writes_goes_where_it_should(worker, tmp_path):
    """Also from child processes, whichever descriptors the case before closed."""
    worker.run(leftovers.change, "standard output is closed")
    assert worker.run(leftovers.write_and_say, str(tmp_path / "file")) == ["written"]
    assert worker.output(0) == "from a child\nfrom Python\n" or "from Python" in worker.output(0)


def test_a_worker_that_only_a_new_process_is_free_of_is_replaced_and_the_case_named():
    """A thread that goes on, here."""
    options = Options(retry=False, limits=Limits(end_s=0.3))  # The thread outlives any.
    with WorkerPool(1, None, 60, options=options) as pool:
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
    with WorkerPool(1, None, 60, options=options) as pool:
        fresh = pool.run(leftovers.torch_state)
        pool.run(leftovers.change_torch)
        assert pool.run(leftovers.torch_state) == fresh
        assert pool.num_starts == 1
        pool.run(leftovers.enter_inference_mode)
        assert "left torch.inference_mode on rank 0" in pool.events[-1]
        assert pool.run(leftovers.torch_state) == fresh


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_soak_of_200_cases_that_leave_something_behind(seed):
    """Each case passes or fails as it would alone: every verdict is right."""
    rng = np.random.default_rng(seed)
    names = list(leftovers.CHANGES)
    with WorkerPool(2, None, 60, options=Options(retry=False)) as pool:
        fresh = pool.run(leftovers.state)
        for number in range(200):
            name = names[rng.integers(len(names))]
            pool.run(leftovers.change, name)
            assert pool.run(leftovers.state) == fresh, (number, name)
        assert pool.num_starts == 1
