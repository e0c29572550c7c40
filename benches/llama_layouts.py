"""Training steps of Llama 3 with FSDP2, tensor, pipeline and context parallelism, as users do.

```sh
simrank run --shape-only --cluster h100_ib --nnodes 32 benches/llama_layouts.py 70b --tp 8 --ac full
torchrun --nproc-per-node 8 benches/llama_layouts.py 8b
```

Rank 0 prints the milliseconds of each step, tokens per second and GPU, and its peaks of memory.
The mesh is pp, dp_replicate, dp_shard, cp, tp, from the outermost to the innermost dimension.
"""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F  # noqa: N812 - torch's habit

MODELS = {  # Layers, width, heads of queries, of keys, width of the MLP, vocabulary.
    "debug": (8, 256, 8, 4, 512, 2048),
    "1b": (16, 2048, 32, 8, 8192, 128256),
    "8b": (32, 4096, 32, 8, 14336, 128256),
    "70b": (80, 8192, 64, 8, 28672, 128256),
    "405b": (126, 16384, 128, 8, 53248, 128256),
    "llama2_7b": (32, 4096, 32, 32, 11008, 32000),
    "llama2_13b": (40, 5120, 40, 40, 13824, 32000),
    "llama2_34b": (48, 8192, 64, 8, 22016, 32000),
    "llama2_70b": (80, 8192, 64, 8, 28672, 32000),
}


class Attention(nn.Module):
    """Attention with grouped queries and rotary embeddings."""

    def __init__(self, dim, heads, kv_heads):
        super().__init__()
        self.head_dim = dim // heads
        self.repeats = heads // kv_heads
        self.wq = nn.Linear(dim, heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(heads * self.head_dim, dim, bias=False)

    def forward(self, x, turns):
        """Return the attention's output of x, [batch, sequence, dim]."""
        batch, seq, _ = x.shape
        q, k, v = (w(x).view(batch, seq, -1, self.head_dim) for w in (self.wq, self.wk, self.wv))
        q, k = turned(q, turns), turned(k, turns)
        k, v = (torch.repeat_interleave(y, self.repeats, dim=2) for y in (k, v))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).contiguous().view(batch, seq, -1))


def turned(x, turns):
    """Return x with rotary embeddings."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns.view(1, x.shape[1], 1, -1)).flatten(3).type_as(x)


class FeedForward(nn.Module):
    """The gated MLP."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x):
        """Return the MLP's output of x."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class EagerNorm(nn.RMSNorm):
    """An RMSNorm operator by operator, as torchtitan had it until autumn 2024."""

    def forward(self, x):
        """Return x, normalised over its last dimension."""
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return y.type_as(x) * self.weight


NORMS = {"fused": nn.RMSNorm, "eager": EagerNorm}


class Block(nn.Module):
    """A block of the model."""

    def __init__(self, dim, heads, kv_heads, hidden, norm):
        super().__init__()
        self.attention = Attention(dim, heads, kv_heads)
        self.feed_forward = FeedForward(dim, hidden)
        self.attention_norm, self.ffn_norm = norm(dim, eps=1e-5), norm(dim, eps=1e-5)

    def forward(self, x, turns):
        """Return the block's output of x."""
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.feed_forward(self.ffn_norm(x))


class Stage(nn.Module):
    """Some blocks of the model; the first stage has the embedding, the last one the head."""

    def __init__(self, name, seq, stage, num_stages, norm):
        super().__init__()
        num_layers, dim, heads, kv_heads, hidden, vocab = MODELS[name]
        self.angles = (seq, dim // heads)
        self.tok_embeddings = nn.Embedding(vocab, dim) if stage == 0 else None
        self.layers = nn.ModuleDict(
            {
                str(i): Block(dim, heads, kv_heads, hidden, norm)
                for i in layers_of(num_layers, stage, num_stages)
            }
        )
        is_last = stage == num_stages - 1
        self.norm = norm(dim, eps=1e-5) if is_last else None
        self.output = nn.Linear(dim, vocab, bias=False) if is_last else None
        self.register_buffer("turns", self.turns_of("cpu"), persistent=False)

    def turns_of(self, device):
        """Return the rotary embeddings, [sequence, half of a head]."""
        seq, head_dim = self.angles
        rates = 500000.0 ** (-torch.arange(0, head_dim, 2, device=device).float() / head_dim)
        angles = torch.outer(torch.arange(seq, device=device).float(), rates)
        return torch.polar(torch.ones_like(angles), angles)

    def init_weights(self):
        """Fill parameters and buffers on the device."""
        self.turns = self.turns_of("cuda")
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, nn.RMSNorm):
                module.reset_parameters()

    def forward(self, x):
        """Return the stage's output: of tokens or activations, activations or logits."""
        h = x if self.tok_embeddings is None else self.tok_embeddings(x)
        for layer in self.layers.values():
            h = layer(h, self.turns)
        return h if self.output is None else self.output(self.norm(h))


