"""A training step of two layers, one of which is recomputed, with DDP and two optimizers."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, BATCH = 512, 256

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.GELU()).cuda() for _ in range(2)]
first, second = (nn.parallel.DistributedDataParallel(layer) for layer in layers)
optimizers = [torch.optim.AdamW(layer.parameters(), fused=True) for layer in layers]
x = torch.ones(BATCH, WIDTH, device="cuda", requires_grad=True)
for _ in range(3):
    y = checkpoint(first, x, use_reentrant=False)
    second(y).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
torch.cuda.synchronize()
dist.destroy_process_group()
