"""The operators of blocks: integers as hardware computes them, pointers that are moved."""

import numpy as np
import pytest

from simrank.kernels.values import operators, types
from simrank.kernels.values.block import Block, constant
from simrank.kernels.values.operators import (
    MAX_NUMEL,
    aligned,
    common_shape,
    with_axes,
)


@pytest.mark.parametrize(("number", "by"), [(7, 2), (-7, 2), (7, -2), (-7, -2), (-8, 2)])
def test_integers_are_divided_toward_zero(number, by):
    """The quotient is cut off, and the rest has the sign of what is divided."""
    ours, theirs = (Block(np.int32(n), types.int32) for n in (number, by))
    assert int(ours // theirs) == int(number / by)
    assert int(ours % theirs) == number - by * int(number / by)


def test_a_pointer_moves_by_elements_and_an_address_by_bytes():
    """What counts in a storage adds elements; an address adds as many times their size."""
    element = types.pointer_to(types.float64)
    address = Block(np.int64(4096), element)
    assert (address + 3).values == 4096 + 3 * 8
    assert (address - constant(1)).values == 4096 - 8
    assert (constant(2) + address).values == 4096 + 2 * 8


@pytest.mark.parametrize("compute", [lambda p: p + p, lambda p: p * 2, lambda p: p + 0.5])
def test_pointers_are_only_moved_by_integers(compute):
    """Everything else is refused, as in Triton."""
    pointer = Block(np.int64(4096), types.pointer_to(types.int32))
    with pytest.raises(TypeError):
        compute(pointer)


def test_narrow_floats_are_rounded_after_every_operation():
    """In bf16, 256 + 1 is 256: seven bits of the mantissa do not hold it."""
    large = Block(np.float32(256), types.bfloat16)
    assert float(large + 1.0) == 256.0
    assert float(Block(np.float32(256), types.float32) + 1.0) == 257.0


def test_zeros_of_two_signs_are_two_numbers():
    """What was computed with 0.0 before is not taken for -0.0."""
    one = Block(np.float32(1), types.float32)
    assert not np.signbit((one * 0.0).values)
    assert np.signbit((one * -0.0).values)


def test_conditions_add_up_as_one_bit():
    """int1 has no two: true and true is false."""
    true = constant(True)
    ours, theirs, element = operators.operands(true, true)
    assert (bool(ours), bool(theirs), element) == (True, True, types.int1)
    assert not bool((true + true).values)


def scalar(number, element):
    return Block(element.compute.type(number), element)


MIXED = [
    (2049, types.int32, 1.0, types.float16, 2048.0 + 1.0),  # 2049 becomes 2048; 2049 does too.
    (257, types.int64, 2.0, types.bfloat16, 259.0),  # In fp32, as Triton has it.
    (65520, types.int32, 0.0, types.float16, float("inf")),
    (1.0078125 + 2.0**-7, types.bfloat16, 0.0, types.float16, 1.015625),
    (2.0**-20, types.bfloat16, 1.0, types.float16, 1.0),
    (3e38, types.bfloat16, 1.0, types.float16, float("inf")),
    (1.0, types.float8e5, 2.0**-10, types.float16, 1 + 2.0**-10),
]


@pytest.mark.parametrize(("one", "own", "two", "other", "wanted"), MIXED)
def test_operands_are_rounded_to_the_type_that_they_are_computed_in(one, own, two, other, wanted):
    """Before they are: fp16 has no 2049."""
    with np.errstate(over="ignore"):
        total = scalar(one, own) + scalar(two, other)
        rounded = total.element.rounded(np.float32(wanted))
    assert total.element is types.promote(own, other)
    assert float(total.values) == float(rounded)


def test_operands_are_rounded_before_they_are_compared():
    """As fp16, 2049 is 2048; as fp32 it is not."""
    large = scalar(2049, types.int32)
    assert bool(large == scalar(2048, types.float16))
    assert not bool(large > scalar(2048, types.float16))
    assert not bool(large == scalar(2048, types.float32))
    assert not bool(scalar(257, types.int16) == scalar(256, types.bfloat16))  # In fp32.


def test_minus_of_a_condition_is_the_condition():
    """In one bit, 0 - 1 is 1: the compiler takes it."""
    assert bool((-constant(True)).values)
    assert not bool((-constant(False)).values)


# ---- shapes that go together ----


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
