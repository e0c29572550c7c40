"""What a rank calls that sits out: it keeps its place, ends at once, and touches nothing."""

import simrank
import simrank.distributed as dist


def test_a_skipped_call_comes_behind_what_was_issued_before_it():
    """Its Work ends after the kernel in front of it, and the tensor has that kernel's numbers."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        dist.set_active_ranks([0])
        x = ctx.ones(1 << 22)
        x.mul_(3.0)
        work = dist.all_reduce(x, async_op=True)
        assert "all_reduce" in work.handle.name
        if rank == 1:
            assert "inactive rank" in work.handle.name
        assert not work.is_completed()
        work.wait()
        assert x[0].item() == 3.0
        assert work.is_completed()

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
        assert ctx.findings == []


def test_a_skipped_call_costs_the_launch_only():
    """No time on links, however large the tensor."""
    times = {}

    def program(rank, ctx):
        dist.init_process_group("nccl")
        dist.set_active_ranks([0, 1])
        x = ctx.ones(1 << 24)
        ctx.synchronize()
        start_ps = ctx.now_ps
        dist.all_reduce(x)
        ctx.synchronize()
        times[rank] = ctx.now_ps - start_ps

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=3)
    assert times[0] == times[1] > 100_000_000
    assert times[2] < 20_000_000
