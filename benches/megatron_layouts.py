"""Training steps of GPTs with megatron-core's own layers, pipelines and optimizers, as users do.

```sh
pip install megatron-core==0.16.1
simrank run --shape-only --cluster h100_ib --nnodes 2 benches/megatron_layouts.py nemotron_15b \
    --tp 4 --micro-batch-size 4 --global-batch-size 64 --seq-length 4096
```

Rank 0 prints the milliseconds of each step, tokens per second and GPU, and its peaks of memory.
Megatron takes norms, attention, a softmax and a product from Transformer Engine and Apex, which
are built on a machine with a GPU. Here torch's functions stand for them.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from itertools import pairwise
from types import ModuleType

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch.nn import functional as F  # noqa: N812 - torch's habit

# Layers, width, heads of queries, of keys, width of the MLP, vocabulary, kind.
MODELS = {
    "debug": (8, 256, 8, 4, 512, 2048, "llama"),
    "gpt_22b": (48, 6144, 64, 64, 24576, 51200, "gpt"),
    "gpt_175b": (96, 12288, 96, 96, 49152, 51200, "gpt"),
    "gpt_530b": (105, 20480, 128, 128, 81920, 51200, "gpt"),
    "gpt_1t": (128, 25600, 160, 160, 102400, 51200, "gpt"),
    "nemotron_15b": (32, 6144, 48, 8, 24576, 256000, "nemotron"),
    "nemotron_340b": (96, 18432, 96, 8, 73728, 256000, "nemotron"),
    "llama3_8b": (32, 4096, 32, 8, 14336, 128256, "llama"),
    "llama3_70b": (80, 8192, 64, 8, 28672, 128256, "llama"),
    "llama3_405b": (126, 16384, 128, 8, 53248, 128256, "llama"),
}


def extension(name, **functions):
    """Make a module that Megatron imports from Apex."""
    module = ModuleType(name)
    vars(module).update(functions)
    sys.modules.setdefault(name, module)


def add_product_of(inputs, grads, total):
    """Add a weight's gradient to the sum over micro-batches, in one product."""
    factors = grads.flatten(0, -2).t(), inputs.flatten(0, -2)
    if total.dtype == torch.float32:
        torch.addmm(total, *factors, out_dtype=torch.float32, out=total)
    else:
        torch.addmm(total, *factors, out=total)


@triton.jit
def softmax_of_row(scores, results, length, scale, BLOCK: tl.constexpr):
    """Write the softmax of one query's scores, of keys that are not later."""
    row, key = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    is_seen = key <= row % length
    x = tl.load(scores + row * length + key, is_seen, -float("inf")).to(tl.float32) * scale
    y = tl.exp(x - tl.max(x, 0))
    tl.store(results + row * length + key, y / tl.sum(y, 0), key < length)


@triton.jit
def softmax_gradient_of_row(grads, results, of_scores, length, scale, BLOCK: tl.constexpr):
    """Write the gradient of one query's scores."""
    row, key = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    is_seen = key <= row % length
    y = tl.load(results + row * length + key, is_seen, 0.0).to(tl.float32)
    grad = tl.load(grads + row * length + key, is_seen, 0.0).to(tl.float32)
    x = (grad - tl.sum(grad * y, 0)) * y * scale
    tl.store(of_scores + row * length + key, x, key < length)


def causal_softmax(scores, scale):
    """Return the softmax of [heads, queries, keys], of keys that are not later."""
    results, length = torch.empty_like(scores), scores.shape[-1]
    rows = (scores.shape[0] * length,)
    softmax_of_row[rows](
        scores, results, length, float(scale), BLOCK=triton.next_power_of_2(length)
    )
    return results


def causal_softmax_backward(grads, results, scale):
    """Return the gradient of the scores, in the memory of the results' gradient."""
    length = results.shape[-1]
    rows = (results.shape[0] * length,)
    softmax_gradient_of_row[rows](
        grads, results, grads, length, float(scale), BLOCK=triton.next_power_of_2(length)
    )
    return grads


class FusedAdam(torch.optim.AdamW):
    """Adam with one kernel for all parameters."""

    def __init__(self, params, *, adam_w_mode=True, **options):
        super().__init__(params, fused=True, **options)


extension("apex", __path__=[])
extension("apex.optimizers", FusedAdam=FusedAdam, FusedSGD=torch.optim.SGD)
extension(
    "fused_weight_gradient_mlp_cuda",
    wgrad_gemm_accum_fp32=add_product_of,
    wgrad_gemm_accum_fp16=add_product_of,
)
extension(
    "scaled_upper_triang_masked_softmax_cuda",
    forward=causal_softmax,
    backward=causal_softmax_backward,
)
extension("scaled_masked_softmax_cuda", get_batch_per_block=lambda *_: 4)

