"""Double precision: casts to narrower types stay in it, on every way to a cast."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn

from simrank.equality.precision import backwards_under, cast, computing_in, grouped_mm


def _autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ torch.ones(3, 3, dtype=torch.float64)


def _module(x):
    return nn.Linear(3, 3).to(torch.bfloat16)(x)


CASTS = {
    "float": torch.Tensor.float,
    "half": torch.Tensor.half,
    "to": lambda x: x.to(torch.bfloat16),
    "to a device and a type": lambda x: x.to("cpu", torch.float16),
    "a factory": lambda x: x + torch.zeros(3, dtype=torch.float32),
    "a sum": lambda x: x.sum(dtype=torch.float32),
    "softmax": lambda x: torch.softmax(x, -1, dtype=torch.float32),
    "a module": _module,
    "autocast": _autocast,
}


@pytest.mark.parametrize("name", CASTS)
def test_a_cast_to_a_narrow_type_gives_float64(name):
    """And the exact values."""
    x = torch.randn(3, dtype=torch.float64)
    with computing_in(torch.float64):
        assert CASTS[name](x).dtype == torch.float64
    assert torch.get_default_dtype() == torch.float32


def test_other_types_are_left_alone():
    """Integers, and everything where another type was asked for."""
    with computing_in(torch.float64):
        assert torch.ones(3).to(torch.int32).dtype == torch.int32
    with computing_in(torch.bfloat16) as modes:
        assert torch.ones(3).float().dtype == torch.float32
    assert modes == []


def test_in_float32_narrower_types_are_widened():
    """A program that refuses float64 is then no noisier than its own type."""
    with computing_in(torch.float32):
        assert torch.ones(3).bfloat16().dtype == torch.float32
        assert torch.ones(3).double().dtype == torch.float64


@pytest.mark.parametrize(
    ("a", "b", "ends"),
    [
        ((12, 8), (3, 8, 16), [4, 4, 12]),
        ((8, 16), (16, 12), [4, 8, 16]),
        ((3, 8, 8), (8, 24), [8, 16, 24]),
        ((3, 8, 8), (3, 8, 16), None),
    ],
)
def test_grouped_products_are_those_of_torch(a, b, ends):
    """Torch refuses float64; in float32 both are the same."""
    drawn = torch.Generator().manual_seed(0)
    left, right = torch.randn(a, generator=drawn), torch.randn(b, generator=drawn)
    offs = None if ends is None else torch.tensor(ends, dtype=torch.int32)
    want = nn.functional.grouped_mm(left, right, offs=offs)
    assert torch.allclose(grouped_mm(left, right, offs), want)
    with computing_in(torch.float64):
        got = nn.functional.grouped_mm(left.double(), right.double(), offs=offs)
    assert got.dtype == torch.float64
    assert torch.allclose(got.float(), want, atol=1e-5)


def test_a_type_has_the_name_that_code_looks_for():
    """Megatron's optimizers compare it with that of float32."""
    with computing_in(torch.float64):
        assert torch.ones(3).type() == "torch.FloatTensor"
    assert torch.ones(3, dtype=torch.float64).type() == "torch.DoubleTensor"


def test_hooks_of_a_backward_compute_in_it_too():
    """A backward is a call of torch, in which the caller's modes are off."""
    seen = []
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with computing_in(torch.float64) as modes, backwards_under(lambda _: modes):
        y = (x * 2).sum()
        y.register_hook(lambda gradient: seen.append(gradient.to(torch.bfloat16).dtype))
        y.backward()
    assert seen == [torch.float64]


def test_complex_values_keep_their_imaginary_part():
    """`Module.to` would drop it."""
    value = torch.tensor([1 + 2j], dtype=torch.complex64)
    assert cast(value, torch.float64).dtype == torch.complex128
    assert cast(value, torch.float64).imag.item() == 2.0
    assert cast(torch.ones(1, dtype=torch.int64), torch.float64).dtype == torch.int64
