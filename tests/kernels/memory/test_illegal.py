"""A wrong access says line, tensor, bounds and programs."""

import traceback

import numpy as np
import pytest
import triton
import triton.language as tl

from simrank.kernels.memory.illegal import IllegalAccessError

N = 256


def launch(ctx, kernel, inputs, out, grid=(1,), **constants):
    """Launch on arrays; return the output as an array."""
    tensors = [ctx.from_numpy(array) for array in (*inputs, out)]
    kernel[grid](*tensors, **constants)
    return tensors[-1].numpy()


@triton.jit
def out_of_bounds(x_ptr, out, N: tl.constexpr):
    lanes = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + lanes)
    tl.store(out + lanes, x)


def test_out_of_bounds_names_line_tensor_bounds_and_program(on_rank):
    """And the traceback ends in the kernel's own source."""

    def body(ctx):
        launch(ctx, out_of_bounds, [np.zeros((2, N), "f4")], np.zeros(4 * N, "f4"), grid=(4,), N=N)

    with pytest.raises(IllegalAccessError) as caught:
        on_rank(body)
    line = out_of_bounds.fn.__code__.co_firstlineno + 3
    text = str(caught.value)
    assert f"kernel 'out_of_bounds' at test_illegal.py:{line}: load of element 512" in text
    assert "'x_ptr', fp32[2, 256], with 512 elements, 0 to 511" in text
    assert text.endswith("program 2, 3")
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert (__file__, line) in [(frame.filename, frame.lineno) for frame in frames]
