"""Legacy tensor types of CUDA."""

from __future__ import annotations

import torch


def test_legacy_types(cuda):
    """They make tensors, name types, and are asked by isinstance."""
    x = torch.cuda.FloatTensor([1, 2])
    assert x.is_cuda
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x.cpu(), torch.cuda.FloatTensor)
    assert not isinstance(x.half(), torch.cuda.FloatTensor)
    y = torch.cuda.LongTensor(3)
    assert (y.shape, y.dtype) == ((3,), torch.int64)
    assert torch.ones(2).type("torch.cuda.HalfTensor").dtype == torch.float16
    assert x.type("torch.FloatTensor").device.type == "cpu"
    assert x.type_as(torch.ones(1)).device.type == "cpu"


def test_untyped_storages(cuda):
    """Made from sizes and from bytes; those of the host are made as ever."""
    assert torch.UntypedStorage([1, 2, 3], device="cuda").cpu().tolist() == [1, 2, 3]
    assert torch.UntypedStorage(4, device="cpu").device.type == "cpu"
    host = torch.UntypedStorage(4)
    assert host.resize_(8).nbytes() == 8
