"""Liger's layers for transformers, which hold transformers' classes."""

import torch
import torch.distributed as dist
from liger_kernel.transformers import LigerRMSNorm

dist.init_process_group("gloo")
assert LigerRMSNorm(8).weight.shape == (8,)
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == dist.get_world_size()
dist.destroy_process_group()
