"""Blocks made and reshaped, outside of a kernel: no program need run."""

import numpy as np
import pytest

pytest.importorskip("triton")

from simrank.kernels.language import shapes
from simrank.kernels.values import types
from simrank.kernels.values.block import Block


def of_programs(*shape):
    """A block of two programs with values of their own."""
    values = np.arange(2 * np.prod(shape), dtype=np.int32).reshape(2, *shape)
    return Block(values, types.int32)


def test_a_reshape_leaves_the_program_axis():
    """Each program reshapes its own elements."""
    block = of_programs(2, 4)
    reshaped = shapes.reshape(block, 8)
    assert reshaped.shape == (8,)
    assert reshaped.values[1].tolist() == block.values[1].reshape(8).tolist()


def test_broadcast_adds_dims_in_front():
    """A block of fewer dims is repeated along the new ones, as in Triton."""
    one, other = shapes.broadcast(of_programs(4), of_programs(2, 4))
    assert one.shape == other.shape == (2, 4)
    assert one.values[1].tolist() == [[4, 5, 6, 7]] * 2


def test_what_is_split_is_joined_again():
    """The last dim has the two halves."""
    block = of_programs(4, 2)
    again = shapes.join(*shapes.split(block))
    assert again.values.tolist() == block.values.tolist()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: shapes.arange(0, 6), "power of 2"),
        (lambda: shapes.arange(4, 4), "greater than the start"),
        (lambda: shapes.reshape(of_programs(4), 8), "total number of elements"),
        (lambda: shapes.broadcast_to(of_programs(4), 8), "expanded size of the tensor"),
        (lambda: shapes.trans(of_programs(4)), "0- or 1-dimensional"),
        (lambda: shapes.split(of_programs(4)), "must have size 2"),
        (lambda: shapes.expand_dims(of_programs(4), 3), "invalid axis"),
    ],
)
def test_shapes_that_the_compiler_refuses_are_refused(make, words):
    """In its words, or near them."""
    with pytest.raises(ValueError, match=words):
        make()


def test_a_permutation_counts_dims_without_the_program_axis():
    """Negative dims count from the end."""
    block = of_programs(2, 4)
    assert shapes.permute(block, 1, 0).shape == (4, 2)
    assert shapes.permute(block, -1, 0).values.tolist() == block.T.values.tolist()


def test_one_scalar_of_all_programs_is_bare():
    """Of rows that differ it is not."""
    assert np.ndim(shapes.settled(np.array([7]))) == 0
    assert np.ndim(shapes.settled(np.array([7, 8]))) == 1
