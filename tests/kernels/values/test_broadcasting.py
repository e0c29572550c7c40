"""Shapes that go together."""

import numpy as np
import pytest

from simrank.kernels.values.broadcasting import (
    MAX_NUMEL,
    aligned,
    common_shape,
    with_axes,
)


@pytest.mark.parametrize(
    ("ours", "theirs", "common"),
    [((), (4,), (4,)), ((4,), (2, 1), (2, 4)), ((1, 4), (2, 1), (2, 4)), ((4,), (4,), (4,))],
)
def test_shapes_are_broadcast_from_the_right(ours, theirs, common):
    """As Triton does, whichever comes first."""
    assert common_shape(ours, theirs) == common_shape(theirs, ours) == common


def test_shapes_that_do_not_go_together_are_refused_in_tritons_words():
    """The message names the dim and both sizes."""
    with pytest.raises(ValueError, match="incompatible dimensions at index 1: 4 and 8"):
        common_shape((2, 4), (8,))


def test_a_block_has_at_most_as_many_elements_as_triton_allows():
    """Also where neither of two has too many."""
    with pytest.raises(ValueError, match="exceeds triton maximum"):
        common_shape((MAX_NUMEL, 1), (1, 2))


def test_axes_are_added_behind_the_program_axis():
    """Three programs with four elements each keep them, whatever they meet."""
    rows = np.zeros((3, 4))
    assert with_axes(rows, 4).shape == (3, 1, 1, 4)
    assert with_axes(np.float32(1), 4).shape == ()
    one, other = aligned(rows, np.zeros((1, 2, 4)))
    assert (one.shape, other.shape) == ((3, 1, 4), (1, 2, 4))
