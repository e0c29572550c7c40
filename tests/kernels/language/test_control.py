"""Loops and their hints."""

import numpy as np
import pytest
import triton
import triton.language as tl


def launch(ctx, kernel, inputs, out, grid=(1,), **constants):
    """Launch on arrays; return the output as an array."""
    tensors = [ctx.from_numpy(array) for array in (*inputs, out)]
    kernel[grid](*tensors, **constants)
    return tensors[-1].numpy()


@triton.jit
def no_such_hint(out):
    for i in tl.range(0, 4, stages=3):
        tl.store(out + i, i)


def test_unknown_hints_of_loops_are_refused(on_rank):
    """A misspelt one would do nothing."""
    with pytest.raises(TypeError, match=r"tl\.range has no argument 'stages'"):
        on_rank(lambda ctx: launch(ctx, no_such_hint, [], np.zeros(4, "i4")) and None)
