"""Products of matrices."""

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl

import simrank
from simrank.errors import UnsupportedError
from simrank.kernels import machine

from ..cases import scaled_product


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


# ---- Products in microscaling formats; those of 8 bits and less are also held to the  ----

M, N, K = 16, 16, 64
STORED = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "e4m3": ml_dtypes.float8_e4m3fn,
          "e5m2": ml_dtypes.float8_e5m2}  # fmt: skip


@triton.jit
def product(a_ptr, sa_ptr, b_ptr, sb_ptr, out, FIRST: tl.constexpr, SECOND: tl.constexpr,
            M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    groups = tl.arange(0, K // GROUP)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    sa = tl.load(sa_ptr + m[:, None] * (K // GROUP) + groups[None, :])
    if sb_ptr is not None:
        sb = tl.load(sb_ptr + n[:, None] * (K // GROUP) + groups[None, :])
    else:
        sb: tl.constexpr = None
    tl.store(out + m[:, None] * N + n[None, :], tl.dot_scaled(a, sa, FIRST, b, sb, SECOND))


@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("is_scaled", [True, False])
@pytest.mark.parametrize(
    ("first", "second"), [("e4m3", "bf16"), ("fp16", "e5m2"), ("bf16", "bf16")]
)
def test_elements_of_all_widths_take_scales_of_powers_of_two(
    on_rank, first, second, is_scaled, group
):
    """Against numpy in float64, also of their bits; one side may have no scales."""

    def body(ctx):
        random = np.random.default_rng(3)
        a = random.standard_normal((M, K)).astype(STORED[first])
        b = random.standard_normal((K, N)).astype(STORED[second])
        sa, sb = (random.integers(120, 134, (rows, K // group), np.uint8) for rows in (M, N))
        wide = [x.astype(np.float64) for x in (a, b)]
        powers = [np.repeat(2.0 ** (s.astype(float) - 127), group, axis=1) for s in (sa, sb)]
        wanted = (wide[0] * powers[0]) @ (wide[1] * (powers[1].T if is_scaled else 1))
        for values in (a, a.view(f"u{a.itemsize}")):
            out = ctx.empty(M, N)
            product[(1,)](
                ctx.from_numpy(values), ctx.from_numpy(sa), ctx.from_numpy(b),
                ctx.from_numpy(sb) if is_scaled else None, out, FIRST=first, SECOND=second,
                M=M, N=N, K=K, GROUP=group,
            )  # fmt: skip
            np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-4, atol=1e-5)

    on_rank(body)


@pytest.mark.parametrize(
    ("cluster", "formats", "name"),
    [
        ("hgx_h100", ("e4m3", "e4m3"), "bf16"),
        ("hgx_h100", ("fp16", "e4m3"), "fp16"),
        ("gb200_nvl72", ("e4m3", "e5m2"), "fp8e4nv"),
        ("gb300_nvl72", ("e4m3", "e5m2"), "fp8e4nv"),
        ("gb200_nvl72", ("bf16", "e5m2"), "bf16"),
        ("mi355x", ("e4m3", "e4m3"), "fp8e4nv"),
        ("mi300x", ("e4m3", "e4m3"), "bf16"),
    ],
)
def test_a_product_is_charged_as_what_the_device_computes_it_in(cluster, formats, name):
    """As fp8 where there is an instruction for it; elsewhere the compiler upcasts."""
    with simrank.Context(cluster) as ctx:
        a, b = (
            ctx.zeros(*s, dtype=STORED[f]) for s, f in zip(((M, K), (K, N)), formats, strict=True)
        )
        scales = ctx.full((16, 2), 127, dtype="uint8")
        operation = ctx.launch(product, (3,), a, scales, b, scales, ctx.empty(M, N), M=M, N=N, K=K,
                               FIRST=formats[0], SECOND=formats[1], GROUP=32)  # fmt: skip
        ctx.synchronize()
        assert operation.statistics.flops == {machine.Dot(name, M, N, K): 3 * 2 * M * N * K}


@triton.jit
def wrong(
    out, scales, FIRST: tl.constexpr, PACK: tl.constexpr, WIDTH: tl.constexpr, K: tl.constexpr
):
    a = tl.zeros((16, 64), tl.uint8)
    b = tl.zeros((K, 16), tl.uint8)
    s = tl.load(scales + tl.arange(0, 16)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :])
    tl.store(out, tl.sum(tl.dot_scaled(a, s, FIRST, b, None, "e5m2", lhs_k_pack=PACK)))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"FIRST": "e3m2"}, ValueError, "NYI: lhs_format e3m2"),
        ({"FIRST": "bf16"}, ValueError, "Unexpected dtype for bf16. Got uint8"),
        ({"PACK": False}, ValueError, "only mxfp4 inputs can be packed"),
        ({"K": 128}, ValueError, "should pack the same number of elements"),
        ({"WIDTH": 1}, ValueError, "scale factor must be 16 or 32. Got 64"),
        ({"FIRST": "e2m1", "K": 128, "PACK": False}, ValueError, "should pack the same number"),
        ({"scales": "float32"}, UnsupportedError, "lhs_scale of fp32"),
    ],
)
def test_what_the_compiler_does_not_take_is_refused(on_rank, change, error, text):
    """In its words; scales of other types than bytes by name."""
    options = {"FIRST": "e4m3", "PACK": True, "WIDTH": 2, "K": 64} | change
    dtype = options.pop("scales", "uint8")

    def body(ctx):
        wrong[(1,)](ctx.empty(1), ctx.zeros(64, dtype=dtype), **options)
        ctx.synchronize()

    with pytest.raises(error, match=text):
        on_rank(body)


def test_bytes_of_zeros_with_scales_of_one_leave_the_accumulator(on_rank):
    """Bits of fp8 in tensors of bytes, of which a width is no multiple of the other."""

    def body(ctx):
        a, b = ctx.zeros(16, 64, dtype="uint8"), ctx.zeros(64, 32, dtype="uint8")
        constants = {
            "M": 16,
            "N": 32,
            "K": 64,
            "A": "e4m3",
            "B": "e4m3",
            "A_PACK": True,
            "B_PACK": True,
        }
        out, scales = ctx.empty(16, 32), ctx.full((64,), 127, dtype="uint8")
        scaled_product[(1,)](a, scales, b, scales, out, **constants)
        assert out.tolist() == [[0.5] * 32] * 16

    on_rank(body)


@triton.jit
def nvfp4(a_ptr, sa_ptr, b_ptr, sb_ptr, out, GROUP: tl.constexpr, K: tl.constexpr):
    rows, packed, groups = tl.arange(0, 16), tl.arange(0, K // 2), tl.arange(0, K // GROUP)
    a = tl.load(a_ptr + rows[:, None] * (K // 2) + packed[None, :])
    b = tl.load(b_ptr + packed[:, None] * 16 + rows[None, :])
    at = rows[:, None] * (K // GROUP) + groups[None, :]
    product = tl.dot_scaled(a, tl.load(sa_ptr + at), "e2m1", b, tl.load(sb_ptr + at), "e2m1")
    tl.store(out + rows[:, None] * 16 + rows[None, :], product)


def _of_nvfp4(random, group):
    """Return packed elements, scales, and what they mean, of 16 rows of 64."""
    codes = random.integers(0, 16, (16, 64), np.uint8)
    scales = random.uniform(0.1, 400, (16, 64 // group)).astype(ml_dtypes.float8_e4m3fn)
    wide = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    wide *= np.repeat(scales.astype(np.float64), group, axis=1)
    return codes[:, ::2] | codes[:, 1::2] << 4, scales, wide


def _nvfp4_product(ctx, group=16, sign=1):
    random = np.random.default_rng(4)
    (a, sa, left), (b, sb, right) = (_of_nvfp4(random, group) for _ in range(2))
    out = ctx.empty(16, 16)
    operands = [ctx.from_numpy(x) for x in (a, sa * sign, np.ascontiguousarray(b.T), sb)]
    nvfp4[(1,)](*operands, out, GROUP=group, K=64)
    return out.numpy(), left @ right.T


def test_scales_of_nvfp4_are_numbers_of_e4m3(on_rank):
    """Groups of 16 elements of e2m1, against numpy in float64."""

    def body(ctx):
        found, wanted = _nvfp4_product(ctx)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-2)

    on_rank(body)


@pytest.mark.parametrize(
    ("change", "text"), [({"group": 32}, "in groups of 16"), ({"sign": -1}, "has a sign")]
)
def test_other_scales_of_e4m3_are_refused_by_name(on_rank, change, text):
    """No hardware has them."""
    with pytest.raises(UnsupportedError, match=text):
        on_rank(lambda ctx: _nvfp4_product(ctx, **change))
