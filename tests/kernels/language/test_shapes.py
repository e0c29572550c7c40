"""Blocks made and reshaped, outside of a kernel: no program need run."""

import re

import numpy as np
import pytest

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
        (lambda: shapes.expand_dims(of_programs(4), 3), "invalid axis 3. Expected -2 <= axis < 2"),
        (
            lambda: shapes.expand_dims(of_programs(4), (0, 5)),
            "invalid axis 5. Expected -3 <= axis < 3",
        ),
        (
            lambda: shapes.expand_dims(of_programs(4), (0, -3)),
            re.escape("expand_dims received duplicate axes, normalized axes = [0, 0]"),
        ),
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


@pytest.mark.parametrize(("dim", "shape"), [(0, (4, 4)), (1, (2, 8)), (-1, (2, 8)), (-2, (4, 4))])
def test_blocks_are_concatenated_along_a_dim_of_each_program(dim, shape):
    """Negative dims count from the end, and never reach the program axis."""
    one, other = of_programs(2, 4), of_programs(2, 4)
    joined = shapes.cat(one, other, dim=dim)
    pairs = zip(one.values, other.values, strict=True)
    expected = [np.concatenate(pair, axis=dim) for pair in pairs]
    assert joined.shape == shape
    assert joined.values.tolist() == [each.tolist() for each in expected]


def test_blocks_of_different_shapes_are_not_concatenated():
    """As in Triton, which joins them by a new dim."""
    with pytest.raises(AssertionError, match=r"same shape, got \[4\] and \[8\]"):
        shapes.cat(of_programs(4), of_programs(8))
    with pytest.raises(AssertionError, match="same rank, got 1 and 2"):
        shapes.cat(of_programs(4), of_programs(2, 2))
    with pytest.raises(ValueError, match="invalid axis 2"):
        shapes.cat(of_programs(2, 2), of_programs(2, 2), dim=2)
