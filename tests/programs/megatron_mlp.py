"""Megatron's MLP over two layers that are split among the ranks, beside the whole one."""

import os

import simrank as torch
import simrank.distributed as dist
from simrank import tp

HIDDEN, FFN, SEQUENCE, BATCH = 8, 16, 4, 2


def gather(part, dim):
    """Return a tensor whose parts the ranks hold."""
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part.contiguous())
    return torch.cat(parts, dim)


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    tp.parallel_state.initialize_model_parallel(dist.get_world_size())
    tp.model_parallel_manual_seed(7)
    config = tp.ModelParallelConfig(tensor_model_parallel_size=dist.get_world_size())
    up = tp.ColumnParallelLinear(HIDDEN, FFN, config=config)
    down = tp.RowParallelLinear(FFN, HIDDEN, config=config)
    torch.manual_seed(1)
    x = torch.randn(SEQUENCE, BATCH, HIDDEN)
    dist.broadcast(x, 0)
    hidden, _ = up(x)
    y, _ = down(torch.relu(hidden))
    whole = torch.relu(x @ gather(up.weight, 0).T) @ gather(down.weight, 1).T
    assert torch.allclose(y, whole, atol=1e-4)
    down.backward(torch.ones_like(y))
    assert down.weight.grad.shape == down.weight.shape
    if dist.get_rank() == 0:
        print("equal to the whole")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
