"""Inline PTX: instructions against Python, packing as Triton has it, refusals by name."""

import ml_dtypes
import numpy as np
import triton
import triton.language as tl

import simrank


@triton.jit
def unpack_bytes(a, b, c, d, N: tl.constexpr):
    offs = tl.arange(0, N)
    (first, second) = tl.inline_asm_elementwise(
        asm="""
        {
            // Unpack `a`.
            .reg .b8 tmp<4>;
            mov.b32 {tmp0, tmp1, tmp2, tmp3}, $8;
            cvt.u32.u8 $0, tmp0;
            cvt.u32.u8 $1, tmp1;
            cvt.u32.u8 $2, tmp2;
            cvt.u32.u8 $3, tmp3;
        }
        cvt.rn.f32.s32 $4, $0;
        cvt.rn.f32.s32 $5, $1;
        cvt.rn.f32.s32 $6, $2;
        cvt.rn.f32.s32 $7, $3;
        max.f32 $4, $4, $9;
        max.f32 $5, $5, $10;
        max.f32 $6, $6, $11;
        max.f32 $7, $7, $12;
        """,
        constraints="=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r,r",
        args=[tl.load(a + offs), tl.load(b + offs)],
        dtype=(tl.int32, tl.float32),
        is_pure=True,
        pack=4,
    )
    tl.store(c + offs, first)
    tl.store(d + offs, second)


def test_narrow_elements_share_registers_as_in_tritons_own_example(run):
    """Four bytes are in one register, four floats in four."""

    def body(rank, ctx):
        a = np.arange(250, 266).astype(np.uint8)
        b = np.linspace(0, 300, 16).astype(np.float32)
        c, d = ctx.zeros(16, dtype=simrank.int32), ctx.zeros(16)
        unpack_bytes[(1,)](ctx.from_numpy(a), ctx.from_numpy(b), c, d, N=16)
        assert c.tolist() == a.tolist()
        assert d.tolist() == np.maximum(a.astype(np.float32), b).tolist()

    run(body, 1)


@triton.jit
def pairs(x, y, out, N: tl.constexpr):
    offs = tl.arange(0, N)
    found = tl.inline_asm_elementwise(
        "fma.rn.bf16x2 $0, $1, $2, $2;",
        "=r,r,r",
        [tl.load(x + offs), tl.load(y + offs)],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=2,
    )
    tl.store(out + offs, found)


def test_pairs_of_bfloat16_are_computed_side_by_side(run):
    """Each rounded once."""

    def body(rank, ctx):
        x = np.linspace(-3, 3, 8).astype(ml_dtypes.bfloat16)
        y = np.linspace(1, 2, 8).astype(ml_dtypes.bfloat16)
        out = ctx.zeros(8, dtype=simrank.bfloat16)
        pairs[(1,)](ctx.from_numpy(x), ctx.from_numpy(y), out, N=8)
        wide = x.astype(np.float64) * y.astype(np.float64) + y.astype(np.float64)
        assert np.array_equal(out.numpy(), wide.astype(np.float32).astype(ml_dtypes.bfloat16))

    run(body, 1)
