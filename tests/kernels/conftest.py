"""What tests of kernels share: a function on one rank, in a Context of its own."""

import pytest

import simrank


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
