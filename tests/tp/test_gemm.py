"""The product as a Triton kernel: equal to the library's, for any strides and ragged sizes."""

import numpy as np
import pytest

pytest.importorskip("triton")

from simrank.tp.gemm import triton_matmul


@pytest.mark.parametrize("sizes", [(2, 3, 16, 8), (1, 130, 33, 65)])
def test_a_product_equals_numpys(ctx, sizes):
    """Also where blocks are not full, and where the matrix is a transposed view."""
    stack, rows, inner, columns = sizes
    left = ctx.randn(stack, rows, inner)
    right = ctx.randn(columns, inner)
    found = triton_matmul(left, right.t())
    assert tuple(found.shape) == (stack, rows, columns)
    assert np.allclose(found.numpy(), left.numpy() @ right.numpy().T, atol=1e-4)


def test_an_empty_product_launches_nothing(ctx):
    """No rows, no kernel."""
    before = ctx.now_ps
    assert tuple(triton_matmul(ctx.empty(0, 4), ctx.empty(4, 4)).shape) == (0, 4)
    ctx.synchronize()
    assert ctx.now_ps == before
