"""From addresses to storages."""

import traceback

import numpy as np
import pytest
import triton
import triton.language as tl

from simrank.device.memory import Storage
from simrank.kernels import machine
from simrank.kernels.memory import addresses
from simrank.kernels.memory.addresses import IllegalAccessError, VoidView
from simrank.kernels.values import types

from ..assembly import launch


@pytest.fixture
def programs(ctx):
    """One program on the first device."""
    setting = machine.RunningLaunch("kernel", (1, 1, 1), ctx.devices[0], machine.Statistics())
    return machine.Programs(setting, np.array([0]))


def test_addresses_of_several_storages_are_told_apart(programs):
    """Each storage gets the elements that are its own, in the order of the lanes."""
    one, other = (Storage(programs.device, 64) for _ in range(2))
    lanes = np.array([one.address + 4, other.address, one.address + 8])
    segments = list(addresses.segments_of(programs, lanes, types.int32))
    by_storage = {s.storage: (np.flatnonzero(s.chosen), s.offsets) for s in segments}
    assert by_storage[one][0].tolist() == [0, 2]
    assert by_storage[one][1].tolist() == [1, 2]
    assert by_storage[other][1].tolist() == [0]


def test_addresses_of_one_storage_are_one_segment(programs):
    """Of which none need be chosen."""
    own = Storage(programs.device, 64)
    lanes = own.address + np.array([[0, 8], [16, 24]])
    (segment,) = addresses.segments_of(programs, lanes, types.int64)
    assert segment.chosen is None
    assert segment.offsets.tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(("offset", "words"), [(2, "misaligned"), (1 << 40, "of no allocation")])
def test_a_wrong_address_is_said(programs, offset, words):
    """Between elements, or nobody's."""
    own = Storage(programs.device, 64)
    with pytest.raises(IllegalAccessError, match=words):
        addresses.element_at(programs, own.address + offset, types.int32)


def test_what_is_no_pointer_is_refused():
    """In Triton's words."""
    with pytest.raises(ValueError, match="Unsupported ptr type"):
        addresses.pointee(3)


# ---- a wrong access says line, tensor, bounds and programs ----

N = 256


@triton.jit
def out_of_bounds(x_ptr, out, N: tl.constexpr):
    lanes = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + lanes)
    tl.store(out + lanes, x)


def test_out_of_bounds_names_line_tensor_bounds_and_program(on_rank):
    """And the traceback ends in the kernel's own source."""

    def body(ctx):
        launch(ctx, out_of_bounds, [np.zeros((2, N), "f4")], np.zeros(4 * N, "f4"), grid=(4,), N=N)

    with pytest.raises(IllegalAccessError) as caught:
        on_rank(body)
    line = out_of_bounds.fn.__code__.co_firstlineno + 3
    text = str(caught.value)
    assert f"kernel 'out_of_bounds' at test_addresses.py:{line}: load of element 512" in text
    assert "'x_ptr', fp32[2, 256], with 512 elements, 0 to 511" in text
    assert text.endswith("program 2, 3")
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert (__file__, line) in [(frame.filename, frame.lineno) for frame in frames]


# ---- memory without values, as kernels see it ----


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8", "u1", "u2"])
def test_it_has_the_shape_of_what_is_asked_for(dtype):
    """One number, in as many places; another one where it is filled."""
    empty, filled = (VoidView(100, np.dtype(dtype), fill=fill) for fill in (0, 1))
    assert len(empty) == 100
    index = np.arange(6).reshape(2, 3)
    for view, is_zero in ((empty, True), (filled, False)):
        for found in (view[index], view.take(index)):
            assert (found.shape, found.dtype) == ((2, 3), np.dtype(dtype))
            assert (found == 0).all() == is_zero
        assert view[7].dtype == np.dtype(dtype)
        assert view[2:5].shape == (3,)


def test_it_stores_nothing():
    """What is written is not read again."""
    view = VoidView(10, np.dtype("f4"), fill=0)
    view[np.arange(3)] = 7
    assert not view[np.arange(3)].any()


def test_narrow_floats_are_filled_with_finite_numbers():
    """They come as unsigned integers of their size."""
    bits = VoidView(4, np.dtype("u2"), fill=1)[np.arange(4)]
    assert (bits.view(np.float16) == 1).all()
