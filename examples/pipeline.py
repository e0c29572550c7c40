"""Run a pipeline of four stages, GPipe schedule, with torch.distributed.pipelining.

Run: simrank run --nproc-per-node 4 examples/pipeline.py
The same file runs on GPUs: torchrun --nproc-per-node 4 examples/pipeline.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


def main() -> None:
    dist.init_process_group("nccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    blocks = [nn.Linear(32, 32) for _ in range(size)]  # Equal on all ranks: the same seed.
    stage = PipelineStage(blocks[rank].to(device), rank, size, device)
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    x, target = torch.randn(16, 32, device=device), torch.zeros(16, 32, device=device)
    if rank == 0:
        schedule.step(x)
    elif rank == size - 1:
        losses: list[torch.Tensor] = []
        schedule.step(target=target, losses=losses)
        print(f"mean loss {torch.stack(losses).mean().item():.4f}")
    else:
        schedule.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
