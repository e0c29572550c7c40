"""Products of matrices."""

import numpy as np
import pytest
import triton
import triton.language as tl

import simrank


@triton.jit
def small_dot(a_ptr, b_ptr, out, PRECISION: tl.constexpr):
    lanes = tl.arange(0, 16)
    at = lanes[:, None] * 16 + lanes[None, :]
    c = tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at), input_precision=PRECISION)
    tl.store(out + at, c)


def test_hardware_precision_truncates_fp32_inputs_to_tf32(on_rank):
    """Unless the kernel asks for ieee; without it dots are exact to fp32."""

    def body(ctx):
        a, b = np.random.default_rng(0).standard_normal((2, 16, 16)).astype(np.float32)
        tensors = [ctx.from_numpy(x) for x in (a, b, np.zeros((16, 16), "f4"))]
        kept = [(x.view("u4") & np.uint32(0xFFFFE000)).view("f4").astype(float) for x in (a, b)]
        exact = a.astype(float) @ b.astype(float)
        truncated = kept[0] @ kept[1]
        for asked, precision, wanted in (
            (None, "hardware", truncated),
            ("ieee", "hardware", exact),
            (None, "ieee", exact),
        ):
            small_dot[(1,)](*tensors, asked, precision=precision)
            np.testing.assert_allclose(tensors[2].numpy(), wanted, rtol=1e-5, atol=1e-5)

    on_rank(body)


def test_a_context_says_how_exactly_its_kernels_compute(run):
    """A launch may still say otherwise."""

    def body(rank, ctx):
        a = np.full((16, 16), 1 + 2.0**-20, np.float32)
        tensors = [ctx.from_numpy(x) for x in (a, np.eye(16, dtype="f4"), np.zeros((16, 16), "f4"))]
        for options, wanted in (({}, 1.0), ({"precision": "ieee"}, 1 + 2.0**-20)):
            small_dot[(1,)](*tensors, None, **options)
            assert (tensors[2].numpy() == np.float32(wanted)).all()

    run(body, 1, precision="hardware")


def test_a_precision_that_is_none_is_refused():
    """With what there is."""
    with pytest.raises(ValueError, match="ieee, hardware"):
        simrank.Context(precision="tf32")
