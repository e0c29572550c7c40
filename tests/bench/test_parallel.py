"""Runs in parallel: each of them once, whoever does it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simrank.bench import parallel
from simrank.bench.parallel import Workers, in_parallel
from simrank.errors import ConfigError, SimrankError

# What each needs, and how it is asked for.
BACKENDS = {"loky": "joblib", "dask": "distributed", "ray": "ray"}


def square(index):
    return index * index


def die(index):
    import os

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
    with pytest.raises(SimrankError, match="was killed; to fix: if memory ran out, take fewer"):
        list(in_parallel(die, [1, 2], Workers(2)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Of the libraries.
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_backend_of_joblib_does_each_run_once(backend):
    """Where it is installed."""
    pytest.importorskip("joblib")
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
        ("dask", r"joblib distributed, got"),
        ("ray:auto", r"joblib ray, got"),
    ],
)
def test_a_backend_that_is_not_installed_says_how_to_install_it(monkeypatch, backend, cure):
    """Before anything runs."""
    monkeypatch.setattr(parallel, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=f"joblib installed: pip install {cure}"):
        Workers(None, backend).check()


def test_processes_of_this_machine_need_no_joblib(monkeypatch):
    """Nothing to check, whatever is installed."""
    monkeypatch.setattr(parallel, "find_spec", lambda name: None)
    assert Workers(2).check() is None
