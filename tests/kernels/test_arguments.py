"""What a kernel gets for the arguments of a launch."""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.backends.amd.compiler import HIPOptions
from triton.backends.nvidia.compiler import CUDAOptions
from triton.tools.tensor_descriptor import TensorDescriptor

import simrank
from simrank.kernels import arguments

N = 256


class Pair(NamedTuple):
    """Two tensors that a kernel gets by name."""

    source: object
    target: object


PAIR = tl.constexpr((3, 4))


@triton.jit
def about_constants(out, SIZES: tl.constexpr):
    tl.static_assert(PAIR[1] == 4)
    tl.static_assert(SIZES[0] + SIZES[1] == 5)
    tl.static_assert(SIZES.type[0] == tl.constexpr_type(2))
    length: tl.constexpr = PAIR[0]
    tl.static_assert(length.type == tl.constexpr_type(3))
    tl.static_assert(tl.load(out).type == tl.int32)
    tl.store(out, SIZES[0] * PAIR[0])


@triton.jit
def first_of(x, out, described):
    tl.store(out, tl.load(x).to(tl.float32))
    tl.store(out + 1, tl.sum(tl.sum(described.load([0, 0]), 1), 0).to(tl.float32))


@triton.jit
def doubled(x):
    return x * 2


@triton.jit
def with_tuples(pair, sizes, FUNCTION: tl.constexpr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.static_assert(isinstance(lanes, tl.tensor))
    tl.static_assert(lanes.dtype.is_int32() and not lanes.dtype.is_fp16())
    x = tl.load(pair.source + lanes, mask=lanes < sizes[0], other=0.0)
    total = 0.0
    for size in tl.static_range(len(sizes)):
        total += sizes[size]
    tl.store(pair.target + lanes, FUNCTION(x) + total)


def test_named_tuples_and_functions_are_arguments(on_rank):
    """As Triton passes them."""

    def body(ctx):
        x, out = ctx.randn(N), ctx.empty(N)
        with_tuples[(1,)](Pair(x, out), (N, 3), doubled, N=N)
        assert (out.numpy() == x.numpy() * 2 + (N + 3)).all()

    on_rank(body)


@triton.jit
def counts(x, total, N: tl.constexpr):
    lanes = tl.arange(0, N)
    values = tl.load(x + lanes)
    tl.atomic_add(total, tl.sum((values >> 1).to(total.dtype.element_ty), axis=0))
    tl.store(x + lanes, values // 3 + (values > 5).to(x.dtype.element_ty))


@pytest.mark.parametrize("name", ["uint16", "uint32", "uint64"])
def test_wide_unsigned_tensors_are_arguments(on_rank, name):
    """Shifts, quotients and comparisons are those of unsigned numbers; atomics add to them."""

    def body(ctx):
        largest = np.iinfo(name).max
        values = largest - np.arange(N, dtype=name)
        x, total = ctx.from_numpy(values), ctx.zeros(1, dtype="uint64")
        counts[(1,)](x, total, N=N)
        assert (x.numpy() == values // 3 + 1).all()
        assert total.item() == sum(int(value) >> 1 for value in values) % 2**64

    on_rank(body)


def test_a_numpy_array_is_refused_with_its_cure(on_rank):
    """Also within a tuple; what the message says to pass is taken."""

    def body(ctx):
        values, total = np.arange(N, dtype=np.int32), ctx.zeros(1, dtype="uint64")
        with pytest.raises(TypeError, match=r"'x' is a numpy array(.|\n)*simrank.from_numpy"):
            counts[(1,)](values, total, N=N)
        with pytest.raises(TypeError, match=r"'pair\[1\]' is a numpy array"):
            with_tuples[(1,)](Pair(ctx.empty(N), values), (N,), doubled, N=N)
        counts[(1,)](simrank.from_numpy(values), total, N=N)
        assert total.item() == (values >> 1).sum()

    on_rank(body)


def test_tuples_of_constants_are_plain_and_have_types(on_rank):
    """Global ones and arguments, of constants too."""

    def body(ctx):
        out = ctx.zeros(1, dtype=simrank.int32)
        about_constants[(1,)](out, (tl.constexpr(2), 3))
        assert out.item() == 6

    on_rank(body)


def test_options_are_those_of_all_backends_of_the_installed_triton(on_rank):
    """They are read from its own classes; what none has is refused."""
    known, known_to_amd = (
        {field.name for field in dataclasses.fields(kind)} for kind in (CUDAOptions, HIPOptions)
    )
    assert known | known_to_amd <= arguments.options()

    def body(ctx):
        out = ctx.zeros(1, dtype=simrank.int32)
        options = {"ptx_options": "-v", "waves_per_eu": 2, "schedule_hint": "none"}
        about_constants[(1,)](out, (2, 3), **options)
        assert out.item() == 6
        if "clc" in known:
            about_constants[(1,)](out, (2, 3), clc=False)
        else:
            with pytest.raises(KeyError, match="clc"):
                about_constants[(1,)](out, (2, 3), clc=False)
        with pytest.raises(KeyError, match="num_wraps"):
            about_constants[(1,)](out, (2, 3), num_wraps=4)

    on_rank(body)


def test_reinterpreted_tensors_are_described_and_compiled(on_rank):
    """`triton.reinterpret` gives a pointer another type, in descriptors and in `.asm` too."""

    def body(ctx):
        bits = ctx.from_numpy(np.full(256, 0x3C00, np.int16))
        out = ctx.zeros(2)
        other = triton.reinterpret(bits.view(16, 16), tl.float16)
        described = TensorDescriptor(other, [16, 16], [16, 1], [16, 16])
        launched = first_of[(1,)](triton.reinterpret(bits, tl.float16), out, described)
        assert out.tolist() == [1.0, 256.0]
        assert "*f16" in launched.asm["ttir"] or "ptr<f16>" in launched.asm["ttir"]

    on_rank(body)
