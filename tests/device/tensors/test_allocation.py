"""New tensors: memory of their own, seen whole."""

import numpy as np

import simrank
from simrank.device import Tensor, as_dtype
from simrank.device.tensors.allocation import allocate, allocate_beside


def test_a_new_tensor_is_all_of_its_memory(ctx):
    """On a device it counts there; a fresh one shows garbage, NaN in floating types."""
    device = ctx.devices[0]
    tensor = allocate(Tensor, (3, 5), as_dtype("float32"), device)
    assert tensor.shape == (3, 5)
    assert tensor.storage.size_bytes == 60
    assert device.memory.space.find(tensor.storage.address) is tensor.storage
    assert np.isnan(tensor.numpy()).all()


def test_a_tensor_beside_another_is_of_its_class_and_device(ctx):
    """Also on the host."""

    class Own(Tensor):
        pass

    there = allocate(Own, (2,), as_dtype("int32"), ctx.devices[1])
    beside = allocate_beside(there, (4,), as_dtype("bool"))
    assert type(beside) is Own
    assert beside.device is ctx.devices[1]
    assert allocate_beside(simrank.ones(2, device="cpu"), (1,), there.dtype).device == "cpu"


def test_no_elements_are_an_allocation_too(ctx):
    """A dim of size 0 has an address, as in torch."""
    empty = allocate(Tensor, (0, 4), as_dtype("float32"), ctx.devices[0])
    assert empty.numel() == 0
    assert empty.storage.address
