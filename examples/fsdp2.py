"""Shard a model with FSDP2 (`fully_shard`) and train it.

Run: simrank run --nproc-per-node 4 examples/fsdp2.py
The same file runs on GPUs: torchrun --nproc-per-node 4 examples/fsdp2.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)]
    model = nn.Sequential(*layers).cuda()
    for layer in layers:
        fully_shard(layer)  # Each layer's parameters are gathered as it runs.
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(16, 64, device="cuda")
    for step in range(3):
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    local = sum(p.to_local().numel() for p in model.parameters())
    if dist.get_rank() == 0:
        peak = torch.cuda.max_memory_allocated() / 2**10
        print(f"rank 0 holds {local} parameters, peak memory {peak:.0f} KiB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
