"""Instructions without memory give what Python and numpy give."""

import numpy as np
import pytest
import triton.language as tl

from ..assembly import applied

INTS = np.array([0, 1, -1, 7, -8, 123456789, -(2**31), 2**31 - 1], np.int32)
WORDS = INTS.view(np.uint32).astype(object)
CASES = {
    "add.s32 $0, $1, 5;": lambda v: v + 5,
    "sub.u32 $0, 1, $1;": lambda v: 1 - v,
    "mul.lo.u32 $0, $1, $1;": lambda v: v * v,
    "mul.hi.u32 $0, $1, $1;": lambda v: v * v >> 32,
    "mad.lo.s32 $0, $1, 3, -4;": lambda v: v * 3 - 4,
    "shl.b32 $0, $1, 4;": lambda v: v << 4,
    "shl.b32 $0, $1, 40;": lambda v: 0,
    "shr.u32 $0, $1, 4;": lambda v: v >> 4,
    "and.b32 $0, $1, 0xFF;": lambda v: v & 255,
    "xor.b32 $0, $1, -1;": lambda v: ~v,
    "not.b32 $0, $1;": lambda v: ~v,
    "popc.b32 $0, $1;": lambda v: v.bit_count(),
    "clz.b32 $0, $1;": lambda v: 32 - v.bit_length(),
    "bfe.u32 $0, $1, 4, 8;": lambda v: v >> 4 & 255,
    "bfi.b32 $0, $1, 0x707, 8, 4;": lambda v: 0x007 | (v & 15) << 8,
    "shf.l.wrap.b32 $0, $1, $1, 7;": lambda v: v << 7 | v >> 25,
    "shf.l.wrap.b32 $0, $1, 5, 36;": lambda v: 5 << 4 | v >> 28,
    "shf.l.clamp.b32 $0, $1, 5, 36;": lambda v: v,
    "shf.r.wrap.b32 $0, $1, 5, 4;": lambda v: v >> 4 | 5 << 28,
    "shf.r.clamp.b32 $0, $1, 5, 40;": lambda v: 5,
    "lop3.b32 $0, $1, 0xF0F0F0F0, 0x0F0F0F0F, 0xCA;": lambda v: (
        (v & 0xF0F0F0F0) | (~v & 0x0F0F0F0F)
    ),
    "prmt.b32 $0, $1, 0, 0x0123;": lambda v: int.from_bytes(v.to_bytes(4, "little"), "big"),
    "max.u32 $0, $1, 9;": lambda v: max(v, 9),
    "{ .reg .pred p; setp.gt.u32 p, $1, 7; selp.b32 $0, 1, 2, p; }": lambda v: 1 if v > 7 else 2,
    "{ .reg .pred %p<2>; setp.lt.u32 %p0|%p1, $1, 7; @%p0 mov.u32 $0, 3; @!%p0 mov.u32 $0, 4; }": (
        lambda v: 3 if v < 7 else 4
    ),
    "{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $1; mov.b32 $0, {hi, lo}; }": lambda v: (
        v >> 16 | v << 16
    ),
    "{ .reg .pred p; setp.eq.u32 p, $1, 0; mov.u32 $0, 1; @p bra end; mov.u32 $0, 2; end: }": (
        lambda v: 2 if v else 1
    ),
    "{ .reg .u64 %w; mul.wide.u32 %w, $1, 16; shr.u64 %w, %w, 32; cvt.u32.u64 $0, %w; }": (
        lambda v: v * 16 >> 32
    ),
    "cvt.sat.u32.s32 $0, $1;": lambda v: v if v < 2**31 else 0,
    "cvt.s32.s8 $0, $1;": lambda v: int(np.uint8(v & 255).view(np.int8)),
}


@pytest.mark.parametrize("asm", CASES, ids=lambda asm: asm.split()[0 if asm[0] != "{" else 1])
def test_integer_instructions_give_what_python_gives(run, asm):
    """Modulo 2**32."""
    found = applied(run, asm, INTS, kind=tl.int32).view(np.uint32)
    assert found.tolist() == [CASES[asm](int(word)) & 0xFFFFFFFF for word in WORDS]


FLOATS = np.array([0.5, 1.0, 2.0, 3.75, 0.1, 10.0, 0.25, 100.0], np.float32)
FLOAT_CASES = {
    "rcp.approx.ftz.f32 $0, $1;": lambda v: np.float32(1) / v,
    "ex2.approx.f32 $0, $1;": np.exp2,
    "lg2.approx.f32 $0, $1;": np.log2,
    "sqrt.rn.f32 $0, $1;": np.sqrt,
    "tanh.approx.f32 $0, $1;": np.tanh,
    "fma.rn.f32 $0, $1, $1, 0f3F800000;": lambda v: (
        v.astype(np.float64) * v.astype(np.float64) + 1
    ).astype(np.float32),
    "max.f32 $0, $1, 2.5;": lambda v: np.maximum(v, np.float32(2.5)),
    "neg.f32 $0, $1;": lambda v: -v,
    "cvt.rni.f32.f32 $0, $1;": np.rint,
}


@pytest.mark.parametrize("asm", FLOAT_CASES, ids=lambda asm: asm.split()[0])
def test_float_instructions_give_what_numpy_gives(run, asm):
    """Approximations are exact here."""
    found = applied(run, asm, FLOATS, kind=tl.float32, constraints="=f,f")
    assert np.array_equal(found, FLOAT_CASES[asm](FLOATS))
