"""megatron-core, as it is installed, on simulated GPUs: every layout equals the model on one rank.

Weights are drawn whole, by name, and each rank keeps its part; so losses, gradients and weights
after two steps of Adam can be compared between layouts.
"""

import importlib.util
import shutil
import warnings

import pytest
import torch

if importlib.util.find_spec("megatron") is None:
    pytest.skip("megatron-core is not installed", allow_module_level=True)
if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)

import torch.distributed as dist

import simrank

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(300),
]
HIDDEN, HEADS, VOCABULARY, LENGTH, BATCH = 32, 8, 64, 16, 16


class Norm(torch.nn.Module):
    """A norm that allows sequence parallelism: torch's own does not."""

    def __init__(self, config, hidden_size, eps=1e-5, **_):
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


def attention_over_context():
    """Return an attention over keys and values of all context-parallel ranks.

    Megatron leaves context parallelism to Transformer Engine, and says so where it is missing. Here
    a rank has neighbouring tokens, and gathers keys and values; their gradients are scattered.
    """
    from megatron.core import parallel_state as ps
    from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
    from megatron.core.transformer.module import MegatronModule

    class Attention(MegatronModule):
        def __init__(self, config, layer_number, attn_mask_type, attention_type, **_):
            super().__init__(config=config)
            self.scale = (HIDDEN // HEADS) ** -0.5

        def forward(self, query, key, value, *_, **__):
            group = ps.get_context_parallel_group()
            key, value = (
                gather_from_sequence_parallel_region(x, group=group) for x in (key, value)
            )
            length, first = len(query), len(query) * dist.get_rank(group)
            q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
            scores = q @ k.transpose(-1, -2) * self.scale
            at = torch.arange(first, first + length, device="cuda")
            later = at[:, None] < torch.arange(len(key), device="cuda")
            mixed = scores.masked_fill(later, -1e9).softmax(-1) @ v
            return mixed.permute(2, 0, 1, 3).flatten(2)

    return Attention


def seeded(name, shape):
    """Return the whole tensor of a parameter, by its name."""
    generator = torch.Generator().manual_seed(sum(ord(c) * (i + 1) for i, c in enumerate(name)))
    return torch.randn(shape, generator=generator) * 0.1


def model_of(layout):
    """Build the GPT of a layout, with the weights that every layout has."""
    from megatron.core import parallel_state as ps
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=2, hidden_size=HIDDEN, num_attention_heads=HEADS, ffn_hidden_size=64,
        use_cpu_initialization=True, hidden_dropout=0.0, attention_dropout=0.0,
        params_dtype=torch.float32, pipeline_dtype=torch.float32, bias_dropout_fusion=False,
        gradient_accumulation_fusion=False, tensor_model_parallel_size=layout["tp"],
        pipeline_model_parallel_size=layout["pp"], sequence_parallel=layout["sp"],
        num_moe_experts=layout["experts"], expert_model_parallel_size=layout["ep"],
        moe_router_topk=2, moe_router_load_balancing_type="none",
        add_bias_linear=layout["experts"] is None,
        moe_token_dispatcher_type="alltoall", context_parallel_size=layout["cp"],
    )  # fmt: skip
    if layout["experts"] is not None:  # Megatron reads this name, which Transformer Engine gives.
        from megatron.core.transformer.moe import moe_utils

        moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)
    spec = get_gpt_layer_local_spec(num_experts=layout["experts"])
    for name in ("input_layernorm", "pre_mlp_layernorm"):
        setattr(spec.submodules, name, Norm)
    if layout["cp"] > 1:
        spec.submodules.self_attention.submodules.core_attention = attention_over_context()
    local_layers = config.num_layers // layout["pp"]
    block = TransformerBlockSubmodules(layer_specs=[spec] * local_layers, layer_norm=Norm)
    model = GPTModel(
        config, block, VOCABULARY, LENGTH, pre_process=ps.is_pipeline_first_stage(),
        post_process=ps.is_pipeline_last_stage(), share_embeddings_and_output_weights=False,
    )  # fmt: skip
    with torch.no_grad():
        for name, parameter in whole_names(model, local_layers):
            whole = list(parameter.shape)
            is_split = getattr(parameter, "tensor_model_parallel", False)
            if is_split:
                whole[parameter.partition_dim] *= layout["tp"]
            value = seeded(name, whole)
            if is_split:
                parts = value.chunk(layout["tp"], parameter.partition_dim)
                value = parts[ps.get_tensor_model_parallel_rank()]
            parameter.copy_(value + ("layernorm" in name))
    return model.cuda(), config


def whole_names(model, local_layers):
    """Yield parameters with the names that they have without pipeline parallelism."""
    from megatron.core import parallel_state as ps

    first = local_layers * ps.get_pipeline_model_parallel_rank()
    first_expert = 4 // ps.get_expert_model_parallel_world_size()
    first_expert *= ps.get_expert_model_parallel_rank()
    for name, parameter in model.named_parameters():
        parts = name.split(".")
        if "layers" in parts:
            at = parts.index("layers") + 1
            parts[at] = str(int(parts[at]) + first)
        if "local_experts" in parts:
            at = parts.index("local_experts") + 1
            parts[at] = str(int(parts[at]) + first_expert)
        yield ".".join(parts), parameter


