"""Fixtures of the tests of torch programs, which need torch."""

from importlib.util import find_spec

import pytest

import simrank

collect_ignore_glob = [] if find_spec("torch") else ["*.py"]


@pytest.fixture
def spawn():
    """Run `fn(rank, *args)` on simulated ranks; returns the Context."""

    def run(fn, nprocs=2, *args, **settings):
        with simrank.Context.for_ranks(nprocs, **settings) as context:
            context.multiprocessing.spawn(fn, args, nprocs, share_args=True)
        return context

    return run
