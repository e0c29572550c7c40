"""The first result of a module's operations that the single program does not have."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch

from simrank.equality.layout import Layout
from simrank.equality.operations import (
    Operations,
    TorchCall,
    first_unknown,
    first_unknown_gradient,
)

TP = Layout({"tp": 2})


def done(work, *inputs):
    """Return the operations of a function, with the gradients of the sum of what it gives."""
    with Operations(lambda: True, lambda _: False) as operations:
        out = work(*inputs)
    if out.requires_grad:
        out.backward(torch.ones_like(out))
    return operations.done


def drawn(*shape, seed=0, needs_gradient=False):
    """Return random numbers."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return made.requires_grad_(needs_gradient)


def test_parts_slices_and_orders_of_what_is_known_are_known():
    """Elements are looked for, wherever they stand."""
    x, y = drawn(4, 6), drawn(4, 6, seed=1)
    single = done(lambda a, b: (a * b).softmax(-1) * 2, x, y)
    parts = [done(lambda a, b: (a * b).flip(0), x[:2], y[:2]), done(lambda a: a[1:].t(), x)]
    assert first_unknown(single, parts, 0, TP) is None
    assert first_unknown(single, parts, 1, TP) is None


def test_a_partial_sum_is_known_and_a_wrong_operation_is_named():
    """With the line of the program, and the setting that differs."""
    x, weight, bias = drawn(4, 6), drawn(3, 6, seed=1), drawn(3, seed=2)
    linear = torch.nn.functional.linear
    single = done(lambda: linear(x, weight, bias).softmax(dim=-1))
    parts = [
        done(lambda at=at: linear(x[:, at], weight[:, at]).softmax(dim=0))
        for at in (slice(0, 3), slice(3, 6))
    ]
    found = first_unknown(single, parts, 1, TP)
    assert found is not None
    assert (found.done.name, found.is_taken) == ("softmax", False)
    assert "test_operations.py:" in found.what
    assert found.what.endswith("gives with dim 0, and not -1")


def test_a_tensor_that_no_operation_gave_is_taken():
    """A collective has changed it."""
    x = drawn(4, 6)
    single = done(lambda: x.sin() + 1)

    def summed():
        wave = x.sin()
        wave.data.numpy()[:] *= 1.5  # As all_reduce does, unseen.
        return wave + 1

    found = first_unknown(single, [done(summed)], 0, Layout({"dp": 1}))
    assert found is not None
    assert (found.done.name, found.is_taken) == ("add", True)


def test_a_gradient_may_be_a_multiple_by_sizes_of_axes():
    """And is named where it is nothing that the single program has."""
    x = drawn(4, 6, needs_gradient=True)
    single = done(lambda: x.sin().tanh().mul(0.3))
    halved = [done(lambda: x.sin().tanh().mul(0.15))] * 2
    assert first_unknown_gradient(single, halved, 0, TP) is None
    wrong = [done(lambda: x.sin().tanh().mul(x.detach()))] * 2
    found = first_unknown_gradient(single, wrong, 0, TP)
    assert found is not None
    assert found.what.startswith("the gradient of what tanh at test_operations.py:")


def test_nothing_is_said_of_more_elements_than_can_be_kept():
    """The single program's are then not known."""
    large = torch.zeros(1 << 22, dtype=torch.float64)
    assert done(lambda: large + 1) == []
    other = TorchCall("add", "program.py:1", 0, [], [drawn(4)], {})
    assert first_unknown([], [[other]], 0, Layout({"dp": 1})) is None
