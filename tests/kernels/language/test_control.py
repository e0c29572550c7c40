"""Loops and their hints."""

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.language.extra.cuda import (
    gdc_launch_dependents,
    gdc_wait,
    globaltimer,
    num_threads,
    num_warps,
    smid,
)

import simrank
from simrank.errors import UnsupportedError

from ..assembly import launch


@triton.jit
def no_such_hint(out):
    for i in tl.range(0, 4, stages=3):
        tl.store(out + i, i)


def test_unknown_hints_of_loops_are_refused(on_rank):
    """A misspelt one would do nothing."""
    with pytest.raises(TypeError, match=r"tl\.range has no argument 'stages'"):
        on_rank(lambda ctx: launch(ctx, no_such_hint, [], np.zeros(4, "i4")) and None)


# ---- functions of single elements: each goes its own way ----

MODES = ("one-by-one", "batched", "masked", "tasks")


@triton.jit
def selu(x, alpha):
    if x > 0:
        return x
    return alpha * (tl.exp(x) - 1)


@triton.jit
def collatz(n):
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
            steps = steps + 0
        else:
            n = 3 * n + 1
        steps += 1
    return steps


@triton.jit
def sorted_pair(x, y):
    if x > y:
        return y, x
    return x, y


@triton.jit
def three_maps(x_ptr, n_ptr, out, steps, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    x, n = tl.load(x_ptr + at), tl.load(n_ptr + at)
    tl.store(out + at, tl.map_elementwise(selu, x, 1.5))
    tl.store(steps + at, tl.map_elementwise(collatz, n))
    low, high = tl.map_elementwise(sorted_pair, x, 0.25)
    tl.store(out + 128 + at, low)
    tl.store(out + 256 + at, high)


@pytest.mark.parametrize("mode", MODES)
def test_each_element_goes_its_own_way(on_rank, mode):
    """Branches, loops of different lengths, several results; alike in every mode."""

    def body(ctx):
        random = np.random.default_rng(1)
        x = random.standard_normal(128).astype(np.float32)
        n = random.integers(1, 40, 128).astype(np.int32)
        out, steps = ctx.empty(384), ctx.empty(128, dtype="int32")
        three_maps[(4,)](ctx.from_numpy(x), ctx.from_numpy(n), out, steps, N=32, mode=mode)
        found = out.numpy().reshape(3, 128)
        below = np.float32(1.5) * (np.exp(x) - np.float32(1))
        np.testing.assert_allclose(found[0], np.where(x > 0, x, below), rtol=1e-6)
        np.testing.assert_array_equal(found[1:], np.sort([x, np.full_like(x, 0.25)], axis=0))
        np.testing.assert_array_equal(steps.numpy(), [rounds(int(number)) for number in n])

    on_rank(body)


def rounds(number):
    """Return how many steps lead from a number to 1."""
    count = 0
    while number != 1:
        number, count = number // 2 if number % 2 == 0 else 3 * number + 1, count + 1
    return count


@triton.jit
def both_swapped(a, b):
    return b, a


@triton.jit
def sums(a, b, c, d):
    return a + c, b + d


@triton.jit
def packed(out, N: tl.constexpr):
    rows = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + rows, tl.map_elementwise(both_swapped, rows, pack=2)[0])
    tl.store(out + N * N + rows, tl.map_elementwise(sums, rows, tl.arange(0, N), pack=2)[0])


def test_packs_are_neighbours_and_blocks_are_broadcast(on_rank):
    """In the last dim; operands come as many at a time as a pack has."""

    def body(ctx):
        out = ctx.empty(128, dtype="int32")
        packed[(1,)](out, N=8)
        found, plain = out.numpy().reshape(2, 8, 8), np.arange(64).reshape(8, 8)
        np.testing.assert_array_equal(found[0], plain.reshape(-1, 2)[:, ::-1].reshape(8, 8))
        np.testing.assert_array_equal(found[1], plain + np.arange(8))

    on_rank(body)


@triton.jit
def of_two_types(x):
    if x > 0:
        return x
    return (x > -100).to(tl.int32)


@triton.jit
def mapped(x_ptr, out, FUNCTION: tl.constexpr, PACK: tl.constexpr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out + tl.arange(0, N), tl.map_elementwise(FUNCTION, x, pack=PACK))


@triton.jit
def loads_too(address):
    return tl.load(address.to(tl.pointer_type(tl.float32)))


@triton.jit
def plain(x):
    return x * 2 + 1


