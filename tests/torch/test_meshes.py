"""Meshes choose devices as in processes of their own: by LOCAL_RANK, until CUDA is initialised."""

import os
import shutil

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from simrank.torch.devices.costs import changes_in_place, computes_offsets, is_reduction
from tests.torch.devices.test_costs import BFLOAT16, operation, tensor

if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)


class Feedforward(nn.Module):
    """Two products, as of a transformer's layer."""

    def __init__(self, width=8):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """An embedding, layers and a head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(Feedforward() for _ in range(2))
        self.head = nn.Linear(8, 16)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def reference():
    """Return the losses of one process that has all tokens and all weights."""
    torch.manual_seed(0)
    return trained(Model(), all_tokens)


def all_tokens(step):
    return torch.cat([tokens_of(step, 0), tokens_of(step, 1)])


def tokens_of(step, rank):
    return (torch.arange(12).view(2, 6) * (3 + step) + 5 * rank) % 16


def trained(model, tokens_at):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for step in range(2):
        tokens = tokens_at(step)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().cpu())
    return losses


def kind_of_device():
    return torch.accelerator.current_accelerator().type


def devices_of_mesh(rank, found):
    kind = kind_of_device()
    mesh = init_device_mesh(kind, (2,))
    found[rank] = mesh.get_rank(), torch.cuda.current_device(), torch.ones(1, device=kind).device


@pytest.mark.slow
def test_a_mesh_takes_the_device_of_each_local_rank(spawn):
    """A rank has not initialised CUDA because another one has."""
    found = {}
    spawn(devices_of_mesh, 2, found)
    assert found == {r: (r, r, torch.device("cuda", r)) for r in range(2)}


def first_use(rank, found):
    torch.manual_seed(3)
    before = torch.cuda.is_available(), torch.cuda.is_initialized(), bool(torch.cuda._initialized)
    dist.init_process_group("nccl")
    if rank == 0:
        torch.ones(1, device="cuda")
    dist.barrier(device_ids=[rank])
    torch.manual_seed(4)
    found[rank] = before, torch.cuda.is_initialized(), torch.accelerator.memory_allocated()
    torch.accelerator.set_device_index(rank)
    found[rank, "drawn"] = torch.randn(2, device="cuda").tolist()
    assert torch.cuda.is_initialized()


@pytest.mark.slow
def test_cuda_is_initialised_by_each_rank_for_itself(spawn):
    """Seeds of a rank that has used no device wait for its first use, and count."""
    found = {}
    spawn(first_use, 2, found)
    assert found[1] == ((True, False, False), False, 0)
    assert found[0][:2] == ((True, False, False), True)
    assert found[0, "drawn"] == found[1, "drawn"]


def sharded(rank, found):
    kind = kind_of_device()
    device = torch.device(f"{kind}:{os.environ['LOCAL_RANK']}")
    torch.accelerator.set_device_index(device.index)
    dist.init_process_group(dist.get_default_backend_for_device(device), device_id=device)
    with torch.device("meta"):
        model = Model()
    torch.manual_seed(0)
    state = Model().state_dict()
    for layer in model.layers:
        fully_shard(layer, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
    fully_shard(model)
    model.layers[0].set_modules_to_forward_prefetch([model.layers[1]])
    model.to_empty(device=kind)
    for name, parameter in model.named_parameters():
        whole = state[name].to(kind)
        parameter.data.copy_(distribute_tensor(whole, parameter.device_mesh, [Shard(0)]))
    found[rank] = trained(model, lambda step: tokens_of(step, rank).to(kind))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_sharded_models_train_as_whole_ones_do(spawn):
    """FSDP2 with meta devices and prefetch: the mean of the ranks' losses is that of all tokens."""
    found = {}
    spawn(sharded, 2, found)
    for one, other, whole in zip(found[0], found[1], reference(), strict=True):
        torch.testing.assert_close((one + other) / 2, whole)


PLAN = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "head": ColwiseParallel(
        input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
    ),
}
PLAN_OF_LAYER = {
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
}


