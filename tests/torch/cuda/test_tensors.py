"""Tensors on simulated devices behave as CUDA tensors do."""

from __future__ import annotations

import copy
import ctypes
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's custom.

from tests.torch.cuda.check import same

FACTORIES = {
    "empty": lambda d: torch.empty(2, 3, device=d),
    "zeros": lambda d: torch.zeros(3, device=d),
    "ones": lambda d: torch.ones(3, device=d),
    "full": lambda d: torch.full((3,), 2.0, device=d),
    "arange": lambda d: torch.arange(5, device=d),
    "tensor": lambda d: torch.tensor([1, 2], device=d),
    "randn": lambda d: torch.randn(3, device=d),
    "randint": lambda d: torch.randint(0, 5, (3,), device=d),
    "randperm": lambda d: torch.randperm(5, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 4, device=d),
    "eye": lambda d: torch.eye(3, device=d),
    "as_tensor": lambda d: torch.as_tensor([1.0, 2.0], device=d),
    "empty_strided": lambda d: torch.empty_strided((2, 2), (1, 2), device=d),
    "tril_indices": lambda d: torch.tril_indices(3, 3, device=d),
    "scalar_tensor": lambda d: torch.scalar_tensor(1.0, device=d),
    "asarray": lambda d: torch.asarray(np.ones(3), device=d),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories_take_every_form_of_device(cuda, name):
    """Strings, devices and integers mean the same."""
    for device, index in (
        ("cuda", 0),
        ("cuda:3", 3),
        (torch.device("cuda", 2), 2),
        (torch.device("cuda"), 0),
        (1, 1),
    ):
        assert FACTORIES[name](device).device == torch.device("cuda", index)


def test_factories_of_tensors_follow_them(cuda):
    """new_* and *_like stay on the device, or go where they are told."""
    x = torch.ones(2, device="cuda:2")
    for made in (x.new_zeros(3), torch.zeros_like(x), x.new_tensor([1.0]), x.new([1.0])):
        assert made.device.index == 2
    assert torch.empty_like(x, device="cpu").device.type == "cpu"


def test_identity(cuda):
    """Every way to ask says that it is a CUDA tensor, of the plain type."""
    x = torch.ones(3, device="cuda")
    assert x.is_cuda
    assert not x.is_cpu
    assert x.device == torch.device("cuda", 0)
    assert x.device != torch.device("cuda")
    assert (x.get_device(), torch.ones(2).get_device()) == (0, -1)
    assert x.type() == "torch.cuda.FloatTensor"
    assert "device='cuda:0'" in repr(x)
    assert type(x) is torch.Tensor
    assert hash(x.device) == hash(torch.device("cuda:0"))
    assert x[0].is_cuda
    assert x.expand(2, 3).T.is_cuda
    assert x.detach().is_cuda
    assert x.__dlpack_device__() == (2, 0)
    assert x.__cuda_array_interface__["data"][0] == x.data_ptr()


def test_movement(cuda):
    """To, from and between devices, by every name."""
    c = torch.arange(6.0).reshape(2, 3)
    x = c.cuda()
    assert x.cuda() is x
    assert x.to("cuda:0") is x
    same(x, c)
    y = x.to("cuda:1")
    assert y.device.index == 1
    same(y, c)
    assert c.to(x).device == x.device
    assert x.half().is_cuda
    d = torch.empty(2, 3)
    d.copy_(x)
    y.copy_(d * 2)
    same(y, 2 * c)
    y.copy_(x)
    x.cpu().add_(1)
    same(x, c)
    torch.cuda.set_device(2)
    assert (c.cuda().device.index, c.cuda(1).device.index) == (2, 1)


def test_modules_move_in_place(cuda):
    """Parameters stay the same objects; modules are made on devices, also from meta."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    before = list(model.parameters())
    model.cuda()
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    assert all(isinstance(p, nn.Parameter) and p.is_cuda for p in model.parameters())
    assert all(buffer.is_cuda for buffer in model.buffers())
    model.to("cuda:1")
    assert next(model.parameters()).device.index == 1
    model.cpu()
    assert not next(model.parameters()).is_cuda
    assert nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight.is_cuda


def test_cpu_and_cuda_tensors_do_not_mix(cuda):
    """The text is CUDA's, with the devices in the order of the arguments; scalars may mix."""
    x = torch.ones(3, device="cuda")
    text = "Expected all tensors to be on the same device, but found at least two devices, "
    with pytest.raises(RuntimeError, match=text + "cuda:0 and cpu!"):
        x + torch.ones(3)
    for call in (
        lambda: torch.ones(3) * x,
        lambda: torch.cat([x, torch.ones(3)]),
        lambda: x.add_(torch.ones(3)),
        lambda: torch.where(x > 0, x, torch.ones(3)),
        lambda: F.linear(torch.ones(2, 2), torch.ones(2, 2, device="cuda")),
        lambda: torch.ones(2, 2, device="cuda") @ torch.ones(2, 2),
        lambda: F.embedding(torch.tensor([1]), torch.ones(2, 2, device="cuda")),
    ):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            call()
    assert (x + torch.tensor(2.0)).is_cuda
    assert (torch.tensor(2.0) * x).is_cuda
    assert x[torch.tensor([1, 2])].is_cuda
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        torch.ones(4)[torch.tensor([1], device="cuda")]


def test_two_devices_do_not_mix(cuda):
    """The text is CUDA's."""
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cuda:1!"):
        torch.ones(3, device="cuda:0") + torch.ones(3, device="cuda:1")
    with pytest.raises(RuntimeError, match="in method wrapper_CUDA_mm"):
        torch.ones(2, 2, device="cuda:0") @ torch.ones(2, 2, device="cuda:1")


def test_numpy_is_refused_and_host_reads_work(cuda):
    """The TypeError is CUDA's."""
    x = torch.ones(3, device="cuda")
    text = "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu"
    with pytest.raises(TypeError, match=text):
        x.numpy()
    with pytest.raises(TypeError, match=text):
        np.asarray(x)
    assert x.tolist() == [1, 1, 1]
    assert x.sum().item() == 3
    assert bool(x[0])
    assert int(x[0]) == 1
    assert x.cpu().numpy().sum() == 3


def test_views_and_writes_in_place(cuda):
    """Views share memory, `out=` grows, indices write."""
    x = torch.zeros(4, 4, device="cuda")
    x[1:3, ::2].fill_(7)
    assert x.sum().item() == 28
    x.view(-1)[0] = 1
    assert x[0, 0].item() == 1
    assert x.T.data_ptr() == x.data_ptr()
    assert x._version > 0
    out = torch.empty(0, device="cuda")
    torch.add(x, 1, out=out)
    same(out, x.cpu() + 1)
    x.resize_(2, 2)
    assert x.shape == (2, 2)
    a, b = torch.arange(6.0, device="cuda").split(3)
    a += b
    same(a, torch.tensor([3.0, 5.0, 7.0]))
    x = torch.arange(10.0, device="cuda")
    x[x > 5] = 0
    x.index_put_((torch.tensor([0], device="cuda"),), torch.tensor(5.0, device="cuda"))
    x.scatter_(0, torch.tensor([1], device="cuda"), 9.0)
    assert x[:3].tolist() == [5, 9, 2]
    y = torch.empty(0, device="cuda").set_(x.untyped_storage(), 2, (3,), (1,))
    same(y, x.cpu()[2:5])
    y.resize_(1000)
    assert y.numel() == 1000


def test_save_and_load_with_map_location(cuda, tmp_path):
    """Locations are kept, or mapped by every form; shared storages stay shared."""
    model = nn.Linear(3, 3).cuda(1)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)

    def load(**options):
        file.seek(0)
        return torch.load(file, **options)["weight"]

    assert load().device == torch.device("cuda:1")
    same(load(), model.weight)
    assert load(map_location="cpu").device.type == "cpu"
    assert load(map_location="cuda:2").device.index == 2
    assert load(map_location={"cuda:1": "cuda:0"}).device.index == 0
    assert load(map_location=lambda storage, _: storage.cuda(3)).device.index == 3
    assert load(map_location=torch.device("cuda", 0)).is_cuda
    path = tmp_path / "both.pt"
    torch.save({"x": model.weight, "y": model.weight[0]}, path)
    both = torch.load(path)
    assert both["x"].untyped_storage().data_ptr() == both["y"].untyped_storage().data_ptr()
    torch.load(path, mmap=True, map_location="cpu")


