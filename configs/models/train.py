"""Train a decoder of Llama's kind: FSDP with tensor, pipeline, context and expert parallelism.

```sh
simrank plan --model llama3-8b --gpus 64xh100
simrank run --shape-only --cluster hgx_h100 train.py --model llama3-8b --tp 2 --recompute full
torchrun --nproc-per-node 8 train.py --model llama3-8b
```

Products are of bfloat16; parameters, gradients across ranks and AdamW's states of float32. Tensor
parallelism splits sequences between blocks, too (Korthikanti et al.). Every expert takes an equal
share of a rank's tokens, as a balanced router would give it. Data are random.
"""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import yaml
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F  # noqa: N812 - torch's habit
from torch.utils.checkpoint import checkpoint

SIZES = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "replicate": 1, "batch": 1, "micro": 1, "seq": 8192}


class Moved(torch.autograd.Function):
    """A collective of tensors, whose gradients move by another one."""

    @staticmethod
    def forward(ctx, x, group, there, back):
        """Return the result of the collective `there` of x."""
        ctx.how = group, back, there
        return there(x.contiguous(), group)

    @staticmethod
    def backward(ctx, grad):
        """Return the result of the collective `back` of the gradient."""
        return Moved.apply(grad, *ctx.how), None, None, None


def joined(x, group):
    """Return the parts of x of all ranks, along the first dimension."""
    found = x.new_empty(len(x) * group.size(), *x.shape[1:])
    dist.all_gather_into_tensor(found, x, group)
    return found


def summed(x, group):
    """Return this rank's part of the sum of x over ranks."""
    found = x.new_empty(len(x) // group.size(), *x.shape[1:])
    dist.reduce_scatter_tensor(found, x, group=group)
    return found


def swapped(x, group):
    """Exchange equal parts of x among the ranks of the group (all-to-all)."""
    found = torch.empty_like(x)
    dist.all_to_all_single(found, x, group=group)
    return found


def gathered(x, group):
    """Return the whole sequence; the gradient is scattered."""
    return x if group is None else Moved.apply(x, group, joined, summed)


def scattered(x, group):
    """Return this rank's part of the sequence, summed over ranks; the gradient is gathered."""
    return x if group is None else Moved.apply(x, group, summed, joined)


class Attention(nn.Module):
    """Attention with grouped queries and rotary embeddings, heads split over `tp` ranks."""

    def __init__(self, model, tp):
        super().__init__()
        dim, size, self.head_dim = model["hidden"], model["head_dim"], model["head_dim"]
        heads, kv_heads = model["heads"] // tp, model["kv_heads"] // tp
        self.q = nn.Linear(dim, heads * size, bias=False)
        self.k, self.v = (nn.Linear(dim, kv_heads * size, bias=False) for _ in range(2))
        self.o = nn.Linear(heads * size, dim, bias=False)
        norms = (nn.RMSNorm(size, eps=1e-6) if model["qk_norm"] else nn.Identity() for _ in "qk")
        self.q_norm, self.k_norm = norms

    def forward(self, x, turns):
        """Return the attention's output of x, [sequence, batch, hidden]."""
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)) for w in (self.q, self.k, self.v))
        q, k = turned(self.q_norm(q), turns), turned(self.k_norm(k), turns)
        q, k, v = (y.permute(1, 2, 0, 3) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.permute(2, 0, 1, 3).flatten(2))


def turned(x, turns):
    """Return x, [sequence, batch, heads, head_dim], with rotary embeddings."""
    cos, sin = (part[:, None, None].to(x.dtype) for part in turns.unbind(1))
    one, other = x.chunk(2, -1)
    return torch.cat((one * cos - other * sin, other * cos + one * sin), -1)