def layers_of(num_layers, stage, num_stages):
    """Return a stage's layers; embedding and head count as one layer each."""
    if num_stages == 1:
        return range(num_layers)
    per_stage, more = divmod(num_layers + 2, num_stages)
    sizes = [per_stage + (i < more) for i in range(num_stages)]
    sizes[0] -= 1
    sizes[-1] -= 1
    return range(sum(sizes[:stage]), sum(sizes[: stage + 1]))


class Float8Linear(nn.Linear):
    """A Linear whose products are of float8, with one scale for each tensor."""

    def forward(self, x):
        """Return the product of x and the weight: split as the weight is, if it is."""
        from torch.distributed.tensor import DTensor, Partial, Shard

        if not isinstance(self.weight, DTensor):
            return Float8Product.apply(x, self.weight)
        mesh, is_column = self.weight.device_mesh, self.weight.placements[0] == Shard(0)
        own = x.to_local(grad_placements=[Partial() if is_column else x.placements[0]])
        product = Float8Product.apply(own, self.weight.to_local())
        placement = Shard(x.ndim - 1) if is_column else Partial()
        return DTensor.from_local(product, mesh, [placement], run_check=False)


class Float8Product(torch.autograd.Function):
    """A product of float8 whose gradients are products of float8, too."""

    @staticmethod
    def forward(ctx, x, weight):
        """Return x @ weight.T."""
        ctx.save_for_backward(x, weight)
        flat = x.reshape(-1, x.shape[-1])
        return scaled_product(flat, weight.t()).view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of x and of the weight."""
        x, weight = ctx.saved_tensors
        flat = grad.reshape(-1, grad.shape[-1])
        of_x = scaled_product(flat, weight).view_as(x)
        return of_x, scaled_product(flat.t(), x.reshape(-1, x.shape[-1]))


def scaled_product(a, b):
    """Return a @ b of float8."""
    scale_a, scale_b = (448.0 / y.abs().amax().float() for y in (a, b))
    a8 = (a * scale_a).clamp(-448, 448).to(torch.float8_e4m3fn).contiguous()
    b8 = (b * scale_b).clamp(-448, 448).to(torch.float8_e4m3fn).t().contiguous().t()
    scales = scale_a.reciprocal(), scale_b.reciprocal()
    return torch._scaled_mm(a8, b8, *scales, out_dtype=torch.bfloat16, use_fast_accum=True)


def split_over(model, mesh, *, gathers):
    """Split a stage's layers over ranks, and its sequence between them.

    Args:
        model: The stage.
        mesh: The ranks.
        gathers: Whether logits are whole on every rank.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    rows, whole = Shard(1), Replicate()
    logits = whole if gathers else Shard(-1)
    ends = {
        "tok_embeddings": RowwiseParallel(input_layouts=whole, output_layouts=rows),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(
            input_layouts=rows, output_layouts=logits, use_local_output=gathers
        ),
    }
    plan = {name: how for name, how in ends.items() if getattr(model, name) is not None}
    parallelize_module(model, mesh, plan)
    plan = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(rows, None), desired_input_layouts=(whole, None)
        ),
        "attention.wo": RowwiseParallel(output_layouts=rows),
        "ffn_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=(rows,), desired_input_layouts=(whole,)),
        "feed_forward.w2": RowwiseParallel(output_layouts=rows),
    }
    columns = ("attention.wq", "attention.wk", "attention.wv", "feed_forward.w1", "feed_forward.w3")
    for layer in model.layers.values():
        parallelize_module(layer, mesh, plan | {name: ColwiseParallel() for name in columns})


