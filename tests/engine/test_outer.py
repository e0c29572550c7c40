"""Ranks of a main program that runs an event loop, as in a notebook."""

import asyncio
import sys
import time

import pytest

import simrank


async def count(rank, results):
    await asyncio.sleep(1 + rank)
    results.append((rank, time.monotonic()))


def test_ranks_run_loops_of_their_own_within_a_loop_of_the_main_program():
    """`asyncio.run` in each; the main program's loop is the running one again afterwards."""
    results = []

    def program(rank):
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        asyncio.run(count(rank, results))

    async def main():
        loop, hooks = asyncio.get_running_loop(), sys.get_asyncgen_hooks()
        with simrank.Context("hgx_h100") as ctx:
            ctx.multiprocessing.spawn(program, nprocs=3)
        assert asyncio.get_running_loop() is loop
        assert sys.get_asyncgen_hooks() == hooks
        await asyncio.sleep(0)
        return ctx.now_ps

    assert asyncio.run(main()) >= 3 * 10**12
    assert [rank for rank, _ in results] == [0, 1, 2]