@pytest.mark.parametrize(
    ("function", "pack", "error", "text"),
    [
        (of_two_types, 1, ValueError, "different types"),
        (plain, 3, ValueError, "do not divide into packs of 3"),
        (plain, 0, ValueError, "pack must be >= 1"),
        (plain, 2, TypeError, "positional argument"),
        (loads_too, 1, UnsupportedError, "memory in a function"),
    ],
)
def test_what_cannot_be_mapped_is_refused(on_rank, function, pack, error, text):
    """In Triton's words, or by name."""

    def body(ctx):
        x = ctx.tensor([float(n - 8) for n in range(16)])
        if function is loads_too:
            x = ctx.tensor([x.data_ptr() + 4 * n for n in range(16)])
        mapped[(1,)](x, ctx.empty(16), FUNCTION=function, PACK=pack, N=16)
        ctx.synchronize()

    with pytest.raises(error, match=text):
        on_rank(body)


@pytest.mark.parametrize("grid", [1, 8])
def test_a_mapped_function_costs_what_it_costs_on_blocks(on_rank, grid):
    """As many operations of each unit, in every program."""

    def body(ctx):
        x, counted = ctx.randn(64), []
        for kernel in (mapped, on_block):
            operation = ctx.launch(kernel, (grid,), x, ctx.empty(64), FUNCTION=plain, PACK=1, N=64)
            ctx.synchronize()
            counted.append(list(operation.statistics.operations))
        assert counted[0] == counted[1]

    on_rank(body)


@triton.jit
def on_block(x_ptr, out, FUNCTION: tl.constexpr, PACK: tl.constexpr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out + tl.arange(0, N), FUNCTION(x))


# ---- what kernels ask about their device ----


@triton.jit
def about_the_device(out):
    gdc_wait()
    begin = globaltimer()
    tl.store(out, num_warps())
    tl.store(out + 1, num_threads())
    tl.store(out + 2, smid() == tl.program_id(0))
    tl.store(out + 3, globaltimer() >= begin)
    gdc_launch_dependents()


@triton.jit
def timed(out, x):
    begin = globaltimer()
    values = tl.zeros((1024,), tl.float32)
    for _ in range(100):
        values = tl.exp(values)
    middle = globaltimer()
    total = tl.sum(tl.load(x + tl.arange(0, 1024)))
    tl.store(out + 3 * tl.program_id(0), middle - begin)
    tl.store(out + 3 * tl.program_id(0) + 1, globaltimer() - middle)
    tl.store(out + 3 * tl.program_id(0) + 2, (total + tl.sum(values)).to(tl.int64))


def test_the_timer_moves_with_what_a_program_does(on_rank):
    """Operations take time between two looks, and so do loads."""

    def body(ctx):
        out, x = ctx.zeros(2, 3, dtype=simrank.int64), ctx.zeros(1024)
        timed[(2,)](out, x)
        assert all(computed > 0 and loaded > 0 for computed, loaded, _ in out.tolist())

    on_rank(body)


another_name = globaltimer


@triton.jit
def looked_at(CLOCK: tl.constexpr):
    return CLOCK()


@triton.jit
def timed_by(out, x, CLOCK: tl.constexpr, HOW: tl.constexpr):
    begin = looked_at(CLOCK) if HOW == "callee" else CLOCK()
    total = tl.sum(tl.load(x + tl.arange(0, 1024)))
    end = looked_at(CLOCK) if HOW == "callee" else CLOCK()
    tl.store(x, total)
    tl.store(out + tl.program_id(0), end - begin)


@triton.jit
def timed_by_another_name(out, x, CLOCK: tl.constexpr, HOW: tl.constexpr):
    begin = another_name()
    total = tl.sum(tl.load(x + tl.arange(0, 1024)))
    end = another_name()
    tl.store(x, total)
    tl.store(out + tl.program_id(0), end - begin)


@pytest.mark.parametrize(
    ("kernel", "how"),
    [(timed_by, "parameter"), (timed_by, "callee"), (timed_by_another_name, "")],
)
def test_a_timer_that_is_handed_over_or_renamed_moves_too(on_rank, kernel, how):
    """As a compile-time constant, to a device function, or under another name."""

    def body(ctx):
        out, x = ctx.zeros(2, dtype=simrank.int64), ctx.zeros(1024)
        kernel[(2,)](out, x, CLOCK=globaltimer, HOW=how)
        assert min(out.tolist()) > 0

    on_rank(body)


def test_kernels_ask_about_their_device(on_rank):
    """The launch's warps, the SM, and simulated time."""

    def body(ctx):
        out = ctx.zeros(4, dtype=simrank.int64)
        about_the_device[(1,)](out, num_warps=8)
        assert out.tolist() == [8, 256, 1, 1]

    on_rank(body)
