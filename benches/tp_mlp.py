"""One training step of a tensor-parallel MLP, forward and backward; see tp_mlp.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING

import simrank.distributed as dist
from simrank import tp

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank import Context


def mlp(
    ctx: Context, tp_size: int, hidden: int, tokens: int = 4096, *, overlap: bool = True,
    sequence_parallel: bool = False,
) -> Callable[[], None]:  # fmt: skip
    """Return a step of an MLP of `hidden` to 4 `hidden` and back, in bf16, split over `tp_size`."""
    dist.init_process_group("nccl")
    tp.parallel_state.initialize_model_parallel(tp_size)
    config = tp.ModelParallelConfig(
        tensor_model_parallel_size=tp_size,
        sequence_parallel=sequence_parallel,
        params_dtype=ctx.bfloat16,
        async_tensor_model_parallel_allreduce=overlap,
    )
    up = tp.ColumnParallelLinear(hidden, 4 * hidden, config=config, bias=False)
    down = tp.RowParallelLinear(4 * hidden, hidden, config=config, bias=False)
    rows = tokens // tp_size if sequence_parallel else tokens
    x = ctx.empty(rows, hidden, dtype=ctx.bfloat16)

    def step() -> None:
        inner, _ = up(x)
        output, _ = down(inner.gelu())
        up.backward(down.backward(output))
        up.zero_grad()
        down.zero_grad()

    return step