from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.activations import squared_relu  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402
from megatron_overlap import OverlappedColumnLinear, OverlappedRowLinear  # noqa: E402


class Norm(torch.nn.Module):
    """A norm whose weights know that the sequence is split over ranks."""

    def __init__(self, config, hidden_size, eps=1e-5, **_):
        super().__init__()
        self.eps, self.size = eps, (hidden_size,)
        device = torch.device("cuda", torch.cuda.current_device())
        ones = torch.ones(hidden_size, dtype=config.params_dtype, device=device)
        self.weight = torch.nn.Parameter(ones)
        has_bias = config.normalization == "LayerNorm"
        self.bias = torch.nn.Parameter(torch.zeros_like(ones)) if has_bias else None
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel

    def forward(self, x):
        """Return x, normalised over its last dimension."""
        if self.bias is None:
            return F.rms_norm(x, self.size, self.weight, self.eps)
        return F.layer_norm(x, self.size, self.weight, self.bias, self.eps)


class FlashAttention(torch.nn.Module):
    """Causal attention whose scores are never stored."""

    def __init__(self, config, layer_number, attn_mask_type, attention_type, **_):
        super().__init__()

    def forward(self, query, key, value, *_, **__):
        """Return the attention's output of [sequence, batch, heads, width], heads flattened."""
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        is_grouped = q.shape[1] != k.shape[1]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=is_grouped)
        return y.permute(2, 0, 1, 3).reshape(*query.shape[:2], -1)


def config_of(options):
    """Return Megatron's description of the model and its layout."""
    num_layers, dim, heads, groups, hidden, _, kind = MODELS[options.model]
    recompute = {
        "none": {},
        "selective": {"recompute_granularity": "selective"},
        "full": {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        },
    }
    kinds = {
        "gpt": {
            "normalization": "LayerNorm", "add_bias_linear": True, "activation_func": F.gelu,
            "bias_activation_fusion": True,
        },
        "nemotron": {
            "normalization": "LayerNorm", "add_bias_linear": False, "activation_func": squared_relu,
        },
        "llama": {
            "normalization": "RMSNorm", "add_bias_linear": False, "activation_func": F.silu,
            "gated_linear_unit": True, "bias_activation_fusion": True,
        },
    }  # fmt: skip
    return TransformerConfig(
        num_layers=num_layers, hidden_size=dim, num_attention_heads=heads, num_query_groups=groups,
        ffn_hidden_size=hidden, bf16=True, params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16, hidden_dropout=options.dropout,
        attention_dropout=options.dropout, tensor_model_parallel_size=options.tp,
        pipeline_model_parallel_size=options.pp,
        virtual_pipeline_model_parallel_size=options.vp if options.vp > 1 else None,
        sequence_parallel=options.sequence_parallel and options.tp > 1,
        gradient_accumulation_fusion=True, bias_dropout_fusion=True, masked_softmax_fusion=True,
        cross_entropy_loss_fusion=True, persist_layer_norm=False,
        overlap_p2p_comm=options.vp > 1, batch_p2p_comm=options.vp == 1,
        deallocate_pipeline_outputs=True,
        **recompute[options.recompute], **kinds[kind],
    )  # fmt: skip


def chunks_of(options, config):
    """Return the chunks of the model that this rank has, each within Megatron's DDP."""
    vocab, kind = MODELS[options.model][-2:]
    spec = get_gpt_layer_local_spec()
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = Norm
    if options.tp_comm_overlap:
        attention, mlp = spec.submodules.self_attention.submodules, spec.submodules.mlp.submodules
        attention.linear_qkv = mlp.linear_fc1 = OverlappedColumnLinear
        attention.linear_proj = mlp.linear_fc2 = OverlappedRowLinear
    if options.attention == "flash":
        spec.submodules.self_attention.submodules.core_attention = FlashAttention
    per_chunk = config.num_layers // options.pp // options.vp
    block = TransformerBlockSubmodules(layer_specs=[spec] * per_chunk, layer_norm=Norm)
    is_distributed = options.optimizer == "distributed"
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=options.grad_reduce_in_fp32, overlap_grad_reduce=is_distributed,
        use_distributed_optimizer=is_distributed, overlap_param_gather=is_distributed,
        align_param_gather=is_distributed and options.vp > 1,
    )  # fmt: skip
    chunks = []
    for number in range(options.vp):
        stage = {"vp_stage": number if options.vp > 1 else None, "ignore_virtual": False}
        model = GPTModel(
            config, block, vocab, options.seq_length,
            pre_process=parallel_state.is_pipeline_first_stage(**stage),
            post_process=parallel_state.is_pipeline_last_stage(**stage),
            share_embeddings_and_output_weights=kind == "gpt",
            position_embedding_type="learned_absolute" if kind == "gpt" else "rope",
            rotary_percent=0.5 if kind == "nemotron" else 1.0,
            vp_stage=stage["vp_stage"],
        )  # fmt: skip
        model.cuda().bfloat16()
        chunks.append(DistributedDataParallel(config, ddp, model, disable_bucketing=bool(number)))
    return chunks