def checkpointed(layer, kind):
    """Return a block that recomputes its activations: all, or some products and the rest."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    if kind != "selective":
        return checkpoint_wrapper(layer, preserve_rng_state=False)
    aten = torch.ops.aten
    saved = {
        aten.mm.default,
        aten.amax.default,  # Of which scales of float8 are made, as torchtitan saves them.
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
    }

    def contexts():
        seen = {True: 0, False: 0}

        def policy(ctx, operator, *_, **__):
            if operator in (aten.mm.default, aten._scaled_mm.default):  # Every second: torchtitan.
                seen[ctx.is_recompute] += 1
                if seen[ctx.is_recompute] % 2 == 0:
                    return CheckpointPolicy.PREFER_RECOMPUTE
            is_saved = operator in saved
            return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    return checkpoint_wrapper(layer, context_fn=contexts, preserve_rng_state=False)


def prepared(model, mesh, options):
    """Return a stage as it is trained: split, checkpointed, compiled and sharded."""
    if options.float8:
        for layer in model.layers.values():
            for module in layer.modules():
                if type(module) is nn.Linear:
                    module.__class__ = Float8Linear
    if options.tp > 1:
        split_over(model, mesh["tp"], gathers=not options.loss_parallel)
    if options.ac != "none":
        step = 2 if options.ac == "layers" else 1
        for name, layer in list(model.layers.named_children())[step - 1 :: step]:
            model.layers.register_module(name, checkpointed(layer, options.ac))
    if options.compile:
        for layer in model.layers.values():
            layer.compile()
    names = ("dp_replicate", "dp_shard_cp") if options.dp_replicate > 1 else ("dp_shard_cp",)
    shard = {
        "mesh": mesh[names],
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=getattr(torch, options.reduce_dtype)
        ),
    }
    last = len(model.layers) - 1
    for i, layer in enumerate(model.layers.values()):
        keeps = options.pp > 1 or options.zero2 or i == last
        fully_shard(layer, **shard, reshard_after_forward=not keeps)
    fully_shard(model, **shard, reshard_after_forward=options.pp == 1 and not options.zero2)
    model.to_empty(device="cuda")
    with torch.no_grad():
        model.init_weights()
    return model


def built(mesh, options):
    """Return the stages of this rank, and what runs forward and backward of a batch."""
    num_stages = options.pp * options.virtual
    rank = mesh["pp"].get_local_rank() if options.pp > 1 else 0
    own = [rank + options.pp * i for i in range(options.virtual)]
    models = []
    for stage in own:
        with torch.device("meta"):
            model = Stage(options.model, options.seq, stage, num_stages, NORMS[options.norm])
        models.append(prepared(model, mesh, options))
    device = torch.device("cuda", torch.cuda.current_device())
    if options.pp == 1:
        return models, lambda x, y: accumulate(models[0], x, y, options)
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

    group = mesh["pp"].get_group()
    stages = [
        PipelineStage(m, i, num_stages, device, group=group)
        for i, m in zip(own, models, strict=True)
    ]
    count = options.batch // options.microbatch
    is_interleaved = options.virtual > 1
    kind = ScheduleInterleaved1F1B if is_interleaved else Schedule1F1B
    schedule = kind(stages if is_interleaved else stages[0], count, loss_fn=loss_of)

    def run(x, y):
        has_last = num_stages - 1 in own
        schedule.step(*([x] if rank == 0 else []), target=y if has_last else None)

    return models, run


def accumulate(model, x, y, options):
    """Run forward and backward of each micro-batch.

    `reduce` sums the gradients of each over the ranks and keeps a rank's part of them; `no-sync`
    keeps them whole until the last, which needs a model's memory.
    """
    count = options.batch // options.microbatch if options.accumulate else 1
    for number, (inputs, labels) in enumerate(zip(x.chunk(count), y.chunk(count), strict=True)):
        if options.accumulate == "no-sync":
            model.set_requires_gradient_sync(number == count - 1)
        loss_of(model(inputs), labels).backward()


def loss_of(logits, labels):
    """Return the cross entropy of logits, [batch, sequence, vocabulary]."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def norm_of(models, max_norm, mesh, options):
    """Clip the gradients of a rank's stages to a norm over all ranks."""
    parameters = [p for model in models for p in model.parameters()]
    grads = [p.grad for p in parameters if p.grad is not None]
    total = torch.nn.utils.get_total_norm(grads, foreach=True)
    total = total.full_tensor() if hasattr(total, "full_tensor") else total
    if options.pp > 1:
        total = total**2
        dist.all_reduce(total, group=mesh["pp"].get_group())
        total = total**0.5
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, total, foreach=True)


