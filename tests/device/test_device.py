"""Devices: what a collective leaves for kernels."""

import pytest


def test_a_collective_holds_its_sms_from_arrival(run):
    """A kernel beside a waiting collective runs on the SMs that are left (E11)."""
    import simrank.distributed as dist

    times = {}

    def program(rank, ctx, with_collective):
        dist.init_process_group()
        x = ctx.ones(4)
        a = ctx.empty((8192, 8192), dtype="bfloat16")
        ctx.synchronize()
        dist.barrier()
        if with_collective and rank == 0:
            work = dist.all_reduce(x, async_op=True)
        start, end = ctx.Event(), ctx.Event()
        start.record()
        a.matmul(a)
        end.record()
        end.synchronize()
        times[with_collective, rank] = start.elapsed_time(end)
        if with_collective and rank == 1:
            work = dist.all_reduce(x, async_op=True)
        if with_collective:
            work.wait()

    ctx = run(program, 2, True, data=False)
    run(program, 2, False, data=False)
    device = ctx.cluster.device
    free = device.num_sms - ctx.cluster.collectives.num_channels
    assert times[False, 0] == times[False, 1]
    slowdown = times[True, 0] / times[False, 0]
    assert slowdown == pytest.approx(device.num_sms / free, rel=0.02)
    assert ctx.devices[0].sms.held == 0
