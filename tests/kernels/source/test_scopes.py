"""What names mean in the source of a kernel."""

import numpy as np
import triton
import triton.language as tl

N = 256


def launch(ctx, kernel, inputs, out, grid=(1,), **constants):
    """Launch on arrays; return the output as an array."""
    tensors = [ctx.from_numpy(array) for array in (*inputs, out)]
    kernel[grid](*tensors, **constants)
    return tensors[-1].numpy()


def test_kernels_may_be_closures(on_rank):
    """They see the variables around them."""
    shift = tl.constexpr(5)

    @triton.jit
    def shifted(x_ptr, out, N: tl.constexpr):
        tl.store(out + tl.arange(0, N), tl.load(x_ptr + tl.arange(0, N)) + shift)

    def body(ctx):
        x = np.ones(N, "f4")
        assert (launch(ctx, shifted, [x], np.zeros(N, "f4"), N=N) == 6).all()

    on_rank(body)
