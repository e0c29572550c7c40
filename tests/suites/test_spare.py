"""Ranks that a test has ended are forked again, as they were after the imports of the suite."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from simrank.suites import spare

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are POSIX's")

HEAD = """
import os
import time

import pytest

import simrank
import simrank.distributed as dist

RANK = int(os.environ["RANK"])
with open("imports", "a") as file:
    file.write(f"{RANK} ")
imported = []
"""


def start(folder, body, *options):
    """Start a session whose ranks are worth a fork."""
    (folder / "conftest.py").write_text("import simrank.suites.driver as d\nd._FORK_S = 0\n")
    (folder / "test_it.py").write_text(HEAD + textwrap.dedent(body))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--simrank=3", *options]
    return subprocess.Popen(
        command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


def run(folder, body, *options):
    """Run such a session, and return its output; no process is left."""
    with start(folder, body, *options) as session:
        printed, _ = session.communicate(timeout=60)
    with pytest.raises(ProcessLookupError):
        os.killpg(session.pid, 0)
    return printed


@pytest.mark.slow
def test_ranks_after_a_hang_are_as_after_the_imports(tmp_path):
    """Each rank has imported the suite once, and what tests left in its modules is gone."""
    body = """
    @pytest.fixture(scope="session")
    def session():
        yield "made"
        if RANK == 0:
            with open("ends", "a") as file:
                file.write("x")

    def test_first():
        imported.append("first")
        dist.init_process_group("gloo")

    def test_hangs():
        if RANK == 1:
            dist.barrier()

    def test_after(session, tmp_path):
        assert imported == []
        imported.append("after")
        (tmp_path / "file").write_text("")
        dist.init_process_group("gloo")
        dist.barrier()

    def test_goes_on(session):
        assert imported == ["after"]

    def test_fails_on_a_rank(session):
        if RANK == 2:
            raise ValueError("two")
        dist.barrier()

    def test_last(session):
        assert imported == []
    """
    printed = run(tmp_path, body)
    assert "2 failed, 4 passed" in printed
    assert "rank 1: barrier #1 on group 'default_pg' at test_it.py:" in printed
    assert "ValueError: two" in printed
    assert "ranks 0-1: barrier #2 on group 'default_pg'" in printed
    assert sorted((tmp_path / "imports").read_text().split()) == ["0", "1", "2"]
    assert (tmp_path / "ends").read_text() == "x", "that of the last ranks; others were ended"


@pytest.mark.slow
def test_reports_and_warnings_of_forks_are_those_of_the_session(tmp_path):
    """Skips, expected failures, output, warnings, and what cannot be sent, as text."""
    body = """
    import warnings

    class Own(UserWarning):
        pass

    class Odd(Exception):
        def __reduce__(self):
            raise TypeError("no")

    def test_hangs():
        dist.init_process_group("gloo")
        if RANK == 1:
            dist.recv(simrank.zeros(1), 0)

    def test_skips():
        pytest.skip("why")

    @pytest.mark.xfail(strict=True)
    def test_is_expected():
        raise Odd

    def test_fails():
        warnings.warn(Own("a warning"))
        print("said by", RANK)
        raise Odd("odd")

    @pytest.mark.parametrize("value", [1, 2])
    def test_passes(value):
        pass
    """
    printed = run(tmp_path, body, "-rA")
    assert "2 failed, 2 passed, 1 skipped, 1 xfailed, 1 warning" in printed
    assert "SKIPPED [1] test_it.py" in printed
    assert "UserWarning: Own: a warning" in printed
    assert "said by 2" in printed
    assert "PASSED test_it.py::test_passes[2]" in printed


@pytest.mark.slow
def test_a_test_of_a_fork_that_takes_too_long_says_where_its_ranks_are(tmp_path):
    """pytest-timeout raises in the session; the ranks are stopped."""
    pytest.importorskip("pytest_timeout", reason="pytest-timeout is not installed")
    body = """
    def test_hangs():
        dist.init_process_group("gloo")
        if RANK == 1:
            dist.barrier()

    def test_is_late():
        while True:
            pass

    def test_last():
        pass
    """
    printed = run(tmp_path, body, "--timeout=1")
    assert "2 failed, 1 passed" in printed
    assert "Timeout (>1" in printed


@pytest.mark.slow
def test_ctrl_c_ends_the_forks(tmp_path):
    """Both the one that sleeps, and the one that runs a test."""
    body = """
    def test_hangs():
        dist.init_process_group("gloo")
        if RANK == 1:
            dist.barrier()

    def test_is_late():
        open("began", "w").close()
        while True:
            pass
    """
    with start(tmp_path, body) as session:
        for _ in range(600):
            if (tmp_path / "began").exists():
                break
            time.sleep(0.05)
        os.killpg(session.pid, signal.SIGINT)
        printed, _ = session.communicate(timeout=30)
    assert "KeyboardInterrupt" in printed
    with pytest.raises(ProcessLookupError):
        os.killpg(session.pid, 0)


def test_a_process_with_other_threads_is_not_forked():
    """A lock that one of them holds would be held for ever."""
    others = threading.active_count() - 1
    assert spare.can_fork(others)
    assert not spare.can_fork(others + 1)
