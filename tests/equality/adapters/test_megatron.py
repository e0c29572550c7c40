"""megatron-core, as it is installed: its layouts equal its model on one device."""

import importlib.util

import pytest

pytest.importorskip("torch", reason="torch is not installed")
if importlib.util.find_spec("megatron") is None:
    pytest.skip("megatron-core is not installed", allow_module_level=True)

from simrank.equality.judge import prepared
from simrank.equality.layout import Layout
from simrank.equality.runs import RunOptions

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]
PROGRAM = """
import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules, get_num_layers_to_build)
from megatron.core.transformer.transformer_config import TransformerConfig
from simrank.equality.adapters import Megatron

moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)
config = TransformerConfig(
    num_layers=4, hidden_size=32, num_attention_heads=8, ffn_hidden_size=64,
    use_cpu_initialization=True, hidden_dropout=0.0, attention_dropout=0.0,
    gated_linear_unit=True, activation_func=torch.nn.functional.silu, num_moe_experts=EXPERTS,
    moe_router_topk=2, moe_router_load_balancing_type="none", add_bias_linear=EXPERTS is None,
    moe_token_dispatcher_type="alltoall", bias_activation_fusion=False, bias_dropout_fusion=False)

class Norm(torch.nn.Module):
    def __init__(self, config, hidden_size, eps=1e-5, **_):
        super().__init__()
        self.eps, self.weight = eps, torch.nn.Parameter(torch.ones(hidden_size))
        self.weight.sequence_parallel = config.sequence_parallel
    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight

def model(config, pre_process, post_process, vp_stage):
    spec = get_gpt_layer_local_spec(num_experts=config.num_moe_experts)
    for name in ("input_layernorm", "pre_mlp_layernorm"):
        setattr(spec.submodules, name, Norm)
    count = get_num_layers_to_build(config, vp_stage)
    block = TransformerBlockSubmodules(layer_specs=[spec] * count, layer_norm=Norm)
    return GPTModel(
        config, block, 64, 16, pre_process=pre_process, post_process=post_process,
        share_embeddings_and_output_weights=True, vp_stage=vp_stage)

def batch(step):
    drawn = torch.randint(0, 64, (8, 17), generator=torch.Generator().manual_seed(step))
    return {"tokens": drawn[:, :-1].contiguous(), "labels": drawn[:, 1:].contiguous()}

program = Megatron(
    config, model, batch, micro_batch_size=2, sequence_parallel=True,
    optimizer={"use_distributed_optimizer": SHARDED, "clip_grad": 1.0})
"""


def checked(folder, sizes, *, experts=None, sharded=False, program=PROGRAM):
    """Return the verdict on a layout of a GPT with tied embeddings."""
    path = folder / "gpt.py"
    path.write_text(program.replace("EXPERTS", str(experts)).replace("SHARDED", str(sharded)))
    checks, _ = prepared(RunOptions(str(path)), [Layout(sizes)], folder)
    return checks(0)


@pytest.mark.parametrize(
    ("sizes", "settings"),
    [
        ({"dp": 2, "tp": 2}, {"sharded": True}),
        ({"pp": 2, "tp": 2}, {}),
        ({"dp": 2, "ep": 2}, {"experts": 4}),
    ],
)
def test_a_layout_equals_the_single_model(sizes, settings, tmp_path):
    """Tensor and sequence parallelism, a pipeline, experts, the distributed optimizer."""
    verdict = checked(tmp_path, sizes, **settings)
    assert verdict.found is None
    assert verdict.tally.count > 500
    assert verdict.tally.worst < 0.5


def test_a_norm_whose_gradient_is_not_reduced_is_named(tmp_path):
    """Sequence parallelism, without the mark by which Megatron finds it."""
    broken = PROGRAM.replace("config.sequence_parallel\n", "False\n")
    found = checked(tmp_path, {"tp": 2}, program=broken).found
    assert (found.direction, found.axes) == ("gradients", ("tp",))
    assert "layernorm" in found.module
    assert "not reduced over tp (sum)" in found.cause


def test_rows_that_ranks_cannot_share_are_refused(tmp_path):
    """They would be dropped in silence."""
    found = checked(tmp_path, {"dp": 3}).found
    assert (found.direction, found.module) == ("run", "(all)")
    assert "a batch of 8 rows for 3 data-parallel ranks" in found.cause
