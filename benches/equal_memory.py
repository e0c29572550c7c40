"""Memory of `simrank equal` on 16 ranks: a pipeline of four, two replicas, layers split in two.

```sh
python benches/equal_memory.py 512 1024
```

It runs the command with this file as the program, and prints for each width the largest resident
memory of the process over what training itself holds in float64: weights and gradients of the
single program, and of each replica. More than 1.5 times that fails.
"""

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's custom
from torch import nn

LIMIT = 1.5  # Times the weights and gradients.
WIDTH = int(os.environ.get("EQUAL_WIDTH", "512"))
LAYERS, VOCAB, HEAD, ROWS, COLUMNS = 12, 128, 8, 4, 8
LAYOUT = {"pp": 4, "dp": 2, "tp": 2}


class Copy(torch.autograd.Function):
    """Forward: nothing; backward: the sum over a group."""

    @staticmethod
    def forward(ctx, x, group):
        """Return the input."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        """Sum gradients."""
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Sum(torch.autograd.Function):
    """Forward: the sum over a group; backward: nothing."""

    @staticmethod
    def forward(ctx, x, group):
        """Sum partial results."""
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient."""
        return gradient, None


class Block(nn.Module):
    """A layer of a GPT, whole or split over a group."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = (
            nn.Linear(WIDTH, 4 * WIDTH, bias=False),
            nn.Linear(4 * WIDTH, WIDTH, bias=False),
        )
        self.group = None

    def forward(self, x):
        """Return hidden states of the same shape."""
        y = self.enter(self.norm1(x))
        q, k, v = (f(y).unflatten(-1, (-1, HEAD)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.leave(self.o(y))
        return x + self.leave(self.down(F.gelu(self.up(self.enter(self.norm2(x))))))

    def enter(self, x):
        """Begin a part that ranks share."""
        return x if self.group is None else Copy.apply(x, self.group)

    def leave(self, x):
        """End it."""
        return x if self.group is None else Sum.apply(x, self.group)

    def split(self, group):
        """Keep this rank's part of each weight."""
        self.group, rank, size = group, dist.get_rank(group), dist.get_world_size(group)
        columns, rows = (self.q, self.k, self.v, self.up), (self.o, self.down)
        for dim, each in (*((0, c) for c in columns), *((1, r) for r in rows)):
            each.weight = nn.Parameter(each.weight.detach().chunk(size, dim)[rank].clone())


class GPT(nn.Module):
    """Layers between an embedding and logits."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleDict({str(n): Block() for n in range(LAYERS)})
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, x):
        """Return logits of tokens; hidden states in a part without a head."""
        if self.embed is not None:
            x = self.embed(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.head is None else self.head(self.norm(x))


def build():
    """Return the single program."""
    torch.manual_seed(0)
    return GPT()


def batch(step):
    """Return tokens and labels."""
    generator = torch.Generator().manual_seed(step)
    drawn = torch.randint(0, VOCAB, (ROWS, COLUMNS + 1), generator=generator)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def loss(model, given):
    """Return the mean cross entropy."""
    tokens, labels = given
    return F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())


def parallelize(model, mesh):
    """Keep the layers of this stage, and of each layer this rank's part."""
    stage, size = mesh.get_local_rank("pp"), mesh["pp"].size()
    for name in list(model.layers):
        if int(name) * size // LAYERS == stage:
            model.layers[name].split(mesh.get_group("tp"))
        else:
            del model.layers[name]
    if stage:
        model.embed = None
    if stage < size - 1:
        model.norm = model.head = None
    return model


def train(model, given, mesh):
    """Do the forward and the backward of one micro-batch, stage by stage."""
    tokens, labels = given
    stage, size, group = mesh.get_local_rank("pp"), mesh["pp"].size(), mesh.get_group("pp")
    part = mesh.get_local_rank("dp")
    tokens, labels = (each.chunk(mesh["dp"].size())[part] for each in (tokens, labels))
    x = tokens
    if stage:
        like = next(model.parameters())
        x = torch.empty(*tokens.shape, WIDTH, dtype=like.dtype, device=like.device)
        dist.recv(x, group=group, group_src=stage - 1)
        x.requires_grad_()
    out, value = model(x), None
    if stage < size - 1:
        dist.send(out.detach(), group=group, group_dst=stage + 1)
        gradient = torch.empty_like(out)
        dist.recv(gradient, group=group, group_src=stage + 1)
        out.backward(gradient)
    else:
        value = F.cross_entropy(out.flatten(0, 1), labels.flatten())
        value.backward()
    if stage:
        dist.send(x.grad, group=group, group_dst=stage - 1)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, group=mesh.get_group("dp"))
    return value


def measured(width):
    """Return the bytes of weights and gradients, the command's peak in bytes, and its seconds."""
    environment = {**os.environ, "EQUAL_WIDTH": str(width), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "simrank", "equal", __file__]
    start = time.monotonic()
    with subprocess.Popen(command, env=environment) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(process.returncode)
    count = LAYERS * (12 * width**2 + 4 * width) + 2 * VOCAB * width + 2 * width
    return 2 * 8 * count * (1 + LAYOUT["dp"]), 1024 * usage.ru_maxrss, time.monotonic() - start


if __name__ == "__main__":
    ratios = []
    for each in map(int, sys.argv[1:] or ["512", "1024"]):
        held, peak, elapsed = measured(each)
        ratios.append(peak / held)
        print(
            f"width {each}: weights and gradients of the single program and two replicas "
            f"{held / 1e9:.2f} GB, peak {peak / 1e9:.2f} GB, {ratios[-1]:.2f} times "
            f"({elapsed:.0f} s)",
            flush=True,
        )
    if max(ratios) > LIMIT:  # Below a width of about 400 Python and torch alone are more.
        sys.exit(f"more than {LIMIT} times")
