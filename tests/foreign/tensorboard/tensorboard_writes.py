"""Rank 0 logs to TensorBoard; the script has arguments that absl's flags do not know."""

import argparse
import tempfile

import torch
import torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=0.1)
rate = parser.parse_args(["--rate", "0.5"]).rate
dist.init_process_group("gloo")
total = torch.tensor([rate])
dist.all_reduce(total)
if dist.get_rank() == 0:
    with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer:
        writer.add_scalar("total", total.item(), 0)
assert total.item() == 0.5 * dist.get_world_size()
dist.destroy_process_group()
