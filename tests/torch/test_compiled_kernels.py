"""A user's Triton kernels inside compiled functions: as eager, with constants passed in any way."""

import pytest
import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of its imports.


@triton.jit
def scaled(x, o, n, factor, RELU: tl.constexpr, BLOCK: tl.constexpr = 64):
    """Scale a vector."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, i < n) * factor
    tl.store(o + i, tl.maximum(value, 0.0) if RELU else value, i < n)


@triton.jit
def biased(x, bias, o, n, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Add a vector that may be absent."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, i < n)
    if bias is not None:
        value += tl.load(bias + i, i < n)
    tl.store(o + i, -value if KIND == "negative" else value, i < n)


@triton.jit
def by_warps(x, o, n, num_warps: tl.constexpr, BLOCK: tl.constexpr):
    """Multiply by an option that is a parameter too."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, i < n) * num_warps, i < n)


@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.heuristics({"STEP": lambda _: 1})  # Torch takes constants alone.
@triton.jit
def tuned(x, o, n, BLOCK: tl.constexpr, STEP: tl.constexpr):
    """Increment a vector."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, i < n) + STEP, i < n)


@triton.jit
def increment(x, n, BLOCK: tl.constexpr, dtype: tl.constexpr):
    """Increment a vector in place, in a type that is an argument."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, i < n).to(dtype) + 1, i < n)


@triton_op("simrank_tests::scaled", mutates_args={})
def scaled_operator(x: torch.Tensor) -> torch.Tensor:
    """Scale a vector."""
    o = torch.empty_like(x)
    wrap_triton(scaled)[(triton.cdiv(x.numel(), 128),)](x, o, x.numel(), 3, RELU=True, BLOCK=128)
    return o


@triton_op("simrank_tests::increment", mutates_args={"x"})
def increment_operator(x: torch.Tensor) -> None:
    """Increment a vector."""
    wrap_triton(increment)[(triton.cdiv(x.numel(), 128),)](x, x.numel(), 128, tl.float32)


def _by_name(x):
    o = torch.empty_like(x)
    scaled[(triton.cdiv(x.numel(), 128),)](x, o, x.numel(), 2, RELU=False, BLOCK=128)
    return o + 1


def _by_position(x):
    o = torch.empty_like(x)
    scaled[(triton.cdiv(x.numel(), 32),)](x + 1, o, x.numel(), 0.5, True, 32)
    return o + 1


def _by_default(x):
    o = torch.empty_like(x)
    scaled[(triton.cdiv(x.numel(), 64),)](x, o, x.numel(), 2, RELU=True)
    return o + 1


def _with_options(x):
    o = torch.empty_like(x)
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)  # noqa: E731 - as users write it
    biased[grid](x, x + 1, o, x.numel(), "negative", BLOCK=64, num_warps=2, num_stages=2)
    return o * 2


def _without_a_tensor(x):
    o = torch.empty_like(x)
    biased[(triton.cdiv(x.numel(), 64),)](x, None, o, x.numel(), KIND="positive", BLOCK=64)
    return o * 2


def _an_option_that_is_a_parameter(x):
    o = torch.empty_like(x)
    by_warps[(triton.cdiv(x.numel(), 64),)](x, o, x.numel(), num_warps=8, BLOCK=64)
    return o * 2


def _tuned(x):
    o = torch.empty_like(x)
    tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, o, x.numel())
    return o * 2


def _two_launches_with_other_constants(x):
    first, second = torch.empty_like(x), torch.empty_like(x)
    scaled[(triton.cdiv(x.numel(), 128),)](x, first, x.numel(), 2, RELU=False, BLOCK=128)
    scaled[(triton.cdiv(x.numel(), 32),)](first, second, x.numel(), 1, RELU=True, BLOCK=32)
    return second


def _in_place(x):
    y = x * 2
    increment[(triton.cdiv(x.numel(), 128),)](y, y.numel(), 128, tl.float32)
    return y + 1


def _operator(x):
    return scaled_operator(x) + 1


def _operator_in_place(x):
    y = x * 2
    increment_operator(y)
    return y + 1


FUNCTIONS = (
    _by_name, _by_position, _by_default, _with_options, _without_a_tensor, _tuned, _in_place,
    _an_option_that_is_a_parameter, _two_launches_with_other_constants, _operator,
    _operator_in_place,
)  # fmt: skip


def _assert_as_eager(function, dynamic):
    """Compare three lengths: the second is dynamic where `dynamic` is None."""
    torch.manual_seed(0)
    compiled = torch.compile(function, dynamic=dynamic, fullgraph=True)
    for size in (200, 130, 128):
        x = torch.randn(size, device="cuda")
        torch.testing.assert_close(compiled(x), function(x))


def test_a_compiled_function_launches_a_kernel_with_constants(spawn):
    """By name, and with a grid of numbers."""
    spawn(lambda rank: _assert_as_eager(_by_name, None), 1)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_compiled_launches_equal_eager_ones(spawn, function, dynamic):
    """Constants by name, position and default, options, an absent tensor, a tuner, operators."""
    spawn(lambda rank: _assert_as_eager(function, dynamic), 1)
