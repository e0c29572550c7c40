"""Reductions have the types of Triton."""

import numpy as np
import pytest
import triton
import triton.language as tl

import simrank
from simrank.kernels.language import STANDARD
from simrank.kernels.language.elementwise import TYPES_NUMBERS_FIRST
from simrank.kernels.values import types
from simrank.kernels.values.block import Block

DTYPES = (
    tl.int1, tl.int8, tl.int16, tl.int32, tl.int64, tl.uint8, tl.uint16, tl.uint32, tl.uint64,
    tl.float16, tl.bfloat16, tl.float32, tl.float64, tl.float8e4nv, tl.float8e5,
)  # fmt: skip


def ours(dtype):
    element = types.element_type(dtype)
    return Block(element.compute.type(1), element)


def test_sums_have_the_types_of_triton():
    """Integers below 32 bits are widened, int1 as unsigned."""
    wanted = {str(d): str(tl.standard._pick_sum_dtype.fn(d, None) or d) for d in DTYPES}
    assert {str(d): str(STANDARD["sum"](ours(d)[None], 0).dtype) for d in DTYPES} == wanted


def test_a_sum_in_one_bit_is_the_exclusive_or():
    """True and true is false, as the compiler reduces int1: 4 are false, 3 are true."""
    for number in (3, 4):
        ones = Block(np.arange(4)[None] < number, types.int1)
        wanted = number % 2 == 1
        assert bool(STANDARD["sum"](ones, 0, dtype=tl.int1).values) == wanted
        assert bool(STANDARD["cumsum"](ones, 0, dtype=tl.int1).values[0, -1]) == wanted
    assert not STANDARD["cumprod"](ones & Block(np.arange(4)[None] > 0, types.int1), 0).values[0, 0]


def test_extremes_are_widened_only_without_their_places():
    """As tl.max does; the value beside an index keeps the type of its block."""
    for dtype in (tl.int8, tl.float16, tl.bfloat16, tl.uint8, tl.float64):
        block = ours(dtype)[None]
        wide = {8: tl.int32, 16: tl.float32}.get(dtype.primitive_bitwidth, dtype)
        assert STANDARD["max"](block, 0).dtype == wide
        beside = tl.float32 if dtype == tl.bfloat16 and TYPES_NUMBERS_FIRST else dtype
        assert STANDARD["max"](block, 0, return_indices=True)[0].dtype == beside


def test_products_are_widened_where_triton_does():
    """Integers from 3.9 on, and bfloat16 before it, as in sums."""
    for dtype in (tl.int8, tl.float16, tl.bfloat16):
        older = tl.float32 if dtype == tl.bfloat16 else dtype
        newer = tl.int32 if dtype == tl.int8 else dtype
        wanted = older if TYPES_NUMBERS_FIRST else newer
        assert STANDARD["cumprod"](ours(dtype)[None], 0).dtype == wanted


def test_the_largest_are_found_by_way_of_max_which_widens():
    """But where all are asked for: then nothing is left out, and blocks are only sorted."""
    for dtype, wide in ((tl.int8, tl.int32), (tl.float16, tl.float32), (tl.int64, tl.int64)):
        element = types.element_type(dtype)
        block = Block(np.arange(8).astype(element.compute)[None], element)
        assert [STANDARD["topk"](block, k).dtype for k in (1, 4, 8)] == [wide, wide, dtype]
        assert STANDARD["topk"](block, 2).values.tolist() == [[7, 6]]
        assert STANDARD["sort"](block).dtype == dtype
        assert STANDARD["sort"](Block(block.values[:, :1], element)).dtype == wide


@triton.jit
def sums(x, out, N: tl.constexpr):
    lanes = tl.arange(0, N)
    values = tl.load(x + lanes)
    tl.store(out, tl.sum(values, axis=0))
    tl.store(out + 1 + lanes, tl.cumsum(values, axis=0))


@pytest.mark.parametrize(("precision", "total"), [("ieee", 2052), ("hardware", 2050)])
def test_sums_of_halves_are_rounded_on_their_way_as_hardware_does(run, precision, total):
    """2048 + 1 is 2048, and 2048 + 2 is 2050; of the exact sum 2051 the nearest is 2052."""

    def body(rank, ctx):
        x = ctx.from_numpy(np.array([2048, 1, 1, 1], "f2"))
        out = simrank.zeros(5, dtype=simrank.float16)
        sums[(1,)](x, out, N=4)
        found = out.tolist()
        assert (found[0], found[4]) == (total, total)

    run(body, 1, precision=precision)
