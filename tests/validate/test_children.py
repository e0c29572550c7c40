"""Fixtures end after the children of a test; `tests/origins` tests the functions themselves."""

from __future__ import annotations

import multiprocessing
import time

import pytest

import simrank.suites.on_processes  # noqa: F401 - once: pytester forgets what its sessions import

pytest_plugins = ["pytester"]

SPAWN = multiprocessing.get_context("fork")  # Fast; what is started imports nothing.


def started(fn, *args):
    process = SPAWN.Process(target=fn, args=args, daemon=True)  # A failed test leaves none.
    process.start()
    return process


GUARDED = """
import multiprocessing
import os
import select
import time

import pytest

fork = multiprocessing.get_context("fork")
{guard}

@pytest.fixture
def ipc_device():
    reading, writing = os.pipe()
    child = fork.Process(target=time.sleep, args=(600,), daemon=True)
    child.start()
    os.close(writing)  # The child holds the other.
    yield reading
    child.join(0)

@pytest.fixture
def ipc_memory_resource(ipc_device):
    yield
    ended, _, _ = select.select([ipc_device], [], [], 5)  # As close() does: for all who hold it.
    assert ended, "close() would wait for ever"

def test_before_its_own_kill(ipc_memory_resource):
    assert False, "the test's own failure"
"""


@pytest.mark.parametrize(
    "guard",
    [
        'pytestmark = pytest.mark.usefixtures("child_processes")',
        "@pytest.fixture(autouse=True)\ndef last(ipc_memory_resource, child_processes): pass",
    ],
)
def test_a_fixture_whose_close_waits_for_a_child_is_torn_down_after_the_kill(pytester, guard):
    """cuda-python's caveat: there close() runs before the tracker, and waits for ever.

    The guard is the outermost, in whatever order fixtures ask for each other.
    """
    pytester.makepyfile(GUARDED.replace("{guard}", guard))
    began = time.monotonic()
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-o", "timeout=60")
    result.assert_outcomes(failed=1)
    assert "the test's own failure" in result.stdout.str()
    assert time.monotonic() - began < 50


def test_a_fixture_whose_close_waits_for_a_rank_is_torn_down_after_the_kill(pytester):
    """The rank hangs with the other end of a pipe; its pool kills it before any fixture ends."""
    pytester.makepyfile("""
import os
import socket
import time

import pytest

@pytest.fixture
def resource():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()
        listening.settimeout(5)
        try:
            held, _ = listening.accept()
        except TimeoutError:
            return  # A busy machine: it was killed before it had come so far.
        with held:
            held.settimeout(5)
            assert held.recv(1) == b""  # Waits for the rank's end.

@pytest.mark.ranks(2)
def test_it(rank, resource):
    if rank == 1:
        client = socket.create_connection(resource)
        time.sleep(600)
""")
    options = ("--ranks-on=processes", "--ranks-timeout=1", "-o", "timeout=60")
    result = pytester.runpytest_inprocess(*options)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["WorkerTimeoutError: *[12] of 2 rank(s) did not answer within 1 s"]
    )
