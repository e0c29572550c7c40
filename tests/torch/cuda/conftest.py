"""Fixtures of the tests of simulated CUDA devices, which need a compiler once."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture
def cuda():
    """Four devices, which every thread sees as one rank; seeds as in a fresh process."""
    import torch

    from simrank.torch import cuda as simulated

    gc.collect()
    with simulated.standalone(4) as state:
        torch.manual_seed(0)
        yield state


@pytest.fixture
def recorded(cuda):
    """Return a function that gives the operations since the last call."""
    from simrank.torch.cuda import operations

    with operations.recording() as drain:
        yield drain


@pytest.fixture
def group(cuda):
    """A process group of one rank, whose collectives are copies."""
    from tests.torch.cuda import solo

    with solo.group():
        yield