def parsed():
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    for name, default in (
        ("pp", 1), ("virtual", 1), ("dp-replicate", 1), ("cp", 1), ("tp", 1), ("batch", 1),
        ("microbatch", 1), ("seq", 8192), ("steps", 3),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--ac", choices=("none", "selective", "layers", "full"), default="none")
    parser.add_argument("--reduce-dtype", default="float32")
    parser.add_argument("--norm", choices=NORMS, default="fused")
    parser.add_argument("--sdpa", choices=("default", "flash", "efficient"), default="default")
    parser.add_argument("--accumulate", choices=("reduce", "no-sync"))
    for flag in ("compile", "float8", "loss-parallel", "zero2"):
        parser.add_argument(f"--{flag}", action="store_true")
    return parser.parse_args()


def mesh_of(options):
    """Return the mesh of all ranks."""
    rest = options.pp * options.dp_replicate * options.cp * options.tp
    sizes = {
        "pp": options.pp,
        "dp_replicate": options.dp_replicate,
        "dp_shard": dist.get_world_size() // rest,
        "cp": options.cp,
        "tp": options.tp,
    }
    mesh = init_device_mesh("cuda", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    mesh["dp_shard", "cp"]._flatten("dp_shard_cp")
    return mesh


def main():
    """Print the time and the memory of a few steps."""
    options = parsed()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    mesh = mesh_of(options)
    if options.sdpa != "default":  # Older releases of torch do not take cuDNN's kernels.
        torch.backends.cuda.enable_cudnn_sdp(False)
        torch.backends.cuda.enable_flash_sdp(options.sdpa == "flash")
    models, forward_backward = built(mesh, options)
    optimizer = torch.optim.AdamW(
        [p for model in models for p in model.parameters()], 3e-4, (0.9, 0.95), fused=True
    )
    vocab, events = MODELS[options.model][-1], [torch.cuda.Event(enable_timing=True)]
    events[0].record()
    for _ in range(options.steps):
        tokens = torch.randint(0, vocab, (options.batch, options.seq + 1)).cuda()
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        optimizer.zero_grad()
        with in_context(mesh, models, (x, y), options), in_loss(options):
            forward_backward(x, y)
        norm_of(models, 1.0, mesh, options)
        optimizer.step()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        times = [one.elapsed_time(other) for one, other in zip(events, events[1:], strict=False)]
        ranks = options.pp * options.cp * options.tp
        rate = options.batch * options.seq / ranks / times[-1] * 1e3
        print("ms", *(f"{ms:.3f}" for ms in times))
        print(f"tokens/s/GPU {rate:.1f}")
        stats = torch.cuda.memory_stats()
        peaks = (stats[f"{kind}_bytes.all.peak"] / 2**30 for kind in ("allocated", "reserved"))
        print("peak GiB: allocated {:.3f}, reserved {:.3f}".format(*peaks))
    dist.destroy_process_group()


def in_context(mesh, models, buffers, options):
    """Return the context in which sequences are split over ranks."""
    if options.cp == 1:
        return nullcontext()
    from torch.distributed.tensor.experimental import context_parallel

    turns = [model.turns for model in models]
    dims = [1] * len(buffers) + [0] * len(turns)
    return context_parallel(
        mesh["cp"], buffers=[*buffers, *turns], buffer_seq_dims=dims, no_restore_buffers={*buffers}
    )


def in_loss(options):
    """Return the context in which logits stay split over ranks."""
    if not options.loss_parallel or options.tp == 1:
        return nullcontext()
    from torch.distributed.tensor.parallel import loss_parallel

    return loss_parallel()


if __name__ == "__main__":
    main()
