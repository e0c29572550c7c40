"""Loads and stores: what is masked off."""

import numpy as np
import pytest
import triton
import triton.language as tl

import simrank

N = 256


@triton.jit
def masked_without_other(x_ptr, out, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(x_ptr + lanes, mask=lanes < 2))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_debug_mode_poisons_masked_off_lanes(on_rank, dtype):
    """NaN or the largest number: a result that uses them shows it."""

    def body(ctx):
        x, out = (ctx.from_numpy(np.zeros(N, dtype)) for _ in range(2))
        masked_without_other[(1,)](x, out, N=N, debug=True)
        found = out.numpy()[2:]
        assert np.isnan(found).all() if dtype == "float32" else (found == 2**31 - 1).all()
        masked_without_other[(1,)](x, out, N=N)
        assert (out.numpy() == 0).all()

    on_rank(body)


@pytest.mark.parametrize("settings", [{"strict": True}, {"precision": "hardware"}], ids=str)
def test_a_context_that_is_strict_poisons_masked_off_lanes(settings):
    """On hardware they hold whatever was there."""
    with simrank.Context(**settings) as ctx:
        x, out = (ctx.from_numpy(np.zeros(N, "f4")) for _ in range(2))
        masked_without_other[(1,)](x, out, N=N)
        assert np.isnan(out.numpy()[2:]).all()
