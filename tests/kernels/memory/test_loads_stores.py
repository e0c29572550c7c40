"""Loads and stores: what is masked off."""

import math

import numpy as np
import pytest
import triton
import triton.language as tl

import simrank
from simrank.kernels.memory import loads_stores as sectors
from simrank.kernels.memory.addresses import IllegalAccessError

N = 256


@triton.jit
def masked_without_other(x_ptr, out, N: tl.constexpr):
    lanes = tl.arange(0, N)
    tl.store(out + lanes, tl.load(x_ptr + lanes, mask=lanes < 2))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_debug_mode_poisons_masked_off_lanes(on_rank, dtype):
    """NaN or the largest number: a result that uses them shows it."""

    def body(ctx):
        x, out = (ctx.from_numpy(np.zeros(N, dtype)) for _ in range(2))
        masked_without_other[(1,)](x, out, N=N, debug=True)
        found = out.numpy()[2:]
        assert np.isnan(found).all() if dtype == "float32" else (found == 2**31 - 1).all()
        masked_without_other[(1,)](x, out, N=N)
        assert (out.numpy() == 0).all()

    on_rank(body)


@pytest.mark.parametrize("settings", [{"strict": True}, {"precision": "hardware"}], ids=str)
def test_a_context_that_is_strict_poisons_masked_off_lanes(settings):
    """On hardware they hold whatever was there."""
    with simrank.Context(**settings) as ctx:
        x, out = (ctx.from_numpy(np.zeros(N, "f4")) for _ in range(2))
        masked_without_other[(1,)](x, out, N=N)
        assert np.isnan(out.numpy()[2:]).all()


# ---- how many bytes memory moves for those that a kernel asks for ----

sector_waste = sectors.sector_waste


def lanes(*shape, strides, start=0):
    """Return the elements that a block of pointers touches, in one program."""
    axes = np.meshgrid(*(np.arange(size) for size in shape), indexing="ij")
    return (start + sum(axis * stride for axis, stride in zip(axes, strides, strict=True)))[None]


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@pytest.mark.parametrize("start", [0, 5])
def test_what_lies_side_by_side_wastes_nothing(itemsize, start):
    """Whichever dim it lies along, and with gaps between long runs of it."""
    assert sector_waste(lanes(1024, strides=(1,), start=start), itemsize) == 1
    assert sector_waste(lanes(64, 128, strides=(4096, 1)), itemsize) == 1
    assert sector_waste(lanes(128, 64, strides=(1, 4096)), itemsize) == 1


@pytest.mark.parametrize(("stride", "waste"), [(2, 2), (4, 4), (8, 8), (16, 8), (1024, 8)])
def test_a_stride_costs_the_sectors_that_it_touches(stride, waste):
    """Of 32 bytes: eight floats, of which at least one is wanted."""
    assert sector_waste(lanes(256, strides=(stride,)), 4) == waste
    assert sector_waste(lanes(16, 16, strides=(stride * 16, stride)), 4) == waste


def test_short_runs_waste_the_rest_of_their_sector():
    """Two floats side by side are a quarter of what is moved for them."""
    assert sector_waste(lanes(128, 2, strides=(1024, 1)), 4) == 4


def test_one_element_for_all_lanes_is_moved_once():
    """And a scalar wastes nothing: it comes with others."""
    assert sector_waste(np.zeros((1, 64), np.int64), 4) <= 8
    assert sector_waste(np.int64(3), 4) == 1
    assert sector_waste(np.array([3, 9]), 4) == 1


def test_scattered_elements_move_a_sector_each():
    """As an embedding of one column does."""
    rows = np.random.default_rng(0).permutation(1 << 20)[:4096]
    assert sector_waste(rows[None], 4) == pytest.approx(8, rel=0.03)


def test_lines_that_come_back_to_where_they_began_are_no_broadcast():
    """A mirror, a row of tokens between two of padding, and one address for all."""
    mirror = np.abs(2 * np.arange(1024) - 1023)[None]
    assert sector_waste(mirror, 4) <= 2
    tokens = np.arange(1024)[None] * 8
    tokens[0, -1] = 0
    assert sector_waste(tokens, 4) == pytest.approx(8, rel=0.01)
    assert sector_waste(np.full((1, 1024), 7), 4) == 1


def test_holes_in_a_mask_waste_what_strides_do():
    """Every eighth lane alone touches the sectors of all."""
    index = np.arange(1024)[None]
    assert sectors.masked_waste(index, index % 8 == 0, 4) == 8
    assert sectors.masked_waste(index, index < 1000, 4) == 1
    assert sectors.masked_waste(index, index < 512, 4) == 1


@triton.jit
def copy_with_stride(x, y, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at * stride))


@pytest.mark.parametrize("mode", ["batched", "tasks"])
def test_a_strided_copy_takes_longer_than_a_dense_one(run, mode):
    """Eight times the bytes are read for the same elements."""
    found = {}

    def body(rank, ctx, stride):
        n = 1 << 20
        x, y = ctx.ones(n * stride), ctx.empty(n)
        done = ctx.launch(copy_with_stride, (n // 1024,), x, y, stride, BLOCK=1024, mode=mode)
        ctx.synchronize()
        found[stride] = done.cost.duration_ps, done.cost.hbm_bytes

    for stride in (1, 64):
        run(body, 1, stride)
    assert found[64][1] == pytest.approx(4.5 * found[1][1], rel=0.01)
    assert found[64][0] > found[1][0]


# ---- loads that end behind a tensor, in the bytes that its allocation is rounded up to ----


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
        assert f"'_gathers' at test_loads_stores.py:{line}: of 'table'" in finding


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
