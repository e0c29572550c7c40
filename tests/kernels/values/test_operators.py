"""The operators of blocks: integers as hardware computes them, pointers that are moved."""

import numpy as np
import pytest

pytest.importorskip("triton")

from simrank.kernels.values import operators, types
from simrank.kernels.values.block import Block, constant


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
