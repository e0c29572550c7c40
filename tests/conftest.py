"""Fixtures shared by all tests, and the fixed hypothesis profile."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
from hypothesis import settings

import simrank

settings.register_profile("fixed", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("fixed")


def pytest_collection_modifyitems(items):
    """Order tests as SIMRANK_TEST_ORDER says: `reverse`, or a seed; none depends on another."""
    order = os.environ.get("SIMRANK_TEST_ORDER", "")
    if order == "reverse":
        items.reverse()
    elif order:
        permuted = np.random.default_rng(int(order)).permutation(len(items))
        items[:] = [items[index] for index in permuted]


def pytest_collection_finish(session):
    """Keep what collection made out of the garbage collector's sight: it lives to the end."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session):
    """Let it see everything again."""
    gc.unfreeze()


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
    with simrank.Context("hgx_h100") as context:
        yield context


@pytest.fixture
def shapes():
    """A shape-only Context that is current in the main program."""
    with simrank.Context("hgx_h100", data=False) as context:
        yield context
