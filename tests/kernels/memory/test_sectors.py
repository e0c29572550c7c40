"""How many bytes memory moves for those that a kernel asks for."""

import numpy as np
import pytest
import triton
import triton.language as tl

from simrank.kernels.memory import loads_stores as sectors

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
