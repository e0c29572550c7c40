"""Test Megatron's column- and row-parallel layers on eight ranks.

Run: pytest examples/test_tp_layer.py
"""

import numpy as np
import pytest

import simrank
import simrank.distributed as dist
from simrank import tp


@pytest.mark.ranks(8)
@pytest.mark.parametrize("tp_size", [1, 2, 4, 8])
def test_two_layers_equal_one_rank(rank: int, ctx: simrank.Context, tp_size: int) -> None:
    dist.init_process_group("nccl")
    tp.parallel_state.initialize_model_parallel(tp_size)
    tp.model_parallel_manual_seed(42)
    config = tp.ModelParallelConfig(tensor_model_parallel_size=tp_size)
    up = tp.ColumnParallelLinear(16, 64, config=config, bias=False)
    down = tp.RowParallelLinear(64, 16, config=config, bias=False, input_is_parallel=True)
    ctx.manual_seed(0)
    x = ctx.randn(4, 16)
    y, _ = down(up(x)[0])

    group = tp.parallel_state.get_tensor_model_parallel_group()

    def whole(part: simrank.Tensor, dim: int) -> np.ndarray:
        parts = [ctx.empty_like(part) for _ in range(tp_size)]
        dist.all_gather(parts, part, group=group)
        return np.concatenate([each.numpy() for each in parts], axis=dim)

    expected = x.numpy() @ whole(up.weight.data, 0).T @ whole(down.weight.data, 1).T
    assert np.allclose(y.numpy(), expected, rtol=1e-4, atol=1e-6)
