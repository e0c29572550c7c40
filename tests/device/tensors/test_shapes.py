"""Shapes as torch's functions take them."""

import pytest

from simrank.device.tensors.shapes import as_shape, resolve


def test_sizes_come_separately_or_as_one_sequence():
    """zeros(2, 3), zeros((2, 3)) and zeros([2, 3]) are the same."""
    assert as_shape((2, 3)) == as_shape(((2, 3),)) == as_shape(([2, 3],)) == (2, 3)
    assert as_shape(()) == ()


def test_one_minus_one_stands_for_what_is_left():
    """And anything that does not add up is torch's error."""
    assert resolve((2, -1), 6) == (2, 3)
    for shape in ((4, -1), (-1, -1), (7,)):
        with pytest.raises(RuntimeError, match="is invalid for input of size 6"):
            resolve(shape, 6)
