"""Reductions, scans and orders against numpy; see also `tests/conformance/test_tensors.py`."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simrank

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@given(SHAPES, st.data())
@settings(max_examples=20)
def test_reductions_over_a_dim_equal_numpy(shape, data):
    """Sum, mean, prod, amax, amin, any, all and argmax over any dim, kept or not."""
    dim, keepdim = data.draw(st.integers(-len(shape), len(shape) - 1)), data.draw(st.booleans())
    values = np.random.default_rng(len(shape)).integers(-4, 5, shape).astype(np.float32)
    with simrank.Context("hgx_h100") as ctx:
        x = ctx.tensor(values)
        for name in ("sum", "mean", "prod", "amax", "amin", "any", "all", "argmax"):
            expected = getattr(np, name)(values, axis=dim, keepdims=keepdim)
            found = getattr(x, name)(dim, keepdim=keepdim)
            assert found.shape == np.shape(expected)
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


def test_max_with_a_dim_returns_values_and_indices(ctx):
    """As a named tuple, in torch's order."""
    found = ctx.tensor([[3.0, 1.0], [2.0, 5.0]]).max(1)
    assert found.values.tolist() == [3, 5]
    assert found.indices.tolist() == [0, 1]
    assert found.indices.dtype is ctx.int64


def test_softmax_of_narrow_floats_is_computed_in_float32(ctx):
    """The result is rounded once."""
    row = [0.1 * i for i in range(64)]
    x = ctx.tensor(row, dtype=ctx.bfloat16)
    wide = x.double().numpy()
    expected = np.exp(wide - wide.max()) / np.exp(wide - wide.max()).sum()
    found = x.softmax(-1)
    assert found.dtype is ctx.bfloat16
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=2**-8)


def test_a_reduction_costs_what_it_reads(shapes):
    """One pass over the tensor at the device's bandwidth."""
    x = shapes.zeros(2**28)
    shapes.synchronize()
    before = shapes.now_ps
    x.sum()
    shapes.synchronize()
    bandwidth = shapes.cluster.device.memory_bandwidth_bytes_per_s
    assert shapes.now_ps - before == pytest.approx(2**30 / bandwidth * 1e12, rel=0.02)
