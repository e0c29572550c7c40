"""DTensor's searches for shardings, shared by ranks whose meshes are alike."""

from __future__ import annotations

import shutil

import pytest
import torch

if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import _sharding_prop as propagation
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from simrank.torch.rank_state import sharding


def _model():
    torch.manual_seed(0)
    return nn.ModuleDict(
        {"tokens": nn.Embedding(64, 16), "up": nn.Linear(16, 64), "down": nn.Linear(64, 16)}
    ).cuda()


def _train(rank, found):
    """Train a tensor-parallel model with an embedding in parts, in groups of two ranks."""
    torch.cuda.set_device(rank)
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("data", "model"))["model"]
    model = _model()
    plan = {
        "tokens": RowwiseParallel(input_layouts=Replicate()),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }
    parallelize_module(model, mesh, plan)
    tokens = torch.arange(8, device="cuda") * (rank // 2 + 1)
    losses = []
    for _ in range(2):
        loss = model["down"](model["up"](model["tokens"](tokens)).relu()).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        losses.append(loss.item())
    uneven = distribute_tensor(torch.arange(5, device="cuda"), mesh, [Shard(0)])
    shapes = [tuple(each.to_local().shape) for each in (uneven, uneven.new_ones(5))]
    found[rank] = (losses, shapes, uneven.full_tensor().tolist())


def test_results_are_those_of_separate_searches(spawn, monkeypatch):
    """Values of an embedding in parts, which has a mask of its rank, and uneven shards."""
    shared, separate = {}, {}
    spawn(_train, 4, shared)
    monkeypatch.setattr(sharding, "_is_of_rank", lambda *_: True)
    spawn(_train, 4, separate)
    assert shared == separate
    assert shared[0][0] != shared[2][0]
    assert shared[0][1] == [(3,), (3,)]
    assert shared[1][1] == [(2,), (2,)]


def test_one_rank_searches_for_all(spawn, monkeypatch):
    """A foreach operation of many parameters is looked at once, and not by every rank."""
    searched = []
    kind = propagation.ShardingPropagator
    original = kind._propagate_tensor_meta_non_cached

    def counted(self, schema):
        searched.append(str(schema.op))
        return original(self, schema)

    monkeypatch.setattr(kind, "_propagate_tensor_meta_non_cached", counted)

    def program(rank):
        torch.cuda.set_device(rank)
        mesh = init_device_mesh("cuda", (4,))
        x = DTensor.from_local(torch.ones(4, 4, device="cuda"), mesh, [Shard(0)])
        assert (x * 2).to_local().sum().item() == 32
        torch._foreach_mul_([x] * 3, 2.0)

    spawn(program, 4)
    assert searched.count("aten.mul.Tensor") == 1
    assert searched.count("aten._foreach_mul_.Scalar") == 1
