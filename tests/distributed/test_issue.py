"""How a call reaches its stream: what it runs behind, and what the host waits for."""

import simrank.distributed as dist


def test_a_synchronous_collective_does_not_block_the_host(run):
    """async_op=False runs on the current stream; the host goes on until it reads (NCCL)."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4)
        assert dist.all_reduce(x) is None
        assert ctx.now_ps == 0
        assert x.tolist() == [2] * 4

    run(program, 2)


def test_an_asynchronous_collective_overlaps_with_the_current_stream(run):
    """Work on the current stream runs beside it; after wait() it runs behind it."""

    def program(rank, ctx):
        dist.init_process_group()
        x, y = ctx.ones(2**24), ctx.ones(4)
        work = dist.all_reduce(x, async_op=True)
        y.add_(1)
        assert y.tolist() == [2] * 4
        assert not work._operation.complete
        assert work.wait() is True
        x.mul_(10)
        assert x[:2].tolist() == [20, 20]
        assert work.is_completed()
        assert work.is_success()
        assert work.result()[0] is x

    run(program, 2)


def test_collectives_of_one_group_run_one_after_the_other(run):
    """A communicator serializes what is launched on it, whatever the streams."""
    took_ps = {}

    def program(rank, ctx, count):
        dist.init_process_group()
        x, y = ctx.empty(2**26), ctx.empty(2**26)
        work = dist.all_reduce(x, async_op=True)
        if count == 2:
            dist.all_reduce(y)
        work.wait()
        ctx.synchronize()
        took_ps[count] = ctx.now_ps

    run(program, 4, 1, data=False)
    run(program, 4, 2, data=False)
    assert took_ps[2] > 1.9 * took_ps[1]


def test_an_asynchronous_collective_follows_the_current_streams_work(run):
    """It reads what was issued before it, however long that takes."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.zeros(4)
        large = ctx.empty((2048, 2048), dtype="bfloat16")
        large @ large
        x.fill_(rank + 1)
        dist.all_reduce(x, async_op=True).wait()
        assert x.tolist() == [3] * 4

    run(program, 2)
