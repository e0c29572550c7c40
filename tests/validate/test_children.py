"""Children of tests are killed, and exactly those that had to be; cuda-python's semantics."""

from __future__ import annotations

import multiprocessing
import time

from simrank.validate import kill_subprocesses, track_child_processes

SPAWN = multiprocessing.get_context("fork")  # Fast; what is started imports nothing.


def started(fn, *args):
    process = SPAWN.Process(target=fn, args=args)
    process.start()
    return process


def test_exactly_those_that_are_alive_are_killed():
    """Never started, finished and closed ones give nothing, and raise nothing."""
    fresh, closed = SPAWN.Process(target=time.sleep), started(int)
    closed.join()
    closed.close()
    finished, stuck = started(int), started(time.sleep, 600)
    finished.join()
    assert kill_subprocesses(fresh, closed, finished, stuck) == [stuck]
    assert stuck.exitcode == -9
    assert kill_subprocesses(stuck) == []


def test_children_of_every_kind_are_tracked_and_survivors_killed():
    """Processes and a pool's; `__init__` is as before afterwards, also after an error."""
    original = multiprocessing.process.BaseProcess.__init__
    try:
        with track_child_processes() as made:
            stuck, clean = started(time.sleep, 600), started(int)
            pool = SPAWN.Pool(1)
            clean.join()
            pool.terminate()
            pool.join()
            assert len(made) == 3
            raise ValueError
    except ValueError:
        pass
    assert multiprocessing.process.BaseProcess.__init__ is original
    assert stuck.exitcode == -9
    assert clean.exitcode == 0
    assert not any(process.is_alive() for process in made)
