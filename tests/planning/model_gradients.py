"""Runs the program of a plan's models with weights that do not depend on the layout.

It prints the norm of each step's gradients over all ranks. Weights and tokens repeat a pattern of
eight, so that every rank's part of them is the same as a part of the whole.
"""

import runpy
import sys

import torch
import torch.distributed as dist
from torch import nn


def filled(weight, std=1.0):
    own = weight.to_local() if hasattr(weight, "to_local") else weight
    rows, columns = (torch.arange(size, device=own.device) % 8 for size in own.shape[-2:])
    with torch.no_grad():
        own.copy_((torch.cos(rows[:, None] * 3 + columns * 1.7) * 0.2).expand(own.shape))


def drawn(low, high, size, device):
    return ((torch.arange(size[1], device=device) ** 2 * 7 + 3) % high).expand(size)


def shown(parameters, most, norm, scale=nn.utils.clip_grads_with_norm_):
    if parameters and dist.get_rank() == 0:
        sys.stdout.write(f"norm {float(norm)}\n")
    scale(parameters, most, norm)


nn.init.normal_, torch.randint, nn.utils.clip_grads_with_norm_ = filled, drawn, shown
runpy.run_path(sys.argv.pop(1), run_name="__main__")
