"""The record of operations has what a roofline needs."""

from __future__ import annotations

import torch

from simrank.torch.cuda.operations import OperationFlag


def test_shapes_dtypes_addresses_and_streams(recorded):
    """Inputs with strides, outputs with addresses, the flag of what is written."""
    a = torch.empty(2, 3, device="cuda:1", dtype=torch.bfloat16)
    b = torch.empty(4, 3, device="cuda:1", dtype=torch.bfloat16)
    recorded()
    c = a @ b.t()
    c.add_(1)
    mm, add = recorded()
    assert (mm.name, mm.rank, mm.device, mm.stream) == ("mm", 0, 1, 0)
    assert [operand.sizes for operand in mm.inputs] == [(2, 3), (3, 4)]
    assert mm.inputs[1].strides == (1, 3)
    assert mm.outputs[0].address == c.data_ptr()
    assert mm.outputs[0].sizes == (2, 4)
    assert add.inputs[0].is_written
    assert add.outputs == ()


def test_copies_say_where_they_go(recorded):
    """Across the bus, and whether the host waits."""
    x = torch.ones(4).cuda()
    x.cpu()
    x.to("cpu", non_blocking=True)
    x.to("cuda:1")
    flags = OperationFlag
    assert [op.flags for op in recorded()] == [
        flags.HOST_TO_DEVICE | flags.BLOCKING,
        flags.DEVICE_TO_HOST | flags.BLOCKING,
        flags.DEVICE_TO_HOST,
        flags(0),
    ]


def test_views_are_no_operations(recorded):
    """What launches nothing is not recorded."""
    x = torch.ones(4, 4, device="cuda")
    recorded()
    x.t().view(4, 4)[1:].unfold(0, 2, 1).unsqueeze(0).view(torch.int32)
    assert recorded() == []
