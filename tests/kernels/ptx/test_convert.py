"""Conversions round and saturate as hardware does."""

import numpy as np
import pytest
import triton
import triton.language as tl

import simrank

from ..assembly import applied


def test_conversions_round_and_saturate(run):
    """To integers toward zero; NaN gives zero."""
    values = np.array([1.9, -1.9, 3e10, np.nan], np.float32)
    found = applied(
        run, "cvt.rzi.s32.f32 $0, $1;", values, kind=tl.int32, constraints="=r,f", out="int32"
    )
    assert found.tolist() == [1, -1, 2**31 - 1, 0]


@triton.jit
def to_fp8(x, out, N: tl.constexpr):
    offs = tl.arange(0, N)
    found = tl.inline_asm_elementwise(
        "cvt.rn.satfinite.e4m3x2.f32 $0, $2, $1;",
        "=h,r,r",
        [tl.load(x + offs)],
        dtype=tl.float8e4nv,
        is_pure=True,
        pack=2,
    )
    tl.store(out + offs, found)


def test_pairs_of_fp8_saturate(run):
    """The first source of the instruction goes to the upper half."""

    def body(rank, ctx):
        x = np.array([0.3, -1.0, 500.0, 448.0], np.float32)
        out = ctx.zeros(4, dtype=simrank.float8_e4m3fn)
        to_fp8[(1,)](ctx.from_numpy(x), out, N=4)
        assert out.float().tolist() == [0.3125, -1.0, 448.0, 448.0]

    run(body, 1)


@triton.jit
def four_bit_pairs(x, out, wide, N: tl.constexpr):
    offs = tl.arange(0, N)
    low, high = tl.split(tl.load(x + tl.arange(0, 2 * N)).reshape((N, 2)))
    packed = tl.inline_asm_elementwise(
        """
        {
            .reg .b8 pair;
            cvt.rn.satfinite.e2m1x2.f32 pair, $2, $1;
            cvt.u32.u8 $0, pair;
        }
        """,
        "=r,r,r", [low, high], dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip
    tl.store(out + offs, packed)
    both = tl.inline_asm_elementwise(
        "{ .reg .b8 pair; cvt.u8.u32 pair, $1; cvt.rn.f16x2.e2m1x2 $0, pair; }",
        "=r,r", [packed], dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip
    tl.store(wide + 2 * offs, (both & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True))
    tl.store(wide + 2 * offs + 1, (both >> 16).to(tl.int16).to(tl.float16, bitcast=True))


def test_pairs_of_four_bit_floats_round_to_even_and_saturate(run):
    """The first source of the instruction goes to the upper four bits, and comes back from them."""
    given = np.float32([0.25, 0.75, 1.25, -1.75, 2.5, 5.0, 100, -np.inf])
    wanted = [0.0, 1.0, 1.0, -2.0, 2.0, 4.0, 6.0, -6.0]

    def body(rank, ctx):
        out, wide = ctx.zeros(4, dtype=simrank.int32), ctx.zeros(8, dtype=simrank.float16)
        four_bit_pairs[(1,)](ctx.from_numpy(given), out, wide, N=4)
        assert wide.tolist() == wanted
        assert out.tolist() == [0x20, 0xC2, 0x64, 0xF7]

    run(body, 1)


@pytest.mark.parametrize(
    ("rounding", "wanted"),
    [("rp", [127, 128, 128, 0, 254, 255, 129, 0]), ("rz", [127, 127, 127, 0, 254, 255, 129, 0])],
)
def test_powers_of_two_are_rounded_up_or_toward_zero(run, rounding, wanted):
    """The scales of microscaling formats: a biased exponent of eight bits."""
    asm = (
        f"{{ .reg .b16 p; cvt.{rounding}.satfinite.ue8m0x2.f32 p, 0f00000000, $1; "
        "cvt.u32.u16 $0, p; }"
    )
    given = np.float32([1.0, 1.5, -1.1, 0.0, np.inf, np.nan, 4.0, 2.0**-127])
    found = applied(run, asm, given, kind=tl.int32, out=simrank.int32)
    assert (found & 0xFF).tolist() == wanted
