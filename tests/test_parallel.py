"""Runs in parallel: each of them once, whoever does it."""

import os
import pickle
import socket
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simrank
from simrank import parallel
from simrank.errors import ConfigError, SimrankError
from simrank.parallel import Workers, in_parallel

# What each needs, and how it is asked for.
BACKENDS = {"loky": "joblib", "dask": "distributed", "ray": "ray"}


def square(index):
    return index * index


def process(index):
    return os.getpid()


def die(index):
    os._exit(index)


def fail(index):
    raise SimrankError(f"run {index}")


@given(indices=st.lists(st.integers(), max_size=9))
def test_runs_here_come_one_after_the_other(indices):
    """In their order."""
    assert list(in_parallel(square, indices, Workers())) == [(each, each**2) for each in indices]


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 3])
def test_processes_do_each_run_once(jobs):
    """More of them than runs, too."""
    workers = Workers(jobs)
    for indices in ((5, 1), range(7), ()):
        assert sorted(in_parallel(square, indices, workers)) == sorted(
            (each, each**2) for each in indices
        )


@pytest.mark.slow
def test_an_error_in_a_process_is_raised_here_and_a_dead_process_is_named():
    """With a cure."""
    with pytest.raises(SimrankError, match="run 3"):
        list(in_parallel(fail, [3], Workers(2)))
    with pytest.raises(SimrankError, match=r"a worker of --jobs was killed; .* take fewer --jobs"):
        list(in_parallel(die, [1, 2], Workers(2)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Of the libraries.
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_worker_of_a_backend_is_named(backend):
    """An error of a run is raised as it is."""
    pytest.importorskip(BACKENDS[backend])
    with pytest.raises(SimrankError, match="run 3"):
        list(in_parallel(fail, [3], Workers(2, backend)))
    with pytest.raises(SimrankError, match=r"a worker of .* was killed.*; finished rows are right"):
        list(in_parallel(die, [1], Workers(2, backend)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Of the libraries.
@pytest.mark.parametrize("backend", ["dask:tcp://127.0.0.1:{}", "ray:127.0.0.1:{}"])
def test_an_address_with_no_listener_is_a_bad_option(backend, monkeypatch):
    """In seconds."""
    pytest.importorskip(BACKENDS[backend.partition(":")[0]])
    monkeypatch.setattr(parallel, "_CONNECT_S", 1)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        named = backend.format(unused.getsockname()[1])
        with pytest.raises(ConfigError, match="--backend: expected the address of"):
            list(in_parallel(square, [1], Workers(None, named)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Of the libraries.
def test_one_worker_of_dask_with_threads_does_the_runs():
    """Not the process that asks."""
    distributed = pytest.importorskip("distributed")
    local = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": ":0"}
    with distributed.LocalCluster(**local) as cluster:
        workers = Workers(None, f"dask:{cluster.scheduler_address}")
        found = dict(in_parallel(process, range(3), workers))
    (worker,) = set(found.values())
    assert worker != os.getpid()


def test_dasks_profiler_stands_still_during_runs():
    """The frames that it holds would move the peaks of memory; a worker may have none."""
    done = []
    profiler = SimpleNamespace(start=lambda: done.append("start"), stop=lambda: done.append("stop"))
    worker = SimpleNamespace(periodic_callbacks={"profile": profiler})
    for runs in (False, True):
        parallel._set_profiler(worker, runs=runs)
        parallel._set_profiler(SimpleNamespace(periodic_callbacks={}), runs=runs)
    assert done == ["stop", "start"]


def test_a_worker_with_another_simrank_is_named():
    """Before any run; the probe is sent as code, since a worker may have no simrank."""
    own = parallel._prober()()
    assert own == f"simrank {simrank.__version__}"
    assert parallel._check_versions("Dask", {"a:1": own}) is None
    with pytest.raises(
        SimrankError, match=r"worker b:2 of Dask has no simrank \(x\), as 1 more of 3"
    ):
        parallel._check_versions("Dask", {"a:1": own, "b:2": "no simrank (x)", "c:3": "simrank 0"})
    with pytest.raises(SimrankError, match="Ray has no worker"):
        parallel._check_versions("Ray", {})
    with pytest.raises((AttributeError, pickle.PicklingError)):  # By name it cannot be sent.
        pickle.dumps(parallel._prober())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Of the libraries.
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_backend_of_joblib_does_each_run_once(backend):
    """Where it is installed."""
    pytest.importorskip(BACKENDS[backend])
    found = sorted(in_parallel(square, range(11), Workers(2, backend)))
    assert found == [(each, each**2) for each in range(11)]


@pytest.mark.parametrize("backend", ["rey", "", "loky:here", "dask:", "Dask"])
def test_a_backend_that_is_none_is_a_bad_option(backend):
    """The message has the choices."""
    with pytest.raises(ConfigError, match="--backend: expected loky, ray or dask") as caught:
        list(in_parallel(square, [1], Workers(2, backend)))
    assert str(caught.value).endswith(f"got {backend}")


@pytest.mark.parametrize(
    ("backend", "cure"),
    [
        ("loky", r"joblib, got"),
        ("dask", r"distributed, got"),
        ("ray:auto", r"ray, got"),
    ],
)
def test_a_backend_that_is_not_installed_says_how_to_install_it(monkeypatch, backend, cure):
    """Before anything runs."""
    monkeypatch.setattr(parallel, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=f"installed: pip install {cure}"):
        Workers(None, backend).check()


def test_processes_of_this_machine_need_no_joblib(monkeypatch):
    """Nothing to check, whatever is installed."""
    monkeypatch.setattr(parallel, "find_spec", lambda name: None)
    assert Workers(2).check() is None
