"""State of a process: whatever a rank sets of what ranks share is seen, and only by its own."""

import atexit
import logging
import os
import random
import signal
import sys
import warnings
from unittest import mock

import pytest

from simrank.isolation import exits
from simrank.ranks.current import rank_program
from simrank.timings.process import state_of_process


def patch_a_function():
    mock.patch("os.cpu_count", return_value=3).start()


def draw():
    random.random()


CHANGES = {
    "the folder": lambda: os.chdir("/"),
    "the environment": lambda: os.environ.update(TIMING="1"),
    "the level of a logger": lambda: logging.getLogger("timings").setLevel("DEBUG"),
    "a handler of a logger": lambda: logging.getLogger("timings").addHandler(logging.Handler()),
    "a filter of warnings": lambda: warnings.simplefilter("ignore"),
    "the handler of a signal": lambda: signal.signal(signal.SIGUSR1, lambda *_: None),
    "a hook": lambda: setattr(sys, "excepthook", lambda *_: None),
    "a function at exit": lambda: atexit.register(int),
    "a patch": patch_a_function,
    "random numbers": draw,
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_rank_sets_is_part_of_its_state_alone(ctx, name):
    """Rank 0 sets something between two looks; the states of rank 1 are equal."""
    states = {}
    logging.getLogger("timings")  # It is made here, for all.

    def program(rank):
        exits.begin(rank_program(), is_forked=True)  # As a script has them.
        states[rank, "before"] = state_of_process()
        if rank == 0:
            CHANGES[name]()
        states[rank, "after"] = state_of_process()
        assert all(is_sure for _, is_sure in states.values())

    ctx.multiprocessing.spawn(program, nprocs=2, share_args=True)

    assert states[0, "before"] != states[0, "after"]
    assert states[1, "before"] == states[1, "after"]


def test_what_a_library_keeps_beside_does_not_count(ctx):
    """A rank that has logged remembers levels; the main program has no rank's state."""
    states = []

    def program(rank):
        logging.getLogger("timings").info("%d", rank)
        states.append(state_of_process())
        logging.getLogger("timings").info("%d", rank)
        logging.getLogger("other").isEnabledFor(logging.DEBUG)
        states.append(state_of_process())

    ctx.multiprocessing.spawn(program, nprocs=1, share_args=True)

    assert states[0] == states[1]
    assert state_of_process()[1]
