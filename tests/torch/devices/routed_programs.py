"""Layers of experts as users write them; argv: a name. Each prints the tokens of its experts."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

TOKENS, WIDTH, EXPERTS, CHOSEN = 4096, 256, 8, 2


class Router(nn.Module):
    """Chooses experts by the scores of tokens."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)

    def forward(self, x):
        scores = self.gate(x).softmax(-1, dtype=torch.float)
        weights, experts = torch.topk(scores, CHOSEN, dim=-1)
        return (weights / weights.sum(-1, keepdim=True)).to(x.dtype), experts


class Loop(nn.Module):
    """As Mixtral's of Hugging Face: a loop over the experts that tokens have chosen."""

    def __init__(self):
        super().__init__()
        self.router = Router()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x):
        weights, chosen = self.router(x)
        out = torch.zeros_like(x)
        mask = nn.functional.one_hot(chosen, num_classes=EXPERTS).permute(2, 1, 0)
        for expert in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            place, rows = torch.where(mask[expert].squeeze(0))
            loads.append(rows.shape[0])
            part = self.experts[int(expert)](x[None, rows].reshape(-1, WIDTH))
            out.index_add_(0, rows, (part * weights[rows, place, None]).to(x.dtype))
        return out


class Grouped(nn.Module):
    """As torchtitan's: tokens are sorted by expert, and one product has all groups."""

    def __init__(self):
        super().__init__()
        self.router = Router()
        self.weight = nn.Parameter(torch.empty(EXPERTS, WIDTH, WIDTH, dtype=torch.bfloat16))

    def forward(self, x):
        x = x.to(torch.bfloat16)
        weights, chosen = self.router(x.float())
        counts = torch.histc(chosen.float().view(-1), bins=EXPERTS, min=0, max=EXPERTS)
        loads.extend(counts.int().tolist())
        order = torch.argsort(chosen.view(-1), stable=True)
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        part = torch._grouped_mm(x[order // CHOSEN], self.weight, offs=ends)
        scaled = part * weights.view(-1)[order, None].to(part.dtype)
        return torch.zeros_like(x).index_add(0, order // CHOSEN, scaled)


class Exchanged(nn.Module):
    """Expert parallelism: ranks exchange the tokens of their experts."""

    def __init__(self):
        super().__init__()
        self.router = Router()
        self.expert = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        _, chosen = self.router(x)
        order = chosen.view(-1).argsort()
        counts = torch.bincount(chosen.view(-1), minlength=EXPERTS)
        size = dist.get_world_size()
        sends = counts.view(size, -1).sum(1)
        receives = torch.empty_like(sends)
        dist.all_to_all_single(receives, sends)
        sends, receives = sends.tolist(), receives.tolist()
        loads.extend(receives)
        world = dist.group.WORLD
        got = all_to_all_single_autograd(x[order // CHOSEN], receives, sends, world)
        back = all_to_all_single_autograd(self.expert(got), sends, receives, world)
        return torch.zeros_like(x).index_add(0, order // CHOSEN, back)


loads = []
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
layer = {"loop": Loop, "grouped": Grouped, "exchanged": Exchanged}[sys.argv[1]]().cuda()
optimizer = torch.optim.AdamW(layer.parameters())
for _ in range(2):
    loads.clear()
    layer(torch.randn(TOKENS, WIDTH, device="cuda")).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
sys.stdout.write(f"loads {loads}\n")
dist.destroy_process_group()
