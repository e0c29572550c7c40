"""Tests of kernels need triton; what they share: a function on one rank, in its own Context."""

from importlib.util import find_spec

import pytest

import simrank

collect_ignore_glob = [] if find_spec("triton") else ["*.py"]


@pytest.fixture
def on_rank():
    """Run a function on one rank of a fresh Context, and raise what it raised."""

    def run(body):
        with simrank.Context("hgx_h100") as ctx:
            try:
                ctx.multiprocessing.spawn(lambda _rank: body(ctx), nprocs=1)
            except simrank.errors.SpawnException as error:
                raise error.errors[0] from None

    return run