def test_pickling_and_copies(cuda):
    """Tensors, modules and devices travel with their device."""
    x = torch.arange(4.0, device="cuda:2")
    y = pickle.loads(pickle.dumps(x))
    assert y.device == x.device
    same(x, y)
    z = copy.deepcopy(x)
    assert z.device == x.device
    assert z.data_ptr() != x.data_ptr()
    assert pickle.loads(pickle.dumps(nn.Linear(2, 2).cuda())).weight.is_cuda
    assert pickle.loads(pickle.dumps(x.device)) == x.device


def test_dlpack_and_plain_pointers(cuda):
    """Memory is shared through DLPack, and an address is the host's own."""
    x = torch.arange(4.0, device="cuda")
    y = torch.from_dlpack(x)
    assert y.device == x.device
    assert y.data_ptr() == x.data_ptr()
    array = (ctypes.c_float * 4).from_address(x.data_ptr())
    array[0] = 9
    assert list(array) == [9, 1, 2, 3]
    assert (y + 1).tolist() == [10, 2, 3, 4]


def test_pinned_memory(cuda):
    """Host tensors can be pinned, and copied without blocking."""
    x = torch.ones(4).pin_memory()
    assert x.is_pinned()
    assert x[1:].is_pinned()
    assert not torch.ones(4).is_pinned()
    y = x.to("cuda", non_blocking=True)
    assert not y.is_pinned()
    e = torch.empty(4, pin_memory=True)
    e.copy_(y, non_blocking=True)
    z = y.to("cpu", non_blocking=True)
    torch.cuda.synchronize()
    same(e, x)
    same(z, x)


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_sparse_tensors_in_coordinate_layout(cuda):
    """Made, moved, added, multiplied, and gradients of embeddings with their optimizer."""
    x = torch.eye(3, device="cuda:1") * 2
    s = x.to_sparse()
    assert s.device == torch.device("cuda:1")
    same(s.to_dense(), x)
    same((s + s).coalesce().values(), torch.full((3,), 4.0))
    same(s @ x, x.cpu() @ x.cpu())
    moved = torch.eye(3).to_sparse().cuda(2)
    assert moved.values().device.index == moved.device.index == 2
    same(moved.cpu().to_dense(), torch.eye(3))
    made = torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2), device="cuda")
    same(made.t().to_dense(), torch.tensor([[0.0, 2.0], [1.0, 0.0]]))
    table = nn.Embedding(10, 4, sparse=True).cuda()
    before = table.weight.detach().clone()
    optimizer = torch.optim.SparseAdam(list(table.parameters()))
    table(torch.tensor([1, 2, 2], device="cuda")).sum().backward()
    assert table.weight.grad.is_sparse
    same(table.weight.grad.coalesce().values(), torch.tensor([[1.0] * 4, [2.0] * 4]))
    optimizer.step()
    assert (table.weight != before).any(1).nonzero().flatten().tolist() == [1, 2]


