"""No process survives its pool, whatever ends it: seen by a word in the environment of them all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from simrank.errors import PoolError, WorkerDiedError
from simrank.validate import Options, WorkerPool

from . import cases
from .conftest import TOKEN, holders, none_left

HERE = Path(__file__).parent
START = f"""
import os, signal, sys, threading, time
from pathlib import Path
sys.path.insert(0, {str(HERE.parent)!r})
from simrank.validate import Options, WorkerPool
from validate import cases

def started(token):
    # Returns a pool whose workers have run a case.
    pool = WorkerPool(2, None, env={{{TOKEN!r}: token}})
    pool.run(os.getppid)
    return pool


def busy(token, path):
    # Returns a pool whose workers run a case that has descendants.
    pool = WorkerPool(2, None, env={{{TOKEN!r}: token}}, options=Options(retry=False))
    threading.Thread(target=pool.run, args=(cases.start_descendants, path), daemon=True).start()
    cases.descendants(Path(path), 2)
    return pool
"""


def program(token, body):
    """Run a program that starts a pool, its workers children, and they children of their own."""
    source = START + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-c", source, token],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=HERE.parent,
    )


def killed_when_ready(process):
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.wait()
    process.stdout.close()


def _start_descendants(pool, path):
    """Run a case that has descendants, until it is cut off."""
    with suppress(PoolError):
        pool.run(cases.start_descendants, str(path))


def test_descendants_of_all_kinds_are_there_before_they_are_killed(token, tmp_path):
    """The check itself: a worker, its fork, its child, and a grandchild in its own session."""
    one = WorkerPool(1, None, env={TOKEN: token}, options=Options(retry=False))
    with one:
        threading.Thread(target=_start_descendants, args=(one, tmp_path / "pids")).start()
        (pids,) = cases.descendants(tmp_path / "pids", 1)
        assert set(pids) < set(holders(token)), "the keeper is among them, too"
        assert os.getsid(pids[3]) == pids[3]
        os.kill(pids[0], signal.SIGKILL)
    assert none_left(token) == []


def test_what_a_case_started_ends_with_it(token, tmp_path):
    """Its fork is killed: the worker dies likewise, and nothing is left; the pool lives on."""
    with WorkerPool(2, None, env={TOKEN: token}, options=Options(retry=False)) as two:
        threading.Thread(target=_start_descendants, args=(two, tmp_path / "pids")).start()
        found = cases.descendants(tmp_path / "pids", 2)
        os.kill(found[0][1], signal.SIGKILL)
        assert two.run(cases.add, 1, 2) == [3, 3]
        assert not {pid for pids in found for pid in pids} & set(holders(token))


def test_no_rank_survives_a_pool_whose_process_is_killed(token, tmp_path):
    """SIGKILL: nobody can clean up; the lifelines close, and no rank need read its channel."""
    path = str(tmp_path / "asked")
    body = f"""
        pool = busy(sys.argv[1], {path!r})
        print("ready", flush=True)
        time.sleep(600)
    """
    killed_when_ready(program(token, body))
    assert none_left(token) == []


@pytest.mark.slow
def test_no_rank_survives_a_process_that_is_killed_while_a_rank_holds_its_interpreter(token):
    """Nor one that is in the middle of a case and listens to nobody."""
    body = """
        pool = started(sys.argv[1])
        threading.Thread(target=pool.run, args=(cases.hold_the_interpreter, 0), daemon=True).start()
        time.sleep(0.2)
        print("ready", flush=True)
        time.sleep(600)
    """
    killed_when_ready(program(token, body))
    assert none_left(token) == []


@pytest.mark.slow
def test_no_rank_survives_where_a_fork_holds_the_lifeline_open(token):
    """A child of the pool's process inherited the other end: its parent's end is seen otherwise."""
    body = """
        pool = started(sys.argv[1])
        child = os.fork()
        if child == 0:
            time.sleep(600)
        print(child, flush=True)
        print("ready", flush=True)
        time.sleep(600)
    """
    process = program(token, body)
    fork = int(process.stdout.readline())
    killed_when_ready(process)
    try:
        assert none_left(token) == []
    finally:
        os.kill(fork, signal.SIGKILL)


@pytest.mark.slow
def test_a_pool_made_in_a_short_lived_thread_keeps_its_workers():
    """A parent-death signal alone would kill them when that thread ends."""
    made = []
    thread = threading.Thread(target=lambda: made.append(WorkerPool(2, None)))
    thread.start()
    thread.join()
    starter = threading.Thread(target=made[0].start)
    starter.start()
    starter.join()
    with made[0] as two:
        pids = list(two.pids)
        time.sleep(0.7)  # Longer than a keeper takes to look for its parent.
        assert two.run(os.getppid) == pids


@pytest.mark.slow
def test_a_fork_that_ends_does_not_end_the_pool_of_its_parent(token):
    """It has a copy of the pool, and no right to it."""
    body = """
        pool = started(sys.argv[1])
        pids = pool.run(os.getppid)
        child = os.fork()
        if child == 0:
            del pool
            sys.exit(0)
        os.waitpid(child, 0)
        time.sleep(0.3)
        print("ready" if pool.run(os.getppid) == pids else "wrong", flush=True)
        time.sleep(600)
    """
    killed_when_ready(program(token, body))
    assert none_left(token) == []


def test_a_process_that_simply_ends_leaves_no_rank(token):
    """Without closing its pool."""
    process = program(token, "pool = started(sys.argv[1])")
    process.wait()
    process.stdout.close()
    assert process.returncode == 0
    assert none_left(token) == []


@pytest.mark.slow
def test_a_worker_dies_with_its_keeper(token):
    """Somebody kills the keeper: the worker follows at once, and the case says so."""
    options = Options(retry=False)
    with WorkerPool(2, None, env={TOKEN: token}, options=options) as two:
        two.start()
        worker = two.pids[0]
        keeper = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
        threading.Timer(0.2, os.kill, (keeper, signal.SIGKILL)).start()
        with pytest.raises(WorkerDiedError, match="its keeper with it"):
            two.run(cases.sleep)
    assert none_left(token) == []


def test_a_session_with_a_stuck_rank_ends_by_itself_and_not_with_zero(token):
    """Megatron's scenario 2: one rank fails, the others sit in an all-reduce; no outside help."""
    process = program(token, "started(sys.argv[1]).run(cases.raise_on, [0])")
    assert process.wait(timeout=30) == 1
    process.stdout.close()
    assert none_left(token) == []
