"""Training steps of whole models on one GPU, or on a simulated one: times and memory.

`python benches/training_steps.py llama_1b --seq 4096 --compiled` prints a row as those of
`configs/torch/h200_steps.csv`; `simrank run benches/training_steps.py gpt2` simulates it.
"""

from __future__ import annotations

import argparse
import os
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's habit
from torch.utils.checkpoint import checkpoint

MODELS = {  # Layers, width, heads of queries, of keys, width of the MLP, vocabulary.
    "llama_1b": (16, 2048, 32, 8, 8192, 128256),
    "gpt2": (12, 768, 12, 12, 3072, 50304),
    "llama_8b_4_layers": (4, 4096, 32, 8, 14336, 128256),
}
STEPS = 4


class Block(nn.Module):
    """A block of Llama 3, with complex rotary embeddings and repeated keys."""

    def __init__(self, dim, heads, kv_heads, ffn):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, kv_heads * self.head_dim, bias=False) for _ in range(2))
        self.w1, self.w3 = (nn.Linear(dim, ffn, bias=False) for _ in range(2))
        self.w2 = nn.Linear(ffn, dim, bias=False)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(dim, eps=1e-5), nn.RMSNorm(dim, eps=1e-5)

    def forward(self, x, turns):
        """Return the block's output of x, [batch, sequence, dim]."""
        batch, seq, _ = x.shape
        h = self.attention_norm(x)
        q, k, v = (w(h).view(batch, seq, -1, self.head_dim) for w in (self.wq, self.wk, self.wv))
        q, k = turned(q, turns), turned(k, turns)
        repeats = self.heads // self.kv_heads
        shape = batch, seq, self.kv_heads, repeats, self.head_dim
        k, v = (y[:, :, :, None, :].expand(shape).reshape(q.shape) for y in (k, v))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(y.transpose(1, 2).contiguous().view(batch, seq, -1))
        h = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


def turned(x, turns):
    """Return x with rotary embeddings."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


class Model(nn.Module):
    """An embedding, blocks and a head."""

    def __init__(self, name, *, checkpointed):
        super().__init__()
        layers, dim, heads, kv_heads, ffn, vocab = MODELS[name]
        self.tok = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Block(dim, heads, kv_heads, ffn) for _ in range(layers))
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.output = nn.Linear(dim, vocab, bias=False)
        self.checkpointed = checkpointed

    def forward(self, tokens, turns):
        """Return the logits of tokens, [batch, sequence]."""
        h = self.tok(tokens)
        for layer in self.layers:
            h = (
                checkpoint(layer, h, turns, use_reentrant=False)
                if self.checkpointed
                else layer(h, turns)
            )
        return self.output(self.norm(h))


def built(options):
    """Return the model as asked for, on the current device."""
    torch.set_default_dtype(getattr(torch, options.dtype))
    with torch.device("cuda"):
        model = Model(options.model, checkpointed=options.checkpointed)
    torch.set_default_dtype(torch.float32)
    if options.compiled:
        for layer in model.layers:
            layer.compile(fullgraph=True)
    if options.wrap == "ddp":
        return nn.parallel.DistributedDataParallel(model, device_ids=[0])
    if options.wrap == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    return model


def step(model, optimizer, turns, options):
    """Return the milliseconds of forward, backward and optimizer."""
    vocab = MODELS[options.model][-1]
    tokens = torch.randint(0, vocab, (options.batch, options.seq + 1), device="cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
    events[0].record()
    with torch.autocast("cuda", torch.bfloat16, enabled=options.autocast):
        logits = model(tokens[:, :-1], turns)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    events[1].record()
    loss.backward()
    events[2].record()
    optimizer.step()
    optimizer.zero_grad()
    events[3].record()
    torch.cuda.synchronize()
    return [one.elapsed_time(other) for one, other in pairwise(events)]


def main():
    """Print the row of the last of a few steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--optimizer", default="fused", choices=("fused", "foreach"))
    parser.add_argument("--wrap", choices=("ddp", "fsdp2"))
    for flag in ("--compiled", "--checkpointed", "--autocast"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    for name, value in {
        "RANK": 0,
        "WORLD_SIZE": 1,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": 29533,
    }.items():
        os.environ.setdefault(name, str(value))
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    head_dim = MODELS[options.model][1] // MODELS[options.model][2]
    rates = 500000.0 ** (-torch.arange(0, head_dim, 2, device="cuda").float() / head_dim)
    angles = torch.outer(torch.arange(options.seq, device="cuda").float(), rates)
    turns = torch.polar(torch.ones_like(angles), angles).view(1, options.seq, 1, head_dim // 2)
    model = built(options)
    kind = {options.optimizer: True}
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, **kind)
    at_start = torch.cuda.memory_allocated()
    for _ in range(STEPS):
        times = step(model, optimizer, turns, options)
    stats = torch.cuda.memory_stats()
    peaks = [stats[f"{kind}_bytes.all.peak"] for kind in ("allocated", "requested", "reserved")]
    print(*(f"{ms:.2f}" for ms in times), at_start, *peaks, stats["segment.all.current"], sep=",")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
