"""What of the source Python would run otherwise."""

import numpy as np
import triton
import triton.language as tl

N = 256


def launch(ctx, kernel, inputs, out, grid=(1,), **constants):
    """Launch on arrays; return the output as an array."""
    tensors = [ctx.from_numpy(array) for array in (*inputs, out)]
    kernel[grid](*tensors, **constants)
    return tensors[-1].numpy()


@triton.jit
def values_of_constants(out, N: tl.constexpr):
    x = tl.zeros((N,), tl.float32)
    tl.static_assert(x.shape[0].value == N.value)
    tl.static_assert(tl.constexpr(3).value == 3)
    bottom = tl.topk(tl.arange(0, 8), 2, descending=False)
    tl.store(out + tl.arange(0, 2), bottom + x.numel.value)


def test_constants_have_a_value(on_rank):
    """Kernels that ask for it get the constant itself."""

    def body(ctx):
        assert launch(ctx, values_of_constants, [], np.zeros(2, "i4"), N=N).tolist() == [N, N + 1]

    on_rank(body)
