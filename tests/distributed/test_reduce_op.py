"""Reduction operations on values."""

import pytest

import simrank.distributed as dist


def test_reduce_ops_on_integers(run):
    """prod, min, max, avg with nccl; the bitwise ones with gloo."""
    expected = {"sum": 10, "prod": 24, "min": 1, "max": 4, "avg": 2, "band": 0, "bor": 7, "bxor": 4}

    def program(rank, ctx):
        dist.init_process_group()
        for op in dist.ReduceOp:
            if op is not dist.ReduceOp.PREMUL_SUM:
                bitwise = op.value in ("band", "bor", "bxor")
                x = ctx.full((3,), rank + 1, device="cpu" if bitwise else None)
                dist.all_reduce(x, op)
                assert x.tolist() == [expected[op.value]] * 3

    run(program, 4)


def test_a_premultiplied_sum_scales_each_ranks_input(run):
    """Its own factor per rank, a number or a tensor; the input stays as it was."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.ones(2)
        dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
        assert x.tolist() == [1.5] * 2
        out, whole = ctx.empty(1), ctx.ones(3)
        factor = ctx.full((1,), float(rank))
        dist.reduce_scatter_tensor(out, whole, dist._make_nccl_premul_sum(factor))
        assert out.item() == 3
        assert whole.tolist() == [1] * 3
        with pytest.raises(TypeError, match="needs a factor"):
            dist.all_reduce(x, dist.ReduceOp.PREMUL_SUM)

    run(program, 3)
