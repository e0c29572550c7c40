"""Views: the same bytes under another shape or type."""

import copy

import pytest


def test_views_share_storage(ctx):
    """Slices, views, transposes, chunks and narrow see writes through one another."""
    x = ctx.arange(12).view(3, 4)
    assert x.transpose(0, 1)[1].tolist() == [1, 5, 9]
    x[1].fill_(0)
    assert x.view(-1).tolist() == [0, 1, 2, 3, 0, 0, 0, 0, 8, 9, 10, 11]
    assert [part.tolist() for part in x.chunk(2)] == [
        [[0, 1, 2, 3], [0, 0, 0, 0]],
        [[8, 9, 10, 11]],
    ]
    assert x.narrow(1, 1, 2)[0].tolist() == [1, 2]
    assert [part.shape for part in x.split([1, 2])] == [(1, 4), (2, 4)]
    assert x[2, 3].item() == 11


def test_view_of_a_transposed_tensor_is_torchs_error_and_reshape_copies(ctx):
    """View never copies, reshape may."""
    x = ctx.arange(6).view(2, 3).t()
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.view(6)
    assert x.reshape(6).tolist() == [0, 3, 1, 4, 2, 5]
    with pytest.raises(RuntimeError, match="invalid for input of size 6"):
        x.reshape(4)


def test_bytes_are_viewed_as_elements_of_another_type(ctx):
    """As heaps of bytes are, that hold tensors: storage and offsets stay, the last dim changes."""
    heap = ctx.zeros(24, dtype=ctx.uint8).cuda()
    floats = heap[8:].view(ctx.float32)
    floats.copy_(ctx.tensor([1.0, 2.0, -2.0, 0.5]).cuda())
    assert floats.view(2, 2)[1].tolist() == [-2.0, 0.5]
    assert floats.view(ctx.int32)[0].item() == 0x3F800000
    assert floats.view(2, 2).view(ctx.bfloat16).shape == (2, 4)
    assert floats.data_ptr() == heap.data_ptr() + 8
    assert heap.tolist()[8:12] == [0, 0, 0x80, 0x3F]
    with pytest.raises(RuntimeError, match="cannot be viewed as float32 without a copy"):
        heap[:6].view(ctx.float32)
    with pytest.raises(RuntimeError, match="cannot be viewed as float32 without a copy"):
        heap[::2].view(ctx.float32)


def test_views_of_one_storage_stay_together_in_a_deep_copy(ctx):
    """As in torch: tied weights, parts of a flat buffer; the copy is apart from the original."""
    x = ctx.arange(12, dtype="float32").view(3, 4)
    held = {"x": x, "column": x[:, 1], "again": x, "other": ctx.ones(2)}
    copied = copy.deepcopy(held)
    assert copied["x"] is copied["again"]
    copied["x"].zero_()
    assert copied["column"].tolist() == [0.0, 0.0, 0.0]
    assert x[:, 1].tolist() == [1.0, 5.0, 9.0]
    assert copied["other"].tolist() == [1.0, 1.0]
    assert copy.deepcopy(x[1:, ::2]).tolist() == [[4.0, 6.0], [8.0, 10.0]]
    assert copy.deepcopy(ctx.ones(2, 0)).shape == (2, 0)