def test_other_sparse_layouts_are_refused_by_name(cuda):
    """Compressed rows have no place on simulated devices, and the error says so."""
    with pytest.raises(NotImplementedError, match="SparseCsr"):
        torch.eye(3, device="cuda").to_sparse_csr()


def test_operators_of_many_kinds_equal_the_host(cuda):
    """Sorting, indexing, linear algebra, FFT, fp8, jagged tensors."""
    x = torch.randn(5, 7)
    functions = (
        lambda t: t.sort(-1).values,
        lambda t: t.topk(3).values,
        lambda t: t.nonzero().float(),
        lambda t: t.unique(),
        lambda t: t.cumsum(0),
        lambda t: torch.einsum("ij,kj->ik", t, t),
        lambda t: t.std(),
        lambda t: t.max(0).values,
        lambda t: torch.linalg.svd(t, full_matrices=False)[1],
        lambda t: t.gather(1, torch.zeros(5, 1, dtype=torch.int64, device=t.device)),
        lambda t: torch.stack([t, t]),
        lambda t: t.half() @ t.half().T,
        lambda t: torch.view_as_real(torch.fft.fft(t)),
        lambda t: t.to(torch.float8_e4m3fn).float(),
        lambda t: t.roll(1),
        lambda t: torch.bucketize(t, torch.arange(3.0, device=t.device)).float(),
        lambda t: t.masked_fill(t > 0, 1.0),
        lambda t: torch.histc(t, 4),
        lambda t: F.one_hot((t[0] > 0).long(), 2).float(),
        lambda t: torch.repeat_interleave(t, 2, 0),
        lambda t: torch.nested.nested_tensor([t, t[:2]], layout=torch.jagged).values(),
    )
    for function in functions:
        same(function(x.cuda()), function(x), 1e-2)


