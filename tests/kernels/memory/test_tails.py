"""Loads that end behind a tensor, in the bytes that its allocation is rounded up to."""

import math

import pytest
import triton
import triton.language as tl

import simrank
from simrank.kernels.memory.addresses import IllegalAccessError


@triton.jit
def _gathers(table, x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(table + at // 4)  # No mask: the last tile is wider than the table.
    tl.store(y + at, tl.load(x + row, mask=at < n), mask=at < n)


@triton.jit
def _copies(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at))


@triton.jit
def _one(x, y, index):
    tl.store(y, tl.load(x + index + tl.program_id(0)))


def test_what_is_loaded_past_the_end_and_masked_later_does_no_harm():
    """As on a GPU; a finding names the line."""
    with simrank.Context("hgx_h100") as ctx:
        table, x, y = ctx.arange(3), ctx.arange(3) * 2, ctx.zeros(12)
        for _ in range(2):
            _gathers[(1,)](table, x, y, 12, BLOCK=16)
        assert y.tolist() == [0.0] * 4 + [2.0] * 4 + [4.0] * 4
        (finding,) = (line for line in ctx.findings if "past the end" in line)
        line = _gathers.fn.__code__.co_firstlineno + 3
        assert f"'_gathers' at test_tails.py:{line}: of 'table'" in finding


def test_past_the_end_lies_nobodys_number():
    """NaN, so that a kernel that needs it is seen to be wrong."""
    with simrank.Context("hgx_h100") as ctx:
        y = ctx.zeros(8)
        _copies[(1,)](ctx.ones(5), y, BLOCK=8)
        assert y.tolist()[:5] == [1.0] * 5
        assert all(math.isnan(number) for number in y.tolist()[5:])


def test_behind_the_allocation_is_no_memory():
    """Five numbers take 512 bytes, and not more."""
    with (
        simrank.Context("hgx_h100") as ctx,
        pytest.raises(IllegalAccessError, match=r"load of element 5 of 'x'"),
    ):
        _copies[(1,)](ctx.ones(5), ctx.zeros(256), BLOCK=256)
        ctx.synchronize()


def test_stores_and_single_numbers_past_the_end_are_errors():
    """Nobody masks those."""
    with simrank.Context("hgx_h100") as ctx, pytest.raises(IllegalAccessError, match="store"):
        _copies[(1,)](ctx.ones(8), ctx.zeros(5), BLOCK=8)
        ctx.synchronize()
    for grid in (1, 3):
        with simrank.Context("hgx_h100") as ctx, pytest.raises(IllegalAccessError, match="load"):
            _one[(grid,)](ctx.ones(5), ctx.zeros(1), 5)
            ctx.synchronize()


def test_under_strict_every_bound_is_checked():
    """There, loads past the end are errors, too."""
    with (
        simrank.Context("hgx_h100", strict=True) as ctx,
        pytest.raises(IllegalAccessError, match="load of element 5 of 'x'"),
    ):
        _copies[(1,)](ctx.ones(5), ctx.zeros(8), BLOCK=8)
        ctx.synchronize()
