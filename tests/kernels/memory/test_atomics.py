"""Atomics take effect one after the other, in every mode."""

import pytest
import triton
import triton.language as tl

import simrank


@triton.jit
def histogram(x, out, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bins = tl.load(x + offs, mask=offs < n, other=0)
    tl.atomic_add(out + bins, 1, mask=offs < n)


@pytest.mark.parametrize("mode", ["batched", "one-by-one", "tasks"])
def test_atomics_count_right_in_every_mode(run, mode):
    """Many lanes and programs on few elements."""

    def body(rank, ctx):
        x = ctx.randint(0, 16, (1000,), dtype=simrank.int32)
        out = ctx.zeros(16, dtype=simrank.int32)
        histogram[(4,)](x, out, 1000, BLOCK=256, mode=mode)
        numbers = x.tolist()
        assert out.tolist() == [numbers.count(value) for value in range(16)]

    run(body, 1)
