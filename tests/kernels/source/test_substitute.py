"""Libraries of device functions: their own `core.extern` functions run from their source."""

import pytest
import triton
import triton.language as tl
from triton.language import core

import simrank
from simrank.errors import UnsupportedError


@core.extern
def letter(bits: core.constexpr, _semantic=None):
    if bits.value == 64:
        return core.constexpr("l")
    tl.static_assert(bits.value == 64, "it does nothing in Python", _semantic=_semantic)
    return core.constexpr("r")


@core.extern
def load_relaxed(ptr, scope: core.constexpr = "gpu", _semantic=None):
    if isinstance(scope, core.constexpr):
        scope = scope.value
    bits: core.constexpr = ptr.dtype.element_ty.primitive_bitwidth
    c = letter(core.constexpr(bits), _semantic=_semantic)
    return tl.inline_asm_elementwise(
        asm=f"ld.global.relaxed.{scope}.b{bits} $0, [$1];",
        constraints=f"={c.value},l",
        args=[ptr],
        dtype=ptr.dtype.element_ty,
        is_pure=False,
        pack=1,
        _semantic=_semantic,
    )


@core.builtin
def twice(value, _semantic=None):
    return tl.cast(value, tl.int64, _semantic=_semantic) * 2


@core.extern
def of_a_library(value, _semantic=None):
    return core.extern_elementwise(
        "libx", "", [value], {(core.dtype("int32"),): ("x_magic", core.dtype("int32"))},
        is_pure=True, _semantic=_semantic,
    )  # fmt: skip


@triton.jit
def wait_then_double(flag, x, out):
    while load_relaxed(flag, "sys") != 1:
        pass
    tl.store(out, twice(tl.load(x)))


@triton.jit
def set_flag(flag, x):
    tl.store(x, 21)
    tl.atomic_xchg(flag, 1)


@triton.jit
def call_the_library(out):
    tl.store(out, of_a_library(tl.load(out)))


def test_functions_marked_as_builtin_run_from_their_source(run):
    """What they wait for is known: the other kernel may set it while they look."""

    def body(rank, ctx):
        flag, x = simrank.zeros(1, dtype=simrank.int32), simrank.zeros(1, dtype=simrank.int32)
        out = simrank.zeros(1, dtype=simrank.int64)
        ctx.synchronize()
        side = ctx.Stream()
        with ctx.stream(side):
            wait_then_double[(1,)](flag, x, out)
        set_flag[(1,)](flag, x)
        side.synchronize()
        assert out.item() == 42

    run(body, 1)


def test_a_function_of_a_binary_library_is_refused_by_its_symbol(run):
    """There is nothing to run."""

    def body(rank, ctx):
        out = simrank.zeros(1, dtype=simrank.int32)
        call_the_library[(1,)](out)
        with pytest.raises(UnsupportedError, match="x_magic"):
            out.item()

    run(body, 1)
