"""What a kernel gets for the arguments of a launch."""

from typing import NamedTuple

import numpy as np
import pytest

import simrank

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
N = 256


class Pair(NamedTuple):
    """Two tensors that a kernel gets by name."""

    source: object
    target: object


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