def test_foreach_across_devices_takes_the_slow_path(cuda):
    """Lists of tensors of several devices, and copies from the host, as CUDA does them."""
    tensors = [torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1"), torch.ones(2)]
    results = torch._foreach_add(tensors, 1)
    assert [result.device for result in results] == [tensor.device for tensor in tensors]
    assert all(result.tolist() == [2, 2] for result in results)
    torch._foreach_copy_(tensors[:2], [torch.zeros(2), torch.full((2,), 5.0)])
    assert [tensor.tolist() for tensor in tensors[:2]] == [[0, 0], [5, 5]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integers_are_counted_as_on_cuda(cuda, dtype):
    """CPU torch has histograms of floats only; bins end where CUDA's integers have them."""
    values = torch.tensor([0, 1, 1, 5, 7, 9, 49], dtype=dtype, device="cuda")
    counts = torch.histc(values, bins=49, min=0, max=49)
    assert counts.dtype == dtype
    assert counts.nonzero().flatten().tolist() == [0, 1, 5, 7, 9, 48]
    assert counts.sum().item() == 7
    assert torch.histc(values, bins=4, min=0, max=4, out=torch.empty_like(values)).tolist() == [
        1, 2, 0, 0
    ]  # fmt: skip


HALF_ALONE = {
    "avg_pool3d": lambda x: F.avg_pool3d(x, 2),
    "multi_margin_loss": lambda x: F.multi_margin_loss(
        x[0, 0, 0], torch.zeros_like(x[0, 0, 0, :, 0]).long()
    ),
    "multilabel": lambda x: F.multilabel_margin_loss(
        x[0, 0, 0], torch.zeros_like(x[0, 0, 0]).long()
    ),
    "bilinear": lambda x: F.interpolate(x[0], scale_factor=0.5, mode="bilinear", antialias=True),
    "bicubic": lambda x: F.interpolate(x[0], scale_factor=0.5, mode="bicubic", antialias=True),
}


@pytest.mark.parametrize("name", HALF_ALONE)
def test_halves_that_only_cuda_computes(cuda, name):
    """CPU torch has no kernel: they are computed in fp32, there and back, and rounded once."""
    wide = torch.randn(2, 3, 8, 8, 8, device="cuda").half().float().requires_grad_()
    half = wide.detach().half().requires_grad_()
    results = HALF_ALONE[name](half), HALF_ALONE[name](wide)
    assert results[0].dtype == torch.float16
    torch.testing.assert_close(results[0], results[1].half(), rtol=0, atol=0)
    for result in results:
        result.sum().backward()
    torch.testing.assert_close(half.grad, wide.grad.half(), rtol=2e-3, atol=1e-4)


def test_a_lazy_clone_is_a_clone(cuda):
    """It keeps the order in memory; what is written to one does not show in the other."""
    x = torch.ones(2, 3, device="cuda:1").t()
    y = x._lazy_clone()
    y.add_(1)
    x.mul_(5)
    assert (x.sum().item(), y.sum().item()) == (30.0, 12.0)
    assert (y.stride(), y.device) == (x.stride(), x.device)