def forward_step(batches, model):
    """Return a micro-batch's losses, and the function that sums them up."""
    text = next(batches)
    positions = torch.arange(text.shape[1] - 1, device="cuda").expand(len(text), -1)
    output = model(text[:, :-1].contiguous(), positions, None, labels=text[:, 1:].contiguous())
    return output, lambda out: (out.mean(), {"loss": out.detach().mean()})


def parsed():
    """Return the options of the command line, which have Megatron's names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    for name, default in (
        ("tp", 1), ("pp", 1), ("vp", 1), ("micro-batch-size", 1), ("global-batch-size", 1),
        ("seq-length", 2048), ("steps", 2),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--recompute", choices=("none", "selective", "full"), default="none")
    parser.add_argument("--attention", choices=("flash", "scores"), default="flash")
    parser.add_argument("--optimizer", choices=("distributed", "whole"), default="distributed")
    parser.add_argument("--tp-comm-overlap", action="store_true")
    parser.add_argument("--sequence-parallel", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--grad-reduce-in-fp32", action=argparse.BooleanOptionalAction, default=True
    )
    return parser.parse_args()


def prepared(options):
    """Return the chunks of the model that this rank has, and the optimizer."""
    parallel_state.initialize_model_parallel(
        options.tp, options.pp, options.vp if options.vp > 1 else None
    )
    tensor_parallel.random.model_parallel_cuda_manual_seed(7)
    config = config_of(options)
    chunks = chunks_of(options, config)
    config.finalize_model_grads_func = finalize_model_grads
    is_distributed = options.optimizer == "distributed"
    if is_distributed:
        pauses = [chunk.no_sync for chunk in chunks]
        config.no_sync_func = pauses if options.vp > 1 else pauses[0]
        if options.vp > 1:
            config.grad_sync_func = [chunk.start_grad_sync for chunk in chunks]
            config.param_sync_func = [chunk.start_param_sync for chunk in chunks]
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam", lr=1e-4, clip_grad=1.0, bf16=True, params_dtype=torch.bfloat16,
            use_distributed_optimizer=is_distributed, overlap_param_gather=is_distributed,
        ),
        chunks,
    )  # fmt: skip
    return chunks, optimizer


def main():
    """Print the time and the memory of a few steps."""
    options = parsed()
    warnings.simplefilter("ignore")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    chunks, optimizer = prepared(options)
    replicas = parallel_state.get_data_parallel_world_size()
    count = options.global_batch_size // options.micro_batch_size // replicas
    shape = (options.micro_batch_size, options.seq_length + 1)
    events = [torch.cuda.Event(enable_timing=True)]
    events[0].record()
    for _ in range(options.steps):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        vocab = MODELS[options.model][-2]
        batches = [torch.randint(vocab, shape).cuda() for _ in range(count)]
        get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=[iter(batches) for _ in chunks] if options.vp > 1 else iter(batches),
            model=chunks, num_microbatches=count, seq_length=options.seq_length,
            micro_batch_size=options.micro_batch_size, forward_only=False,
        )  # fmt: skip
        optimizer.step()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        show(events, options.global_batch_size * options.seq_length)
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def show(events, num_tokens):
    """Print the milliseconds of each step, tokens per second and GPU, and the peaks of memory."""
    times = [one.elapsed_time(other) for one, other in pairwise(events)]
    print("ms", *(f"{ms:.3f}" for ms in times))
    print(f"tokens/s/GPU {num_tokens / dist.get_world_size() / times[-1] * 1e3:.1f}")
    stats = torch.cuda.memory_stats()
    peaks = (stats[f"{kind}_bytes.all.peak"] / 2**30 for kind in ("allocated", "reserved"))
    print("peak GiB: allocated {:.3f}, reserved {:.3f}".format(*peaks))


if __name__ == "__main__":
    main()
