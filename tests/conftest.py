"""Fixtures shared by all tests, and the fixed hypothesis profile."""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.util
import itertools
import os
import signal
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

import simrank
from simrank.cli import main

# A shell that starts the tests in the background lets them ignore Ctrl-C, which some test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# pytest prints whole messages in its summary under CI; tests compare what it prints.
for variable in ("CI", "BUILD_NUMBER"):
    os.environ.pop(variable, None)

# A program means the same whether another part of the process has imported torch or not.
if "SIMRANK_TEST_AFTER" in os.environ:
    importlib.import_module(os.environ["SIMRANK_TEST_AFTER"])

# Memory that a test reads before it is written holds the same loud values in every run: signalling
# NaNs, and integers far below any index; bytes become NaNs of any type. Large arrays begin with
# them, since their memory is not there before it is touched.
POISONED_BYTES = 1 << 20
SIGNALLING_NAN = {2: 0x7D00, 4: 0x7FA00000, 8: 0x7FF4 << 48}


def _poisoned(make):
    @functools.wraps(make)
    def made(*args, **options):
        array = make(*args, **options)
        if array.dtype.hasobject or not array.nbytes:
            return array
        flat = array.ravel("K")[: POISONED_BYTES // array.itemsize]
        if array.dtype.kind == "f" and array.itemsize in SIGNALLING_NAN:
            flat.view(f"u{array.itemsize}")[...] = SIGNALLING_NAN[array.itemsize]
        elif array.dtype.kind == "b":
            flat[...] = True
        else:
            is_integer = array.dtype.kind in "iu" and array.itemsize > 1
            flat.view(np.uint8)[...] = 0x81 if is_integer else 0xFF
        return array

    # A line of numpy, not of the program, for traces of its lines.
    made.__code__ = made.__code__.replace(co_filename=np.__file__)
    return made


np.empty, np.empty_like = _poisoned(np.empty), _poisoned(np.empty_like)

# The examples are the same in every run: many of them find no more than they did the first time.
settings.register_profile(
    "fixed", derandomize=True, deadline=None, print_blob=True, max_examples=40
)
settings.load_profile("fixed")

# Many tests collect garbage, which takes as long as there are objects: half a second, unfrozen.
TESTS_OF_A_FREEZE = 100
MODULES_OF_A_FREEZE = 50
_num_tests = itertools.count(1)
_frozen = {"modules": 0}


# Files that take 10 s or more begin first: else one worker is left with one of them at the end.
LONG = [
    Path(__file__).parent / name
    for name in (
        "validate/kit/test_kit.py", "equality/test_judge.py", "cli/test_equal.py", "test_guides.py",
        "torch/test_folding.py", "conformance/test_ranks_on.py", "programs/test_programs.py",
        "torch/devices/test_unknown_values.py", "conformance/test_c10d.py",
        "validate/test_this_worker.py", "conformance/test_compared.py", "torch/test_compiling.py",
        "conformance/test_torch_programs.py", "validate/test_pool.py",
        "calibration/test_kernel_fits.py", "suites/test_driver.py",
        "kernels/test_stock_interpreter.py", "equality/test_marker.py",
        "torch/test_testing.py",
    )
]  # fmt: skip


def pytest_collection_modifyitems(items):
    """Order tests as SIMRANK_TEST_ORDER says: `reverse`, or a seed; none depends on another.

    Those of a file stay together, so that what they share is made once.
    """
    order = os.environ.get("SIMRANK_TEST_ORDER", "")
    if order == "reverse":
        items.reverse()
    elif order:
        files = {}
        for item in items:
            files.setdefault(item.path, []).append(item)
        draw, of_files = np.random.default_rng(int(order)), list(files.values())
        chosen = (of_files[index] for index in draw.permutation(len(of_files)))
        items[:] = [each[index] for each in chosen for index in draw.permutation(len(each))]
    if "SIMRANK_SLOW_TENTH" in os.environ:  # `tests/check.py slow`: by a hash of the name.
        tenth = int(os.environ["SIMRANK_SLOW_TENTH"])
        items[:] = [each for each in items if zlib.crc32(each.nodeid.encode()) % 10 == tenth]
    assert all(path.exists() for path in LONG), "a file was moved"
    ranks = {path: rank for rank, path in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def pytest_collection_finish(session):
    """Keep what collection made out of the garbage collector's sight: it lives to the end."""
    _freeze()


def _freeze():
    gc.collect()
    gc.freeze()
    _frozen["modules"] = len(sys.modules)


def pytest_runtest_logfinish(nodeid):
    """Do so again now and then: tests import modules and fill caches, which live as long."""
    del nodeid
    is_due = next(_num_tests) % TESTS_OF_A_FREEZE == 0
    if is_due or len(sys.modules) > _frozen["modules"] + MODULES_OF_A_FREEZE:
        _freeze()


def pytest_sessionfinish(session):
    """Let it see everything again."""
    gc.unfreeze()


# A test without the mark `slow` takes less than 0.25 s, or seconds where it compares layouts of
# torch or runs real processes. None takes so much processor time, which other work hardly changes.
MAX_CPU_S = 30.0


def _cpu_s():
    return sum(
        os.times()[:2]
    )  # Without children: the first test with torch may wait for a compiler.


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail a test without the mark `slow` that takes too much processor time."""
    start_s = _cpu_s()
    result = yield
    used_s = _cpu_s() - start_s
    if used_s > MAX_CPU_S and item.get_closest_marker("slow") is None:
        pytest.fail(
            f"took {used_s:.1f} s of processor time, at most {MAX_CPU_S:g} s: mark it slow, "
            "or make it smaller",
            pytrace=False,
        )
    return result


@pytest.fixture(scope="session")
def torch_if_installed():
    """Import torch and the modules that ranks load with it: a process can do so only once."""
    if importlib.util.find_spec("torch") is not None:
        importlib.import_module("torch")
        with simrank.Context("hgx_h100") as context:
            context.multiprocessing.spawn(abs, nprocs=1)


@pytest.fixture
def pytester(torch_if_installed, pytester):
    """Run tests within a test. It forgets all modules but those that were there when it is made."""
    del torch_if_installed  # Wanted before it.
    return pytester


@pytest.fixture
def run():
    """Run `fn(rank, ctx, *args)` on ranks of a fresh Context; returns the Context."""

    def run_ranks(fn, nprocs=4, *args, cluster="hgx_h100", **options):
        context = simrank.Context(cluster, **options)
        with context:
            context.multiprocessing.spawn(fn, (context, *args), nprocs=nprocs)
        return context

    return run_ranks


@pytest.fixture
def ctx():
    """A Context that is current in the main program."""
    with simrank.Context("hgx_h100", races="off") as context:
        yield context


@pytest.fixture
def shapes():
    """A shape-only Context that is current in the main program."""
    with simrank.Context("hgx_h100", data=False) as context:
        yield context


@pytest.fixture
def cli(capsys):
    """Run the command line in this process; returns (status, stdout, stderr)."""

    def run_cli(*args):
        with pytest.raises(SystemExit) as stop:
            main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return stop.value.code or 0, captured.out, captured.err

    return run_cli
