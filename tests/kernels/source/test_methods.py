"""Blocks have the methods of Triton's tensors."""

import triton
import triton.language as tl
from triton.language import core

from simrank.kernels.source import bind  # noqa: F401 - it attaches them
from simrank.kernels.values.block import Block


def test_every_public_method_of_a_tensor_is_there():
    """Those that are functions of tl too."""
    names = {
        name
        for name, value in vars(core.tensor).items()
        if not name.startswith("_") and callable(value) and hasattr(tl, name)
    }
    assert names
    assert [name for name in sorted(names) if not hasattr(Block, name)] == []


@triton.jit
def by_method(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr, x.sum() + x.max(axis=0))


def test_a_method_does_what_the_function_does(on_rank):
    """It is bound when it is first called."""

    def body(ctx):
        out = ctx.zeros(1, dtype="int64")
        by_method[(1,)](ctx.arange(16), out, N=16)
        assert out.item() == 120 + 15

    on_rank(body)
