"""Transformers' Trainer and `generate`, as installed: layouts equal one device."""

import importlib.util

import pytest

pytest.importorskip("torch", reason="torch is not installed")
if not all(map(importlib.util.find_spec, ("transformers", "accelerate"))):
    pytest.skip("transformers or accelerate is not installed", allow_module_level=True)

from simrank.equality.judge import prepared
from simrank.equality.layout import Layout
from simrank.equality.runs import RunOptions

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]
PROGRAM = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from simrank.equality.adapters import HuggingFace

def model(sizes):
    widths = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 64}
    return LlamaForCausalLM(LlamaConfig(**widths, num_hidden_layers=2, num_attention_heads=4))

def batch(step):
    tokens = torch.randint(0, 64, (8, 12), generator=torch.Generator().manual_seed(step))
    labels = tokens.clone()
    labels[torch.arange(8)[:, None] + 2 > torch.arange(12)] = -100
    return {"input_ids": tokens, "labels": labels}

def arguments(sizes):
    keys = {"learning_rate": 0.01, "max_grad_norm": 0.5, **MORE}
    wrapped = {"fsdp_version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
    return keys | ({"fsdp": "full_shard", "fsdp_config": wrapped} if sizes.get("fsdp") else {})

program = HuggingFace(model, batch, arguments, micro_batches=2, data_axes=("dp", "fsdp"))
"""


def judged(folder, layout, more="{}"):
    """Return the verdict on a layout."""
    path = folder / "trained.py"
    path.write_text(PROGRAM.replace("MORE", more))
    checks, _ = prepared(RunOptions(str(path)), [Layout(layout)], folder)
    return checks(0)


@pytest.mark.parametrize("axis", ["dp", "fsdp"])
def test_a_layout_equals_one_device(axis, tmp_path):
    """Rows have labels of different numbers; gradients are accumulated, and clipped."""
    verdict = judged(tmp_path, {axis: 2})
    assert verdict.found is None
    assert verdict.tally.count > 200


def test_a_mean_of_each_ranks_own_tokens_is_found(tmp_path):
    """The Trainer does that without `average_tokens_across_devices`."""
    found = judged(tmp_path, {"dp": 2}, "{'average_tokens_across_devices': False}").found
    assert (found.direction, found.axes) == ("forward", ("dp",))
    assert found.cause == "num_items_in_batch of model: not reduced over dp (sum)"


GENERATES = """
import torch
import torch.distributed as dist
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.distributed import DistributedConfig

def build():
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 64, "head_dim": 8}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4}
    return Qwen3ForCausalLM(Qwen3Config(**sizes, **heads))

def batch(step):
    tokens = torch.randint(1, 64, (2, 5), generator=torch.Generator().manual_seed(step))
    mask = torch.arange(5) >= torch.tensor([[0], [2]])
    return {"input_ids": tokens * mask, "attention_mask": mask.long()}

def generate(model, batch):
    out = model.generate(**batch, max_new_tokens=4, do_sample=False, output_logits=True,
                         return_dict_in_generate=True, pad_token_id=0)
    return {"tokens": out.sequences, "logits": torch.stack(out.logits)}

def parallelize(model, mesh):
    model.save_pretrained("tiny")
    dist.barrier()
    split = DistributedConfig(tp_size=mesh.size(), tp_plan="auto")
    model = Qwen3ForCausalLM.from_pretrained("tiny", dtype=model.dtype, distributed_config=split)
    FAULT
    return model
"""


@pytest.mark.parametrize(
    ("fault", "module"),
    [
        ("pass", None),
        ("model.model.rotary_emb.inv_freq.mul_(0.5)", "model.rotary_emb"),
        ("model.model.layers[1].self_attn.scaling *= 1.5", "model.layers.1.self_attn"),
    ],
)
def test_generation_under_a_plan_equals_one_device(fault, module, tmp_path, monkeypatch):
    """Prompts of unequal lengths; a fault is found in the prefill."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "served.py"
    path.write_text(GENERATES.replace("FAULT", fault))
    checks, _ = prepared(RunOptions(str(path), num_steps=1), [Layout({"tp": 2})], tmp_path)
    verdict = checks(0)
    found = verdict.found
    assert (None if found is None else found.module) == module
    assert verdict.tally.count > 20
