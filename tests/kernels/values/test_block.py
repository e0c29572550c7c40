"""Blocks: narrow floats round as hardware does, and a pointer is true."""

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl

from ..assembly import launch

N = 256
BF16 = ml_dtypes.bfloat16


@triton.jit
def arithmetic(x_ptr, y_ptr, out, N: tl.constexpr):
    lanes = tl.arange(0, N)
    x, y = tl.load(x_ptr + lanes), tl.load(y_ptr + lanes)
    tl.store(out + lanes, x + y)
    tl.store(out + N + lanes, x * y)
    tl.store(out + 2 * N + lanes, x - 2.5)
    tl.store(out + 3 * N + lanes, tl.where(x > 0, x, 0))
    tl.store(out + 4 * N + lanes, tl.cumsum(x, 0) * 0 + tl.sum(x))


def test_bf16_equals_ml_dtypes(on_rank):
    """Which rounds each operation to nearest even from float32."""

    def body(ctx):
        x, y = np.random.default_rng(0).standard_normal((2, N)).astype(BF16)
        found = launch(ctx, arithmetic, [x, y], np.zeros((5, N), BF16), N=N)
        wanted = [x + y, x * y, x - BF16(2.5), np.maximum(x, BF16(0))]
        for ours, theirs in zip(found, wanted, strict=False):
            assert ours.tobytes() == theirs.tobytes()
        assert found[4, 0] == BF16(x.astype(np.float64).sum())

    on_rank(body)


@triton.jit
def through(x_ptr, out, TYPE: tl.constexpr, N: tl.constexpr, MODE: tl.constexpr):
    lanes = tl.arange(0, N)
    x = tl.load(x_ptr + lanes)
    tl.store(out + lanes, x.to(TYPE, fp_downcast_rounding=MODE).to(tl.float32))


@pytest.mark.parametrize(
    ("narrow", "dtype"),
    [
        (tl.float16, np.float16), (tl.bfloat16, BF16), (tl.float8e4nv, ml_dtypes.float8_e4m3fn),
        (tl.float8e5, ml_dtypes.float8_e5m2),
    ],
)  # fmt: skip
def test_narrow_casts_round_to_nearest_even_and_fp8_saturates(on_rank, narrow, dtype):
    """In range as ml_dtypes; beyond fp8's largest number, that number."""

    def body(ctx):
        rng = np.random.default_rng(1)
        x = (rng.standard_normal(N) * np.exp2(rng.integers(-12, 7, N))).astype(np.float32)
        x[:4] = [1e30, -1e30, np.nan, 0.0]
        found = launch(ctx, through, [x], np.zeros(N, "f4"), TYPE=narrow, N=N, MODE=None)
        largest = float(ml_dtypes.finfo(dtype).max)
        clipped = np.clip(x, -largest, largest) if np.dtype(dtype).itemsize == 1 else x
        with np.errstate(over="ignore"):
            wanted = clipped.astype(dtype).astype(np.float32)
        np.testing.assert_array_equal(found, wanted)
        toward = launch(ctx, through, [x], np.zeros(N, "f4"), TYPE=narrow, N=N, MODE="rtz")
        inside = np.isfinite(found) & np.isfinite(toward)
        assert (np.abs(toward[inside]) <= np.abs(x[inside])).all()

    on_rank(body)