def parallel(rank, found, num_replicas):
    kind = kind_of_device()
    mesh = init_device_mesh(kind, (num_replicas, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = parallelize_module(Model().to(kind), mesh["tp"], PLAN)
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], PLAN_OF_LAYER)
        if num_replicas > 1:
            fully_shard(layer, mesh=mesh["dp"])
    if num_replicas > 1:
        fully_shard(model, mesh=mesh["dp"])
    replica = mesh["dp"].get_local_rank()

    def tokens_at(step):
        if num_replicas > 1:
            return tokens_of(step, replica).to(kind)
        return all_tokens(step).to(kind)

    with loss_parallel():
        losses = trained(model, tokens_at)
    found[rank] = [loss.full_tensor() for loss in losses]


@pytest.mark.slow
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_tensor_parallel_models_train_as_whole_ones_do(spawn, num_replicas):
    """Sequence parallelism and a parallel loss, with and without FSDP2 on the other dimension."""
    found = {}
    spawn(parallel, 2 * num_replicas, found, num_replicas)
    for step, whole in enumerate(reference()):
        losses = torch.stack([found[rank][step] for rank in range(0, 2 * num_replicas, 2)])
        torch.testing.assert_close(losses.mean(), whole)


# ---- which kernel torch launches for operands as they lie ----

BOOL = 11


def out(*sizes, **options):
    """Return a result."""
    return tensor(*sizes, is_written=True, **options)


@pytest.mark.parametrize(
    ("name", "inputs", "output"),
    [
        ("add.Tensor", [tensor(64, 32), tensor(64, 32)], out(64, 32)),
        ("neg", [tensor(64, 32, strides=(1, 64))], out(64, 32, strides=(1, 64))),
        ("mul.Tensor", [tensor(1, 64, strides=(7, 1)), tensor(1, 64)], out(1, 64)),
        ("gt.Scalar", [tensor(64)], out(64, dtype=BOOL)),
        ("where.self", [tensor(64, dtype=BOOL), tensor(64), tensor(64)], out(64)),
        ("cat", [tensor(64, 8), tensor(64, 8)], out(64, 16)),
        ("copy_", [out(64, dtype=BFLOAT16), tensor(64)], None),
    ],
)
def test_operands_that_lie_alike_are_read_as_vectors(name, inputs, output):
    """Whatever the order of their dimensions; masks are of no other type."""
    assert not computes_offsets(operation(name, inputs, [output] if output else []))


@pytest.mark.parametrize(
    ("name", "inputs", "output"),
    [
        ("mul.Tensor", [tensor(64, 32), tensor(64, 1)], out(64, 32)),
        ("mul.Tensor", [tensor(64, 32), tensor(32)], out(64, 32)),
        ("add.Tensor", [tensor(64, 32), tensor(64, 32, strides=(1, 64))], out(64, 32)),
        ("neg", [tensor(64, 16, strides=(32, 1))], out(64, 16)),
        ("_to_copy", [tensor(64, dtype=BFLOAT16)], out(64)),
        ("copy_", [out(64), tensor(64, dtype=BFLOAT16)], out(64)),
        ("add.Tensor", [tensor(64), tensor(64, dtype=BFLOAT16)], out(64)),
        ("cat", [tensor(64, 8, strides=(16, 1)), tensor(64, 8)], out(64, 16)),
    ],
)
def test_broadcast_strided_and_converted_operands_have_offsets_computed(name, inputs, output):
    """Each element's."""
    assert computes_offsets(operation(name, inputs, [output]))


def test_what_is_not_pointwise_computes_no_such_offsets():
    """Norms, products and operators that torch does not know."""
    for name in ("native_layer_norm", "mm", "mine.overload", "no_such_operator"):
        assert not computes_offsets(operation(name, [tensor(64, 32), tensor(32)], [out(64, 32)]))


def test_reductions_are_those_that_torch_says_are():
    """By its tags."""
    assert all(is_reduction(operation(n, [tensor(8)], [])) for n in ("sum", "mean.dim", "argmax"))
    assert not any(is_reduction(operation(n, [tensor(8)], [])) for n in ("add.Tensor", "cumsum"))


def test_what_is_changed_in_place_is_read_too():
    """A copy, or random numbers, only write."""
    assert changes_in_place("add_.Tensor")
    assert changes_in_place("_foreach_mul_.Scalar")
    assert not any(map(changes_in_place, ("add.Tensor", "copy_", "normal_", "zero_", "relu")))
