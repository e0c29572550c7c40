"""torch.distributed's C++ and its wrappers take the devices for real; groups are of one rank."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from simrank.torch import cuda as simulated
from tests.torch.cuda.check import same

pytestmark = [
    pytest.mark.slow,  # torch.distributed's Python takes seconds to import.
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def _two_layers():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).cuda()


def test_ddp(group):
    """device_ids, the reducer's timer, gradients; modules of the host are refused."""
    torch.cuda.set_device(1)
    model = nn.Linear(4, 4).cuda()
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=[1])
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        wrapped(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert model.weight.grad.device.index == 1
    same(model.weight.grad, torch.full((4, 4), 2.0))
    with pytest.raises(ValueError, match="device_ids"):
        nn.parallel.DistributedDataParallel(nn.Linear(2, 2), device_ids=[1])


def test_fully_shard(group):
    """FSDP2 with a fused optimizer equals the model without it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = _two_layers()
    reference = copy.deepcopy(model)
    mesh = init_device_mesh("cuda", (1,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    pairs = (
        (model, torch.optim.Adam(model.parameters(), fused=True)),
        (reference, torch.optim.Adam(reference.parameters())),
    )
    for _ in range(2):
        x = torch.randn(3, 4, device="cuda")
        for each, optimizer in pairs:
            each(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    same(model[0].weight.full_tensor(), reference[0].weight, 1e-4)


def test_fsdp1(group):
    """The older FSDP shards, computes and steps."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(nn.Linear(4, 4).cuda(), device_id=0)
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()


def test_tensor_parallel_layers(group):
    """parallelize_module equals the plain model."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)).cuda()
    reference = copy.deepcopy(model)
    mesh = init_device_mesh("cuda", (1,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    x = torch.randn(2, 4, device="cuda")
    same(model(x), reference(x))
    model(x).sum().backward()


def test_dtensor(cuda):
    """Distributed tensors on a fake group of four, random ones included."""
    from torch.distributed.tensor import (
        DTensor,
        Replicate,
        Shard,
        distribute_tensor,
        init_device_mesh,
        randn,
    )
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
        a = distribute_tensor(torch.ones(8, 8, device="cuda"), mesh, [Shard(0)])
        w = torch.ones(8, 8, device="cuda", requires_grad=True)
        w = distribute_tensor(w, mesh, [Shard(1)])
        assert a.to_local().shape == (4, 8)
        assert a.device == torch.device("cuda:0")
        y = a.redistribute(mesh, [Replicate()]) @ w
        y.sum().backward()
        assert isinstance(y, DTensor)
        assert randn(8, 8, device_mesh=mesh, placements=[Shard(0)]).to_local().shape == (4, 8)
    finally:
        dist.destroy_process_group()


def test_distributed_checkpoint(group, tmp_path):
    """Saved and loaded in place."""
    import torch.distributed.checkpoint as dcp

    model = nn.Linear(3, 3).cuda()
    dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path)
    before = model.weight.detach().clone()
    model.weight.data.zero_()
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=tmp_path)
    same(state["model"]["weight"], before)
    assert state["model"]["weight"].is_cuda


def test_symmetric_memory(group):
    """Allocated, met and read; signals without a simulator pass."""
    import torch.distributed._symmetric_memory as symmetric

    tensor = symmetric.empty(8, device="cuda")
    handle = symmetric.rendezvous(tensor, dist.group.WORLD.group_name)
    assert (handle.world_size, handle.rank) == (1, 0)
    handle.get_buffer(0, (8,), torch.float32).fill_(3)
    assert tensor.sum().item() == 24
    handle.barrier()


def test_the_simulator_arranges_symmetric_memory():
    """It says who has which buffer, and hears the signals."""
    from torch._C._distributed_c10d import _SymmetricMemory

    heard, allocations = [], []

    def on_rendezvous(address, name):
        pads = [simulated.signal_pad(each) for each in allocations]
        assert name == "tp"
        return simulated.Rendezvous(allocations.index(address), allocations, pads, [4, 5])

    callbacks = simulated.Callbacks(
        on_rendezvous=on_rendezvous, on_signal=lambda *signal: heard.append(signal)
    )
    with simulated.standalone(2, callbacks=callbacks):
        tensors = [
            _SymmetricMemory.empty_strided_p2p((4,), (1,), torch.float32, torch.device("cuda", i))
            for i in range(2)
        ]
        allocations += [tensor.data_ptr() for tensor in tensors]
        handle = _SymmetricMemory.rendezvous(tensors[1], "tp")
        assert (handle.rank, handle.world_size) == (1, 2)
        assert list(handle.buffer_ptrs) == allocations
        handle.get_buffer(0, (4,), torch.float32).fill_(2)
        assert tensors[0].tolist() == [2, 2, 2, 2]
        handle.put_signal(0, channel=3)
        handle.barrier(channel=1)
        assert heard == [(allocations[1], "tp", 1, 0, 3, 0), (allocations[1], "tp", 0, -1, 1, 0)]


def test_synchronized_batch_norm_equals_the_plain_one(group):
    """Its kernels, which CPU torch lacks: one rank's statistics are everybody's."""
    plain = nn.BatchNorm2d(3).cuda()
    model = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
    x = torch.randn(4, 3, 5, 5, device="cuda")
    results = []
    for each in (plain, model):
        given = x.clone().requires_grad_()
        y = each(given) if each is plain else _as_two_ranks(each, given)
        y.square().sum().backward()
        results.append((y, given.grad, each.weight.grad, each.running_var))
    for a, b in zip(*results, strict=True):
        same(a, b, 1e-4)


def _as_two_ranks(model, x):
    """Call the function that SyncBatchNorm uses when a group has several ranks."""
    from torch.nn.modules._functions import SyncBatchNorm

    return SyncBatchNorm.apply(
        x, model.weight, model.bias, model.running_mean, model.running_var,
        model.eps, 0.1, dist.group.WORLD, 1,
    )  # fmt: skip