class Mlp(nn.Module):
    """A gated MLP, split over `tp` ranks."""

    def __init__(self, model, tp):
        super().__init__()
        dim, ffn = model["hidden"], model["ffn"] // tp
        self.gate, self.up = (nn.Linear(dim, ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(ffn, dim, bias=False)

    def forward(self, x):
        """Return the MLP's output of x."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """The experts of one rank: gated MLPs."""

    def __init__(self, model, ep):
        super().__init__()
        count, dim, ffn = model["experts"] // ep, model["hidden"], model["expert_ffn"]
        sizes = {"gate": (count, dim, ffn), "up": (count, dim, ffn), "down": (count, ffn, dim)}
        for name, size in sizes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(size)))

    def forward(self, x):
        """Return the output of x, [experts, tokens, hidden]."""
        return torch.bmm(F.silu(torch.bmm(x, self.gate)) * torch.bmm(x, self.up), self.down)


class Moe(nn.Module):
    """A router and experts, which are split over the ranks of `group`."""

    def __init__(self, model, ep, group):
        super().__init__()
        self.top_k, self.ep, self.group, self.count = model["top_k"], ep, group, model["experts"]
        self.router = nn.Linear(model["hidden"], self.count, bias=False)
        self.experts = Experts(model, ep)

    def forward(self, x):
        """Return the output of x; tokens that experts share out evenly travel to them and back."""
        tokens = x.flatten(0, -2)
        shares, chosen = self.router(tokens).float().softmax(-1).topk(self.top_k)
        shares = (shares / shares.sum(-1, keepdim=True)).type_as(x).flatten()
        order = chosen.flatten().argsort(stable=True)
        rows = self.moved(tokens[order // self.top_k])
        rows = rows.unflatten(0, (self.ep, self.count // self.ep, -1)).transpose(0, 1)
        y = self.experts(rows.flatten(1, 2)).unflatten(1, (self.ep, -1))
        y = self.moved(y.transpose(0, 1).flatten(0, 2)) * shares[order, None]
        return torch.zeros_like(tokens).index_add(0, order // self.top_k, y).view_as(x)

    def moved(self, rows):
        """Return rows with those for the experts of each rank on that rank."""
        return rows if self.ep == 1 else Moved.apply(rows, self.group, swapped, swapped)


class Block(nn.Module):
    """A block; between blocks a `tp` rank holds a part of the sequence."""

    def __init__(self, model, options, groups):
        super().__init__()
        self.group, self.is_moe = groups["tp"], bool(model["experts"])
        self.attention = Attention(model, options.tp)
        moe = self.is_moe and Moe(model, options.ep, groups["ep"])
        self.ffn = moe or Mlp(model, options.tp)
        self.norm1, self.norm2 = (nn.RMSNorm(model["hidden"], eps=1e-5) for _ in range(2))

    def forward(self, x, turns):
        """Return the block's output of x."""
        y = self.attention(gathered(self.norm1(x), self.group), turns)
        x = x + scattered(y, self.group)
        y = self.norm2(x)
        if self.is_moe:
            return x + self.ffn(y)
        return x + scattered(self.ffn(gathered(y, self.group)), self.group)


class Stage(nn.Module):
    """Some blocks of the model; the first stage has the embedding, the last one the head."""

    def __init__(self, model, options, groups, stage):
        super().__init__()
        self.model, self.group, self.seq = model, groups["tp"], options.seq
        self.recompute, vocab, dim = (
            options.recompute,
            model["vocab"] // options.tp,
            model["hidden"],
        )
        layers, more = divmod(
            model["layers"] + 2, options.pp
        )  # The two ends count as a block each.
        sizes = [layers + (i < more) - (i == 0) - (i == options.pp - 1) for i in range(options.pp)]
        self.blocks = nn.ModuleList(Block(model, options, groups) for _ in range(sizes[stage]))
        is_last = stage == options.pp - 1
        self.first = 0 if self.group is None else dist.get_rank(self.group) * vocab
        self.embed = nn.Embedding(vocab, dim) if stage == 0 else None
        self.norm = nn.RMSNorm(dim, eps=1e-5) if is_last else None
        self.head = nn.Linear(dim, vocab, bias=False) if is_last else None
        if is_last and stage == 0 and model["tied"]:
            self.head.weight = self.embed.weight
        self.register_buffer("turns", None, persistent=False)

    def start(self):
        """Fill parameters and buffers on the device."""
        self.to_empty(device="cuda")
        for name, weight in self.named_parameters():
            nn.init.ones_(weight) if "norm" in name else nn.init.normal_(weight, std=0.02)
        size = self.model["head_dim"]
        rates = self.model["rope_theta"] ** (-torch.arange(0, size, 2, device="cuda") / size)
        angles = torch.outer(torch.arange(self.seq, device="cuda").float(), rates)
        self.turns = torch.stack((angles.cos(), angles.sin()), 1)

    def forward(self, x):
        """Return the stage's output: of tokens or activations, activations or logits."""
        if self.embed is not None:
            x = scattered(self.embedded(x.t()), self.group)
        for i, block in enumerate(self.blocks):
            is_again = self.recompute == "full" or (self.recompute == "half" and i % 2)
            again = {"use_reentrant": False, "preserve_rng_state": False}
            x = checkpoint(block, x, self.turns, **again) if is_again else block(x, self.turns)
        return x if self.head is None else self.head(gathered(self.norm(x), self.group))

    def embedded(self, tokens):
        """Return the embeddings of the tokens in this rank's part of the vocabulary, else 0."""
        if self.group is None:
            return self.embed(tokens)
        own = tokens - self.first
        is_other = (own < 0) | (own >= self.embed.num_embeddings)
        return self.embed(own.masked_fill(is_other, 0)).masked_fill(is_other[..., None], 0)

    def loss(self, logits, labels):
        """Return the mean cross entropy of logits, [sequence, batch, this rank's vocabulary]."""
        logits, labels = logits.flatten(0, 1).float(), labels.t().flatten()
        if self.group is None:
            return F.cross_entropy(logits, labels)
        return SplitLoss.apply(logits, labels - self.first, self.group)


class SplitLoss(torch.autograd.Function):
    """The cross entropy of logits whose vocabulary is split over ranks."""

    @staticmethod
    def forward(ctx, logits, labels, group):
        """Return the mean over tokens."""
        top = logits.amax(-1, keepdim=True)
        dist.all_reduce(top, dist.ReduceOp.MAX, group)
        shares = logits - top
        is_other = ((labels < 0) | (labels >= logits.shape[-1]))[:, None]
        labels = labels[:, None].masked_fill(is_other, 0)
        right = shares.gather(-1, labels).masked_fill(is_other, 0)
        total = shares.exp_().sum(-1, keepdim=True)
        both = torch.cat((right, total), -1)
        dist.all_reduce(both, group=group)
        ctx.save_for_backward(shares.div_(both[:, 1:]), labels, is_other)
        return (both[:, 1].log() - both[:, 0]).mean()

    @staticmethod
    def backward(ctx, grad):
        """Return the gradient of the logits."""
        shares, labels, is_other = ctx.saved_tensors
        shares.scatter_add_(-1, labels, is_other.to(shares.dtype) - 1)
        return shares.mul_(grad / len(shares)), None, None


def parsed():
    """Return the model's figures and the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="a name beside this program, or a YAML file")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--recompute", choices=("none", "half", "full"), default="none")
    options = parser.parse_args()
    path = Path(options.model)
    path = path if path.suffix else Path(__file__).with_name(f"{path}.yaml")
    absent = {"qk_norm": False, "experts": 0, "tied": False}
    return absent | yaml.safe_load(path.read_text()), options


def sharded(stage, options, mesh, experts_mesh):
    """Shard a stage over ranks, the experts of each block over fewer of them."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    names = ("replicate", "shard_cp") if options.replicate > 1 else ("shard_cp",)
    more = {"mesh": mesh[names], "mp_policy": policy}
    for i, block in enumerate(stage.blocks):
        frees = options.pp == 1 and i < len(stage.blocks) - 1
        if block.is_moe:
            mean_over = mesh[names].size()
            own = {"mesh": experts_mesh["over"], "mp_policy": policy}
            fully_shard(block.ffn.experts, reshard_after_forward=frees, **own)
            block.ffn.experts.set_gradient_divide_factor(mean_over)
        fully_shard(block, reshard_after_forward=frees, **more)
    fully_shard(stage, reshard_after_forward=False, **more)
    stage.start()


class Update:
    """Clip gradients by their norm over all ranks, and update this rank's parts of parameters.

    The optimizer has plain tensors: one of DTensors takes time that grows with the square of their
    number in each first step.
    """

    def __init__(self, stage, options, groups):
        self.group, self.kinds = groups["tp"], {"whole": [], "split": [], "experts": []}
        self.copies = {"whole": options.tp * options.replicate, "split": options.replicate}
        for name, weight in stage.named_parameters():
            is_whole = "norm" in name or "router" in name
            kind = "experts" if "experts" in name else "whole" if is_whole else "split"
            self.kinds[kind].append((weight, weight.detach().to_local().requires_grad_()))
        parts = [part for pairs in self.kinds.values() for _, part in pairs]
        self.optimizer = torch.optim.AdamW(parts, 3e-4, (0.9, 0.95), fused=True)

    def __call__(self, most=1.0):
        """Take the gradients of a step; their norm is at most `most`."""
        total = torch.zeros((), device="cuda")
        for kind, pairs in self.kinds.items():
            for weight, part in pairs:
                part.grad, weight.grad = weight.grad.to_local(), None
            grads = [part.grad for _, part in pairs]
            if kind == "whole" and self.group is not None:
                added(grads, self.group)
            if grads:
                total += nn.utils.get_total_norm(grads) ** 2 / self.copies.get(kind, 1)
        dist.all_reduce(total)
        parts = [part for pairs in self.kinds.values() for _, part in pairs]
        nn.utils.clip_grads_with_norm_(parts, most, total.sqrt())
        self.optimizer.step()
        self.optimizer.zero_grad()


def added(tensors, group):
    """Add tensors of all ranks in place, in one call."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, group=group)
    parts = flat.split([tensor.numel() for tensor in tensors])
    torch._foreach_copy_(tensors, [p.view_as(x) for p, x in zip(parts, tensors, strict=True)])


def accumulate(stage, inputs, targets):
    """Run forward and backward of each micro-batch, whose gradients are reduced at once."""
    for tokens, labels in zip(inputs, targets, strict=True):
        (stage.loss(stage(tokens), labels) / len(inputs)).backward()


class Pipeline:
    """The schedule 1F1B of one stage; gradients are reduced after the last micro-batch.

    Args:
        stage: The blocks of this rank.
        held: The size of an activation between stages.
        group: The ranks of all stages.
        back: Likewise, for gradients: one communicator takes its messages in order.
    """

    def __init__(self, stage, held, group, back):
        self.stage, self.held, self.rank, self.count = stage, held, group.rank(), group.size()
        ranks = dist.get_process_group_ranks(group)
        self.before, self.after = ranks[self.rank - 1], ranks[(self.rank + 1) % self.count]
        self.is_first, self.is_last = stage.embed is not None, stage.head is not None
        self.running, self.sent, self.group, self.back = [], [], group, back

    def __call__(self, inputs, targets):
        """Run forward and backward of all micro-batches."""
        ahead = min(self.count - 1 - self.rank, len(inputs))
        for i in range(len(inputs) + ahead):
            if i < len(inputs):
                self.forward(inputs[i], targets[i], len(inputs))
            if i >= ahead:
                self.backward(is_end=i == len(inputs) + ahead - 1)
        for work in self.sent:
            work.wait()
        self.sent.clear()

    def forward(self, tokens, labels, count):
        """Run forward of a micro-batch."""
        x = tokens if self.is_first else self.received(self.before, self.group).requires_grad_()
        y = self.stage(x)
        y = (
            self.stage.loss(y, labels) / count
            if self.is_last
            else self.sending(y, self.after, self.group)
        )
        self.running.append((x, y))

    def backward(self, is_end):
        """Run backward of the first micro-batch that runs."""
        x, y = self.running.pop(0)
        self.stage.set_is_last_backward(is_end)
        self.stage.set_requires_gradient_sync(is_end)
        self.stage.set_reshard_after_backward(is_end)
        torch.autograd.backward(y, None if self.is_last else self.received(self.after, self.back))
        if not self.is_first:
            self.sending(x.grad, self.before, self.back)

    def sending(self, x, rank, group):
        """Send x, and return it."""
        self.sent.append(dist.isend(x.detach(), rank, group))
        return x

    def received(self, rank, group):
        """Receive an activation or its gradient from a rank."""
        x = torch.empty(self.held, dtype=torch.bfloat16, device="cuda")
        dist.irecv(x, rank, group).wait()
        return x


def in_context(mesh, stage, x, y, options):
    """Return the context in which sequences are split over ranks."""
    if options.cp == 1:
        return nullcontext()
    from torch.distributed.tensor.experimental import context_parallel

    buffers, dims = [x, y, stage.turns], [1, 1, 0]
    return context_parallel(
        mesh["cp"], buffers=buffers, buffer_seq_dims=dims, no_restore_buffers={x, y}
    )


def main():
    """Train some steps."""
    model, options = parsed()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    sizes = {"pp": options.pp, "replicate": options.replicate, "shard": 0}
    sizes |= {"cp": options.cp, "tp": options.tp}
    per_stage = dist.get_world_size() // options.pp
    sizes["shard"] = per_stage // (options.replicate * options.cp * options.tp)
    mesh = init_device_mesh("cuda", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    mesh["shard", "cp"]._flatten("shard_cp")
    groups = {name: mesh[name].get_group() if sizes[name] > 1 else None for name in ("pp", "tp")}
    groups["ep"] = experts_mesh = None
    if model["experts"]:
        dims = (options.pp, per_stage // options.ep, options.ep)
        experts_mesh = init_device_mesh("cuda", dims, mesh_dim_names=("stages", "over", "ep"))
        groups["ep"] = experts_mesh["ep"].get_group() if options.ep > 1 else None
    with torch.device("meta"):
        rank = dist.get_rank(groups["pp"]) if options.pp > 1 else 0
        stage = Stage(model, options, groups, rank)
    sharded(stage, options, mesh, experts_mesh)
    update = Update(stage, options, groups)
    data_ranks = sizes["replicate"] * sizes["shard"]
    run = partial(accumulate, stage)
    if options.pp > 1:
        held = options.seq // options.cp // options.tp, options.micro, model["hidden"]
        back = init_device_mesh("cuda", (options.pp, per_stage), mesh_dim_names=("back", "stage"))
        run = Pipeline(stage, held, groups["pp"], back["back"].get_group())
    for step in range(options.steps):  # The first one warms up, with one micro-batch.
        size = (options.batch // data_ranks if step else options.micro, options.seq + 1)
        tokens = torch.randint(0, model["vocab"], size, device="cuda")
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        with in_context(mesh, stage, x, y, options):
            run(x.split(options.micro), y.split(options.micro))
        update()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
