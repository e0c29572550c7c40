"""Memory without values, as kernels see it."""

import numpy as np
import pytest

from simrank.kernels.memory.addresses import VoidView


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
