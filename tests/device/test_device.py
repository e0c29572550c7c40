"""Devices: what a collective leaves for kernels."""

import time

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


def test_a_collective_takes_bandwidth_of_memory_from_its_last_arrival(run):
    """A kernel limited by memory gets what is left, and all of it again afterwards (E11)."""
    import simrank.distributed as dist

    held, times = {}, {}

    def timed(ctx, a):
        start, end = ctx.Event(), ctx.Event()
        start.record()
        a.add_(1.0)
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.empty(2**28, dtype="float32")
        a = ctx.empty(2**26, dtype="float32")
        work = dist.all_reduce(x, async_op=True)
        time.sleep(1e-3)  # The others have arrived: it is under way.
        held[rank] = ctx.devices[rank].hbm.held * 1e12
        beside = timed(ctx, a)
        work.wait()
        ctx.synchronize()
        times[rank] = beside, timed(ctx, a)

    ctx = run(program, 8, data=False)
    device = ctx.cluster.device
    assert len(set(held.values())) == 1
    assert held[0] > 0.15 * device.memory_bandwidth_bytes_per_s
    beside, alone = times[3]
    used = 2 * 2**28 / (alone * 1e-3)
    left = device.memory_bandwidth_bytes_per_s - held[0]
    assert beside / alone == pytest.approx(used / left, rel=0.03)
    assert {(each.sms.held, each.hbm.held) for each in ctx.devices} == {(0, 0)}
