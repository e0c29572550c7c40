"""What one rank asks of a collective: tensors that are admitted, and sizes."""

import numpy as np
import pytest

import simrank.distributed as dist
from simrank.errors import UnsupportedError


def test_all_to_all_single_takes_uneven_splits(run):
    """Rank r sends d + 1 rows to rank d."""

    def program(rank, ctx):
        dist.init_process_group()
        rows = ctx.arange(6 * 2).view(6, 2) + 100 * rank
        out = ctx.empty((rank + 1) * 3, 2, dtype="int64")
        dist.all_to_all_single(out, rows, [rank + 1] * 3, [1, 2, 3])
        first = sum(range(rank + 1))
        expected = [[100 * r + 2 * i, 100 * r + 2 * i + 1]
                    for r in range(3) for i in range(first, first + rank + 1)]  # fmt: skip
        assert out.tolist() == expected

    run(program, 3)


def test_bad_tensors_get_torchs_errors(run):
    """Type, device, contiguity, dtype and sizes."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        with pytest.raises(TypeError, match="Invalid function argument"):
            dist.all_reduce(np.ones(2))
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            dist.all_reduce(ctx.ones(2, device="cpu"))
        with pytest.raises(ValueError, match="must be contiguous"):
            dist.all_reduce(ctx.ones((2, 3)).t())
        with pytest.raises(ValueError, match="different dtypes"):
            dist.all_gather_into_tensor(ctx.ones(4), ctx.ones(2, dtype="int32"))
        with pytest.raises(ValueError, match="world_size times input"):
            dist.all_gather_into_tensor(ctx.ones(5), ctx.ones(2))
        with pytest.raises(ValueError, match="output size times world size"):
            dist.reduce_scatter_tensor(ctx.ones(2), ctx.ones(5))
        with pytest.raises(RuntimeError, match="does not divide equally"):
            dist.all_to_all_single(ctx.ones(3), ctx.ones(3))
        with pytest.raises(RuntimeError, match="doesn't match total dim 0 size"):
            dist.all_to_all_single(ctx.ones(3), ctx.ones(3), [1, 1], [1, 2])
        with pytest.raises(UnsupportedError, match="choices: sum"):
            dist.all_reduce(ctx.ones(2), op="median")

    run(program, 2)


# ---- reduction operations on values ----


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
