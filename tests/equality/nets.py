"""A tiny GPT, and parallel parts of it by hand, which the programs of these tests share."""

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's custom
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads, qk_norm=False):
        super().__init__()
        self.head, self.offset = dim // heads, 0
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        norm = nn.RMSNorm if qk_norm else nn.Identity
        self.qn, self.kn = norm(self.head), norm(self.head)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, -1, self.head).transpose(1, 2) for f in (self.q, self.k, self.v))
        place = torch.arange(t, device=x.device) + self.offset
        wave = torch.cos(place[:, None] / torch.arange(1, self.head + 1, device=x.device))
        out = self.attend(self.qn(q) * wave, self.kn(k) * wave, v)
        return self.o(out.transpose(1, 2).reshape(b, t, -1))

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class MLP(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, dim, heads, p, **kwargs):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(dim), Attention(dim, heads, **kwargs)
        self.norm2, self.mlp, self.drop = nn.LayerNorm(dim), MLP(dim), nn.Dropout(p)

    def forward(self, x):
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    def __init__(self, dim=16, heads=4, vocab=32, layers=2, tie=False, p=0.0, **kwargs):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Block(dim, heads, p, **kwargs) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)
        if tie:
            self.head.weight = self.embed.weight

    def forward(self, x):
        if self.embed is not None:
            x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(self.norm(x))


def tokens(seed, rows=4, columns=8, vocab=32, is_padded=False):
    """Return tokens and labels; padded ones end after a number of columns that differs."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, vocab, (rows, columns + 1), generator=generator)
    labels = drawn[:, 1:].clone()
    if is_padded:
        labels[torch.arange(columns) >= torch.arange(2, 2 + rows)[:, None]] = -100
    return drawn[:, :-1].contiguous(), labels


def cross_entropy(logits, labels, **kwargs):
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), **kwargs)


class Copy(torch.autograd.Function):
    """Forward: nothing; backward: the sum over a group."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Sum(torch.autograd.Function):
    """Forward: the sum over a group; backward: nothing."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def shard(tensor, dim, group):
    return tensor.detach().chunk(dist.get_world_size(group), dim)[dist.get_rank(group)].clone()


class Column(nn.Module):
    def __init__(self, linear, group, copy=Copy.apply):
        super().__init__()
        self.group, self.copy = group, copy
        self.weight = nn.Parameter(shard(linear.weight, 0, group))
        self.bias = None if linear.bias is None else nn.Parameter(shard(linear.bias, 0, group))

    def forward(self, x):
        return F.linear(self.copy(x, self.group), self.weight, self.bias)


class Row(nn.Module):
    def __init__(self, linear, group):
        super().__init__()
        self.group, self.bias = group, linear.bias
        self.weight = nn.Parameter(shard(linear.weight, 1, group))

    def forward(self, x):
        out = Sum.apply(F.linear(x, self.weight), self.group)
        return out if self.bias is None else out + self.bias


def split(model, group, column=Column, row=Row):
    """Split attention and MLP of each layer over a group."""
    for layer in model.layers:
        for name in "qkv":
            setattr(layer.attention, name, Column(getattr(layer.attention, name), group))
        layer.attention.o = Row(layer.attention.o, group)
        layer.mlp.up, layer.mlp.down = column(layer.mlp.up, group), row(layer.mlp.down, group)
    return model


def rows(batch, mesh):
    return tuple(x.tensor_split(mesh.size())[mesh.get_local_rank()] for x in batch)


def average(model, group, divisor=None):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad.div_(divisor or dist.get_world_size(group))


class Experts(nn.Module):
    """An up and a down projection of each expert, of rows in the order of their experts."""

    def __init__(self, dim, count):
        super().__init__()
        self.up = nn.Parameter(torch.randn(count, dim, 2 * dim) / 4)
        self.down = nn.Parameter(torch.randn(count, 2 * dim, dim) / 4)

    def forward(self, x, ends):
        hidden = F.relu(torch._grouped_mm(x.bfloat16(), self.up.bfloat16(), offs=ends))
        return torch._grouped_mm(hidden, self.down.bfloat16(), offs=ends).float()


class Router(nn.Module):
    """The two best experts of each row, and how much each counts."""

    def __init__(self, dim, count):
        super().__init__()
        self.gate = nn.Linear(dim, count, bias=False)

    def forward(self, x):
        return self.gate(x).sigmoid().topk(2, dim=-1)


class MoE(nn.Module):
    def __init__(self, dim=16, count=4):
        super().__init__()
        self.router, self.experts, self.count = Router(dim, count), Experts(dim, count), count

    def forward(self, x):
        rows = x.flatten(0, -2)
        scores, chosen = self.router(rows)
        chosen = chosen.flatten()
        order = chosen.argsort(stable=True)
        ends = torch.bincount(chosen, minlength=self.count).cumsum(0).int()
        out = torch.zeros_like(rows).repeat_interleave(2, 0)
        out = out.index_copy(0, order, self.experts(rows[order // 2], ends))
        return (out.view(-1, 2, x.shape[-1]) * scores[..., None]).sum(1).view_as(x)


def split_experts(moe, group):
    """Split the width of each expert over a group, whose ranks all have the same rows."""
    experts = moe.experts
    experts.up = nn.Parameter(shard(experts.up, 2, group))
    experts.down = nn.Parameter(shard(experts.down, 1, group))


def drawn(step, *shapes):
    """Return random tensors, the same ones for a step on each rank."""
    generator = torch.Generator().manual_seed(step)
    return tuple(torch.randn(*shape, generator=generator) for shape in shapes)