def train(rank, layout, results):
    """Take two steps of Adam with Megatron's DDP and pipeline; keep losses and whole gradients."""
    from megatron.core import parallel_state as ps
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    ps.initialize_model_parallel(
        layout["tp"], layout["pp"], expert_model_parallel_size=layout["ep"],
        context_parallel_size=layout["cp"],
    )  # fmt: skip
    model_parallel_cuda_manual_seed(7)
    inner, config = model_of(layout)
    ddp = DistributedDataParallelConfig(
        overlap_grad_reduce=layout["overlap"], use_distributed_optimizer=layout["zero"]
    )
    model = DistributedDataParallel(config, ddp, inner)
    config.finalize_model_grads_func = finalize_model_grads
    settings = OptimizerConfig(
        optimizer="adam", lr=0.01, weight_decay=0.0, clip_grad=1.0,
        use_distributed_optimizer=layout["zero"],
        adam_eps=1e-4,  # A key's bias has no gradient but rounding, which Adam would scale up.
    )  # fmt: skip
    optimizer = get_megatron_optimizer(settings, [model])
    data_size, data_rank = ps.get_data_parallel_world_size(), ps.get_data_parallel_rank()
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(VOCABULARY, (2, BATCH, LENGTH + 1), generator=generator)
    losses = []

    def forward(batches, model):
        text = next(batches).cuda()
        positions = torch.arange(LENGTH, device="cuda").expand(len(text), LENGTH)
        given = (text[:, :-1], positions, text[:, 1:])
        own = ps.get_context_parallel_rank()
        tokens, places, labels = (x.chunk(layout["cp"], 1)[own].contiguous() for x in given)
        output = model(tokens, places, None, labels=labels)
        return output, lambda out: (out.mean() / layout["cp"], {"loss": out.detach().mean()})

    num_micro = 2
    for step in range(2):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        own = tokens[step].chunk(data_size)[data_rank]
        done = get_forward_backward_func()(
            forward_step_func=forward, data_iterator=iter(own.chunk(num_micro)), model=[model],
            num_microbatches=num_micro, seq_length=LENGTH,
            micro_batch_size=len(own) // num_micro, forward_only=False,
        )  # fmt: skip
        _, norm, _ = optimizer.step()
        mean = sum(d["loss"].item() for d in done) / num_micro
        losses.append((mean, float(norm)) if done else norm)
    local_layers = config.num_layers // layout["pp"]
    for name, parameter in whole_names(inner, local_layers):
        results.setdefault(name, {})[ps.get_tensor_model_parallel_rank()] = (
            parameter.detach().cpu(),
            parameter.partition_dim if getattr(parameter, "tensor_model_parallel", False) else None,
        )
    results.setdefault("losses", {})[rank] = losses
    ps.destroy_model_parallel()
    dist.destroy_process_group()


def trained(num_ranks, **layout):
    """Return the losses and the whole weights of a layout."""
    results = {}
    layout = {
        "tp": 1, "pp": 1, "sp": False, "zero": False, "overlap": False, "experts": None, "ep": 1,
        "cp": 1,
    } | layout  # fmt: skip
    with warnings.catch_warnings(), simrank.Context.for_ranks(num_ranks, private=["megatron"]) as c:
        warnings.simplefilter("ignore")
        c.multiprocessing.spawn(train, (layout, results), num_ranks, share_args=True)
    losses = results.pop("losses")
    weights = {}
    for name, parts in results.items():
        dim = parts[0][1]
        values = [parts[rank][0] for rank in sorted(parts)]
        weights[name] = values[0] if dim is None else torch.cat(values, dim)
    return losses, weights


@pytest.fixture(scope="module", name="one")
def fixture_one():
    """What one rank computes."""
    return trained(1)


LAYOUTS = {
    "TP 2": (2, {"tp": 2}),
    "TP 4": (4, {"tp": 4}),
    "TP 8": (8, {"tp": 8}),
    "TP 2, sequence parallel": (2, {"tp": 2, "sp": True}),
    "TP 8, sequence parallel": (8, {"tp": 8, "sp": True}),
    "PP 2": (2, {"pp": 2}),
    "TP 2 x PP 2 x DP 2": (8, {"tp": 2, "pp": 2, "sp": True}),
    "DP 4, distributed optimizer": (4, {"zero": True}),
    "CP 2": (2, {"cp": 2}),
    "CP 4": (4, {"cp": 4}),
    "TP 2 x CP 2 x DP 2, sequence parallel, distributed optimizer": (
        8, {"tp": 2, "cp": 2, "sp": True, "zero": True},
    ),
    "PP 2 x CP 2": (4, {"pp": 2, "cp": 2}),
    "TP 2 x DP 2, distributed optimizer, overlapped": (
        4, {"tp": 2, "zero": True, "overlap": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_equals_one_rank(name, one):
    """Losses, the norm of the gradients, and all weights after two steps."""
    compare(*LAYOUTS[name], one)


@pytest.mark.parametrize(("num_ranks", "ep"), [(2, 2), (4, 4), (8, 4)])
def test_experts_on_several_ranks_equal_experts_on_one(num_ranks, ep, experts):
    """Tokens travel to them and back."""
    compare(num_ranks, {"experts": 4, "ep": ep}, experts)


@pytest.fixture(scope="module", name="experts")
def fixture_experts():
    """What one rank computes with four experts."""
    return trained(1, experts=4)


def compare(num_ranks, layout, one):
    """Train a layout, and hold it against one rank."""
    losses, weights = trained(num_ranks, **layout)
    own_losses, own_weights = one
    last = [entry for entry in losses.values() if isinstance(entry[0], tuple)]
    data_size = num_ranks // layout.get("tp", 1) // layout.get("pp", 1)
    for step, (loss, norm) in enumerate(own_losses[0]):
        mean = sum(entry[step][0] for entry in last) / len(last)
        assert mean == pytest.approx(loss, rel=2e-5), f"step {step} of {data_size} replicas"
        assert last[0][step][1] == pytest.approx(norm, rel=2e-4)
    assert weights.keys() == own_weights.keys()
    for key, value in own_weights.items():
        assert torch.allclose(weights[key], value, rtol=2e-4, atol=2e-5), key
