"""Promises to the compiler are checked: false ones move wrong elements on a GPU."""

import pytest
import triton
import triton.language as tl

from simrank.kernels.language.control import KernelAssertionError


@triton.jit
def strided(x, o, stride, N: tl.constexpr):
    rows = tl.arange(0, N) * tl.multiple_of(stride, 16)
    tl.store(o + tl.arange(0, N), tl.load(x + rows))


@triton.jit
def aligned(x, o, first, N: tl.constexpr, M: tl.constexpr):
    at = tl.multiple_of(first + tl.arange(0, N), M)
    tl.store(o + tl.arange(0, N), tl.load(x + at))


@triton.jit
def contiguous(x, o, step, N: tl.constexpr):
    at = tl.max_contiguous(tl.arange(0, N) * step, N)
    tl.store(o + tl.arange(0, N), tl.load(x + at))


@triton.jit
def constant(x, o, every, N: tl.constexpr):
    at = tl.max_constancy(tl.arange(0, N) // every, 4)
    tl.store(o + tl.arange(0, N), tl.load(x + at))


@triton.jit
def tile(x, o, first, N: tl.constexpr):
    rows, columns = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    at = tl.multiple_of(rows * 64 + first + columns, (1, 16))
    tl.store(o + rows * N + columns, tl.load(x + tl.max_contiguous(at, (1, 16))))


@triton.jit
def pointer(x, o):
    tl.store(o, tl.load(tl.multiple_of(x, 16)))


@triton.jit
def beyond_an_edge(x, o, n, HOW: tl.constexpr, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    if HOW == "wrap":
        reduced = at % n
    elif HOW == "zero":
        reduced = tl.where(at < n, at, 0)
    else:
        reduced = tl.minimum(at, n - 1)
    reduced = tl.max_contiguous(tl.multiple_of(reduced, N), N)
    tl.store(o + at, tl.load(x + reduced), mask=at < n)


@pytest.mark.parametrize(
    ("kernel", "false", "true", "options", "words"),
    [
        (strided, 50, 64, {"N": 4}, "tl.multiple_of does not hold: 16 along dim 0 of 50"),
        (aligned, 8, 32, {"N": 16, "M": 16}, "16 along dim 0 of 8, 9, 10, 11, ..."),
        (contiguous, 2, 1, {"N": 16}, "tl.max_contiguous does not hold: 16 along dim 0 of 0, 2"),
        (constant, 2, 4, {"N": 16}, "tl.max_constancy does not hold: 4 along dim 0 of 0, 0, 1, 1"),
        (tile, 8, 16, {"N": 16}, "tl.multiple_of does not hold: 16 along dim 1 of 8, 9, 10, 11"),
    ],
)
def test_a_false_promise_is_an_error_and_a_true_one_changes_nothing(
    on_rank, kernel, false, true, options, words
):
    """As `tl.assume`; the error says which promise, and the elements."""

    def body(ctx, value):
        x, o = ctx.ones(2048), ctx.zeros(256)
        kernel[(1,)](x, o, value, **options)
        return o.sum().item()

    with pytest.raises(KernelAssertionError) as caught:
        on_rank(lambda ctx: body(ctx, false))
    assert words in str(caught.value)
    on_rank(lambda ctx: body(ctx, true))


def test_the_address_of_a_pointer_is_checked_in_bytes(on_rank):
    """A view that begins one element later is not aligned to 16 bytes."""

    def body(ctx, first):
        pointer[(1,)](ctx.ones(64)[first:], ctx.zeros(1))
        ctx.synchronize()

    on_rank(lambda ctx: body(ctx, 4))
    with pytest.raises(KernelAssertionError, match=r"tl\.multiple_of does not hold: 16"):
        on_rank(lambda ctx: body(ctx, 1))


@pytest.mark.parametrize("how", ["wrap", "zero", "last"])
def test_lanes_that_are_brought_back_from_beyond_an_edge_keep_the_promise(on_rank, how):
    """What they load is masked off at the store: matrix products of all libraries do so."""

    def body(ctx):
        x, o = ctx.arange(200, dtype="float32"), ctx.zeros(200)
        beyond_an_edge[(2,)](x, o, 200, HOW=how, N=128)
        assert (o.numpy() == x.numpy()).all()

    on_rank(body)
