"""A Llama of vLLM's own parallel layers: greedy tokens under tensor parallelism."""

import os
import sys

import torch
from torch import nn
from torch.nn import functional
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import (
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)

EXPECTED = [1, 5, 9, 77, *[164] * 8, 269, 307, 269]  # Of one process.
WIDTH, HEADS, KV_HEADS, INNER, LAYERS, VOCAB = 64, 8, 4, 128, 2, 320


class Layer(nn.Module):
    def __init__(self, tp):
        super().__init__()
        self.heads, self.kv_heads, self.size = HEADS // tp, KV_HEADS // tp, WIDTH // HEADS
        self.before = RMSNorm(WIDTH)
        self.qkv = QKVParallelLinear(WIDTH, self.size, HEADS, KV_HEADS, bias=False)
        self.out = RowParallelLinear(WIDTH, WIDTH, bias=False)
        self.after = RMSNorm(WIDTH)
        self.gate_up = MergedColumnParallelLinear(WIDTH, [INNER] * 2, bias=False)
        self.act = SiluAndMul()
        self.down = RowParallelLinear(INNER, WIDTH, bias=False)

    def forward(self, x):
        y, _ = self.qkv(self.before(x))
        q, k, v = y.split([n * self.size for n in (self.heads, self.kv_heads, self.kv_heads)], -1)
        q, k, v = (t.unflatten(-1, (-1, self.size)).transpose(0, 1) for t in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(0, 1).flatten(1))[0]
        return x + self.down(self.act(self.gate_up(self.after(x))[0]))[0]


class Llama(nn.Module):
    def __init__(self, tp):
        super().__init__()
        self.embed = VocabParallelEmbedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Layer(tp) for _ in range(LAYERS))
        self.norm = RMSNorm(WIDTH)
        self.head = ParallelLMHead(VOCAB, WIDTH)
        self.logits = LogitsProcessor(VOCAB)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.logits(self.head, self.norm(x)[-1:])


def load(model):
    """Give each parameter its share of one whole tensor, through vLLM's own loaders."""
    generator = torch.Generator().manual_seed(3)

    def whole(*size):
        return torch.randn(size, generator=generator) * 0.2

    for layer in model.layers:
        narrow = WIDTH * KV_HEADS // HEADS
        for key, rows in (("q", WIDTH), ("k", narrow), ("v", narrow)):
            layer.qkv.weight_loader(layer.qkv.weight, whole(rows, WIDTH), key)
        layer.out.weight_loader(layer.out.weight, whole(WIDTH, WIDTH))
        for number in (0, 1):
            layer.gate_up.weight_loader(layer.gate_up.weight, whole(INNER, WIDTH), number)
        layer.down.weight_loader(layer.down.weight, whole(WIDTH, INNER))
    model.embed.weight_loader(model.embed.weight, whole(VOCAB, WIDTH))
    model.head.weight_loader(model.head.weight, whole(VOCAB, WIDTH))
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is not None:
            method.process_weights_after_loading(module)


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(
            world, rank, "env://", rank, "gloo" if device == "cpu" else "nccl"
        )
        parallel_state.initialize_model_parallel(world)
        if device != "cpu":
            torch.cuda.set_device(rank)
        torch.set_default_device(device)
        model = Llama(world)
        load(model)
        tokens = torch.tensor([1, 5, 9])
        with torch.no_grad():
            for _ in range(12):
                tokens = torch.cat([tokens, model(tokens).argmax(-1)])
        group = parallel_state.get_tp_group()
        told = group.broadcast_object({"tokens": tokens.tolist()}, src=0)
        assert told["tokens"] == tokens.tolist(), (told, tokens)
        assert tokens.tolist() == EXPECTED, tokens
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()


main()
