"""Training steps of MosaicML's GPTs with FSDP1, as its Composer ran them in 2023.

```sh
simrank run --shape-only --cluster hgx_h100 benches/mpt_layouts.py 7b --microbatch 6
torchrun --nproc-per-node 8 benches/mpt_layouts.py 1b --microbatch 14
```

Rank 0 prints the milliseconds of each step, tokens per second and GPU, and its peaks of memory.
Composer reduces gradients in every micro-batch, gathers a block's parameters in backward only once
the gradients of the block after it are there, and updates each parameter by a kernel per operation.
Its attention was a Triton kernel of FlashAttention-1; torch's `efficient` one stands for it.
"""

from __future__ import annotations

import argparse
import os
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn import functional as F  # noqa: N812 - torch's habit

MODELS = {  # Layers, width, heads: the vocabulary has 50,368 tokens, an MLP is four times as wide.
    "debug": (4, 256, 2),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}
VOCABULARY = 50368


class Norm(nn.LayerNorm):
    """A LayerNorm in the type of its input."""

    def forward(self, x):
        """Return x, normalised over its last dimension."""
        with torch.autocast("cuda", enabled=False):
            weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
            return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class Block(nn.Module):
    """A block: attention of one product for queries, keys and values, and an MLP with GELU."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = Norm(dim), Norm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        """Return the block's output of x, [batch, sequence, dim]."""
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for y in self.qkv(self.norm_1(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Model(nn.Module):
    """The model; its head is the embedding."""

    def __init__(self, name, seq):
        super().__init__()
        num_layers, dim, heads = MODELS[name]
        self.tokens, self.positions = nn.Embedding(VOCABULARY, dim), nn.Embedding(seq, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(num_layers))
        self.norm = Norm(dim)

    def forward(self, x):
        """Return the logits of tokens, [batch, sequence, vocabulary]."""
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return F.linear(self.norm(h), self.tokens.weight)


def prepared(options):
    """Return the model as it is trained: sharded by blocks, and checkpointed."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
    )

    with torch.device("meta"):
        model = Model(options.model, options.seq)
    is_pure = options.mixed_precision == "PURE"
    model = FullyShardedDataParallel(
        model,
        sharding_strategy=ShardingStrategy[options.sharding_strategy],
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=MixedPrecision(
            param_dtype=torch.bfloat16,
            reduce_dtype=torch.bfloat16 if is_pure else torch.float32,
            buffer_dtype=torch.bfloat16 if is_pure else torch.float32,
        ),
        backward_prefetch=BackwardPrefetch.BACKWARD_POST,
        limit_all_gathers=True,
        use_orig_params=True,
        device_id=torch.cuda.current_device(),
        param_init_fn=lambda module: module.to_empty(device="cuda", recurse=False),
    )
    if options.activation_checkpointing:
        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    return model


def parsed():
    """Return the options of the command line, which have Composer's names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    for name, default in (("microbatch", 1), ("accum", 1), ("seq", 2048), ("steps", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--sharding-strategy", default="FULL_SHARD")
    parser.add_argument("--mixed-precision", choices=("DEFAULT", "PURE"), default="DEFAULT")
    parser.add_argument("--activation-checkpointing", action="store_true")
    return parser.parse_args()


def main():
    """Print the time and the memory of a few steps."""
    options = parsed()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_flash_sdp(False)
    model = prepared(options)
    optimizer = torch.optim.AdamW(
        model.parameters(), 1e-4, (0.9, 0.95), weight_decay=0, foreach=False
    )
    events = [torch.cuda.Event(enable_timing=True)]
    events[0].record()
    for _ in range(options.steps):
        optimizer.zero_grad()
        for _ in range(options.accum):
            text = torch.randint(VOCABULARY, (options.microbatch, options.seq + 1)).cuda()
            with torch.autocast("cuda", torch.bfloat16):
                logits = model(text[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
            (loss / options.accum).backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        times = [one.elapsed_time(other) for one, other in pairwise(events)]
        rate = options.microbatch * options.accum * options.seq / times[-1] * 1e3
        print("ms", *(f"{ms:.3f}" for ms in times))
        print(f"tokens/s/GPU {rate:.1f}")
        stats = torch.cuda.memory_stats()
        peaks = (stats[f"{kind}_bytes.all.peak"] / 2**30 for kind in ("allocated", "reserved"))
        print("peak GiB: allocated {:.3f}, reserved {:.3f}".format(*peaks))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
