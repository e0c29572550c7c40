"""torch tensors as buffers: the same bytes, whatever mode the rank is in."""

import gc

import numpy as np
import pytest
import torch

from simrank.torch.devices.buffers import _known, buffer_of

DTYPES = ("float64", "float32", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8",
          "bool", "float8_e4m3fn", "float8_e5m2")  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_a_buffer_is_the_tensors_own_memory(name):
    """Written on one side, seen on the other; dtype and shape agree."""
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    buffer = buffer_of(tensor)
    assert (buffer.dtype.name, buffer.shape) == (name, (2, 3))
    assert buffer.array.astype(np.float64).tolist() == tensor.double().tolist()
    buffer.array[1, 2] = 0
    assert tensor[1, 2].item() == 0


def test_a_view_has_the_tensors_strides_and_offset():
    """A transposed slice, an expanded row, one element and none."""
    base = torch.arange(24.0).reshape(4, 6)
    for view in (base[1:3, 2:].T, base[2].expand(3, 6), base[3, 4], base[:0], torch.empty(0, 3)):
        buffer = buffer_of(view)
        assert buffer.array.tolist() == view.tolist()
        if view.numel() > 1:
            assert tuple(buffer.stride()) == view.stride()


def test_complex_numbers_are_pairs():
    """As collectives carry them."""
    buffer = buffer_of(torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64))
    assert buffer.array.tolist() == [[1, 2], [3, -4]]


def test_what_no_collective_carries_is_refused_in_torchs_words():
    """By its name."""
    with pytest.raises(RuntimeError, match="Invalid scalar type: UInt16"):
        buffer_of(torch.zeros(2, dtype=torch.uint16))


def test_views_of_one_storage_share_what_is_in_flight_and_leave_nothing_behind():
    """The storage is known as long as somebody uses it, and known anew when it was resized."""
    tensor = torch.zeros(4)
    first, second = buffer_of(tensor), buffer_of(tensor[2:])
    assert first.storage is second.storage
    tensor.resize_(1 << 20)
    assert buffer_of(tensor).storage is not first.storage
    del first, second
    gc.collect()
    assert tensor.untyped_storage()._cdata not in _known


def test_a_tensor_has_one_buffer_while_the_buffer_is_in_use():
    """Another one where its address, shape, strides or type differ, or its storage was resized."""
    tensor = torch.arange(24.0)
    first = buffer_of(tensor)
    others = [tensor[1:], tensor.view(4, 6), tensor.view(6, 4).T, tensor.view(torch.int32)]
    assert buffer_of(tensor) is buffer_of(tensor.view(24)) is first
    found = [buffer_of(other) for other in others]
    assert len({id(first), *map(id, found)}) == 5
    assert [buffer.array.tolist() for buffer in found] == [other.tolist() for other in others]
    tensor.data = torch.zeros(24)
    assert buffer_of(tensor) is not first
    assert buffer_of(tensor).array.tolist() == [0] * 24


def test_modes_of_the_rank_do_not_matter():
    """Nor does a default device."""
    tensor = torch.ones(3)
    with torch.inference_mode(), torch.device("meta"):
        assert buffer_of(tensor).array.tolist() == [1, 1, 1]
