"""Products of tensors: values, torch's errors and costs."""

import numpy as np
import pytest

from simrank.errors import UnsupportedError


def test_addmm_and_einsum_equal_numpy(ctx):
    """With beta and alpha, and with an index that is summed away."""
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    x, bias = ctx.tensor(a), ctx.ones(2, 2)
    found = bias.addmm(x, x.t(), beta=2, alpha=0.5)
    np.testing.assert_allclose(found.numpy(), 2 + 0.5 * a @ a.T)
    np.testing.assert_allclose(ctx.einsum("ij,kj->ik", x, x).numpy(), a @ a.T)
    with pytest.raises(UnsupportedError, match=r"einsum with '\.\.\.'"):
        ctx.einsum("...i->i", x)


def test_a_product_of_two_types_is_torchs_error(ctx):
    """Matmul does not promote."""
    with pytest.raises(RuntimeError, match=r"same dtype, but got: float != double"):
        ctx.ones(2, 2) @ ctx.ones(2, 2, dtype=ctx.float64)


def test_a_product_takes_what_was_measured_for_its_shape(shapes):
    """4,096^3 in bfloat16 on an H100 ran at 780 TFLOPS; a stack times a matrix is one product."""
    x = shapes.empty(4096, 4096, dtype=shapes.bfloat16)
    stack = shapes.empty(4, 1024, 4096, dtype=shapes.bfloat16)
    times = []
    for left in (x, stack):
        shapes.synchronize()
        before = shapes.now_ps
        left.matmul(x)
        shapes.synchronize()
        times.append(shapes.now_ps - before)
    assert times[0] == pytest.approx(2 * 4096**3 / 780e12 * 1e12, rel=0.05)
    assert times[1] == times[0]


def test_a_batched_product_costs_its_flops(shapes):
    """Two flops per element of the result and of the inner dim, where none were measured."""
    x = shapes.empty(8, 4096, 4096, dtype=shapes.float32)
    shapes.synchronize()
    before = shapes.now_ps
    x.bmm(x)
    shapes.synchronize()
    peak = shapes.cluster.device.peak_flops["float32"]
    assert shapes.now_ps - before == pytest.approx(8 * 2 * 4096**3 / peak * 1e12, rel=0.02)
