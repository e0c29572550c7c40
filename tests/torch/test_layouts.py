"""Which kernel torch launches for operands as they lie."""

import pytest

from simrank.torch.devices.costs import changes_in_place, computes_offsets, is_reduction
from tests.torch.devices.test_costs import BFLOAT16, operation, tensor

BOOL = 11


def out(*sizes, **options):
    """Return a result."""
    return tensor(*sizes, is_written=True, **options)


@pytest.mark.parametrize(
    ("name", "inputs", "output"),
    [
        ("add.Tensor", [tensor(64, 32), tensor(64, 32)], out(64, 32)),
        ("neg", [tensor(64, 32, strides=(1, 64))], out(64, 32, strides=(1, 64))),
        ("mul.Tensor", [tensor(1, 64, strides=(7, 1)), tensor(1, 64)], out(1, 64)),
        ("gt.Scalar", [tensor(64)], out(64, dtype=BOOL)),
        ("where.self", [tensor(64, dtype=BOOL), tensor(64), tensor(64)], out(64)),
        ("cat", [tensor(64, 8), tensor(64, 8)], out(64, 16)),
        ("copy_", [out(64, dtype=BFLOAT16), tensor(64)], None),
    ],
)
def test_operands_that_lie_alike_are_read_as_vectors(name, inputs, output):
    """Whatever the order of their dimensions; masks are of no other type."""
    assert not computes_offsets(operation(name, inputs, [output] if output else []))


@pytest.mark.parametrize(
    ("name", "inputs", "output"),
    [
        ("mul.Tensor", [tensor(64, 32), tensor(64, 1)], out(64, 32)),
        ("mul.Tensor", [tensor(64, 32), tensor(32)], out(64, 32)),
        ("add.Tensor", [tensor(64, 32), tensor(64, 32, strides=(1, 64))], out(64, 32)),
        ("neg", [tensor(64, 16, strides=(32, 1))], out(64, 16)),
        ("_to_copy", [tensor(64, dtype=BFLOAT16)], out(64)),
        ("copy_", [out(64), tensor(64, dtype=BFLOAT16)], out(64)),
        ("add.Tensor", [tensor(64), tensor(64, dtype=BFLOAT16)], out(64)),
        ("cat", [tensor(64, 8, strides=(16, 1)), tensor(64, 8)], out(64, 16)),
    ],
)
def test_broadcast_strided_and_converted_operands_have_offsets_computed(name, inputs, output):
    """Each element's."""
    assert computes_offsets(operation(name, inputs, [output]))


def test_what_is_not_pointwise_computes_no_such_offsets():
    """Norms, products and operators that torch does not know."""
    for name in ("native_layer_norm", "mm", "mine.overload", "no_such_operator"):
        assert not computes_offsets(operation(name, [tensor(64, 32), tensor(32)], [out(64, 32)]))


def test_reductions_are_those_that_torch_says_are():
    """By its tags."""
    assert all(is_reduction(operation(n, [tensor(8)], [])) for n in ("sum", "mean.dim", "argmax"))
    assert not any(is_reduction(operation(n, [tensor(8)], [])) for n in ("add.Tensor", "cumsum"))


def test_what_is_changed_in_place_is_read_too():
    """A copy, or random numbers, only write."""
    assert changes_in_place("add_.Tensor")
    assert changes_in_place("_foreach_mul_.Scalar")
    assert not any(map(changes_in_place, ("add.Tensor", "copy_", "normal_", "zero_", "relu")))
