"""torch.cuda.comm and DataParallel, over the devices of one rank."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.cuda import comm

from tests.torch.cuda.check import same


def test_broadcasts(cuda):
    """To every device, into tensors, and many at once."""
    x = torch.arange(4.0, device="cuda")
    copies = comm.broadcast(x, [0, 1])
    assert [each.device.index for each in copies] == [0, 1]
    assert copies[0] is x
    same(copies[1], x)
    out = [torch.empty(4, device=f"cuda:{index}") for index in range(2)]
    comm.broadcast(x, out=out)
    same(out[1], x)
    both = comm.broadcast_coalesced([x, x * 2], [0, 2])
    assert both[1][1].device.index == 2
    same(both[1][1], x * 2)


def test_scatter_and_gather(cuda):
    """Chunks of equal or given sizes, on streams of their own, and back."""
    x = torch.arange(8.0)
    chunks = comm.scatter(x, [0, 1], streams=[torch.cuda.Stream(0), torch.cuda.Stream(1)])
    assert [chunk.tolist() for chunk in chunks] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    uneven = comm.scatter(x, [0, 1], chunk_sizes=[1, 7])
    assert [len(chunk) for chunk in uneven] == [1, 7]
    same(comm.gather(uneven, destination=3), x)
    assert comm.gather(uneven, destination="cpu").device.type == "cpu"
    out = [torch.empty(size, device=f"cuda:{index}") for index, size in enumerate((3, 5))]
    comm.scatter(x, out=out)
    whole = torch.empty(8, device="cuda")
    same(comm.gather(out, out=whole), x)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_data_parallel_equals_the_plain_module(cuda):
    """Replicas on two devices, in threads of Python's, and gradients added."""
    plain = nn.Linear(4, 4).cuda()
    wrapped = nn.DataParallel(copy.deepcopy(plain), device_ids=[0, 1])
    x = torch.randn(6, 4, device="cuda")
    for model in (plain, wrapped):
        model(x).square().sum().backward()
    same(wrapped(x), plain(x))
    same(wrapped.module.weight.grad, plain.weight.grad, 1e-4)
