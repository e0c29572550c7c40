"""asyncio in ranks: loops of their own, in simulated time."""

import asyncio

import pytest

import simrank.distributed as dist
from simrank.errors import DeadlockError, SpawnException, UnsupportedError


def test_each_rank_runs_a_loop_in_simulated_time(run):
    """Sleeps overlap within a rank and between ranks; nothing waits for real."""
    ends = {}

    async def main(rank):
        assert asyncio.get_running_loop().time() == 0
        await asyncio.gather(asyncio.sleep(rank + 1), asyncio.sleep(2 * rank))
        async with asyncio.timeout(50):
            await asyncio.sleep(1)

    def program(rank, ctx):
        asyncio.run(main(rank))
        ends[rank] = ctx.engine.current_task().clock_ps

    run(program, 3)
    assert ends == {rank: max(rank + 1, 2 * rank) * 10**12 + 10**12 for rank in range(3)}


def test_a_coroutine_that_blocks_in_a_collective_keeps_its_ranks_loop(run):
    """After the switch to other ranks and back, the running loop is its own."""

    async def main(rank, ctx, found):
        loop = asyncio.get_running_loop()
        x = ctx.full((1,), float(rank))
        for _ in range(3):
            dist.all_reduce(x, dist.ReduceOp.MAX)
            found.append(x.item())
            assert asyncio.get_running_loop() is loop
            await asyncio.sleep(0.001 * rank)
        async for number in numbers(2):
            found.append(number)

    async def numbers(count):
        for number in range(count):
            await asyncio.sleep(0.001)
            yield number

    def program(rank, ctx):
        dist.init_process_group()
        found = []
        asyncio.run(main(rank, ctx, found))
        assert found == [3.0, 3.0, 3.0, 0, 1]
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()

    run(program, 4)


def test_the_old_style_has_a_loop_per_rank(run):
    """get_event_loop outside of coroutines."""
    loops = set()

    def program(rank, ctx):
        loop = asyncio.get_event_loop()
        assert loop is asyncio.get_event_loop()
        loops.add(loop)
        assert loop.run_until_complete(asyncio.sleep(1, "slept")) == "slept"
        loop.close()

    run(program, 3)
    assert len(loops) == 3


def test_another_rank_wakes_a_loop_thread_safely(run):
    """Ranks that share memory talk through call_soon_threadsafe, as threads do."""
    shared = {}

    async def waits():
        loop = asyncio.get_running_loop()
        shared["future"], shared["loop"] = loop.create_future(), loop
        assert await shared["future"] == "hello"

    def program(rank, ctx):
        if rank == 0:
            asyncio.run(waits())
        else:
            ctx.engine.sleep(10**12)
            shared["loop"].call_soon_threadsafe(shared["future"].set_result, "hello")

    assert run(program, 2).now_ps == 10**12


def test_a_loop_that_nobody_wakes_is_a_deadlock(run):
    """The report names the loop."""

    async def waits():
        await asyncio.get_running_loop().create_future()

    def program(rank, ctx):
        asyncio.run(waits())

    with pytest.raises(DeadlockError, match="an asyncio event loop that has nothing to run"):
        run(program, 2)


def test_a_failure_in_one_rank_ends_the_loops_of_the_others(run):
    """Without a wait for their sleeps."""

    async def sleeps():
        await asyncio.sleep(1000)

    def program(rank, ctx):
        if rank == 1:
            raise ValueError
        asyncio.run(sleeps())

    with pytest.raises(SpawnException) as caught:
        run(program, 2)
    assert list(caught.value.errors) == [1]
    assert caught.value.time_ps == 0


def test_sockets_and_threads_in_a_loop_are_refused_by_name(run):
    """They would wait for real."""

    async def main():
        loop = asyncio.get_running_loop()
        with pytest.raises(UnsupportedError, match="sockets, pipes or subprocesses"):
            loop.add_reader(0, print)
        with pytest.raises(UnsupportedError, match="run_in_executor and to_thread"):
            await asyncio.to_thread(print)

    run(lambda rank, ctx: asyncio.run(main()), 1)


def test_a_loop_that_polls_for_ever_is_not_run_for_ever(run):
    """Turns without a wait are charged as polls after a while, so that others run on."""
    flag = []

    async def polls():
        while not flag:
            await asyncio.sleep(0)

    def program(rank, ctx):
        if rank == 0:
            asyncio.run(polls())
        else:
            ctx.engine.sleep(10**9)
            flag.append(1)

    run(program, 2)
