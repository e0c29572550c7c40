"""Fixtures of the tests of torch programs."""

import pytest

import simrank


@pytest.fixture
def spawn():
    """Run `fn(rank, *args)` on simulated ranks; returns the Context."""

    def run(fn, nprocs=2, *args, **settings):
        with simrank.Context.for_ranks(nprocs, **settings) as context:
            context.multiprocessing.spawn(fn, args, nprocs, share_args=True)
        return context

    return run
