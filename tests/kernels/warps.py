"""What tests of threads share: functions that each thread calls."""

import triton.language as tl
from triton.language import core

import simrank


@core.extern
def read_register(name: core.constexpr, _semantic=None):
    return core.extern_elementwise(
        "", "", [], {(): (f"llvm.nvvm.read.ptx.sreg.tid.{name.value}", core.dtype("int32"))},
        is_pure=False, _semantic=_semantic,
    )  # fmt: skip


@core.extern
def thread(axis: core.constexpr, _semantic=None):
    if axis == 0:
        return read_register(core.constexpr("x"), _semantic=_semantic)
    return read_register(core.constexpr("y"), _semantic=_semantic)


@core.extern
def take(value, lane, mode: core.constexpr, bounds: core.constexpr, _semantic=None):
    return tl.inline_asm_elementwise(
        asm=f"shfl.sync.{mode.value}.b32 $0, $1, $2, {bounds.value}, $3;",
        constraints="=r,r,r,r",
        args=[value, lane, -1],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
        _semantic=_semantic,
    )


@core.extern
def ballot(condition, _semantic=None):
    return tl.inline_asm_elementwise(
        asm="{.reg .pred p; setp.ne.b32 p, $1, 0; vote.sync.ballot.b32 $0, p, $2;}",
        constraints="=r,r,r",
        args=[condition, -1],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
        _semantic=_semantic,
    )


@core.extern
def put(ptr, value, _semantic=None):
    return tl.inline_asm_elementwise(
        asm="st.release.sys.global.b32 [$1], $2; mov.u32 $0, 0;",
        constraints="=r,l,r",
        args=[ptr, value],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
        _semantic=_semantic,
    )


def launched(ctx, kernel, size, *args, **options):
    out = simrank.zeros(size, dtype=simrank.int32)
    kernel[(1,)](out, *args, **options)
    return out.numpy()
