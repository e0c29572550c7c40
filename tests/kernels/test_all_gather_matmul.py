"""An all-gather and a product in one kernel: a tile begins once its rows were announced."""

import numpy as np
import pytest
import triton
import triton.language as tl

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem

TILE, K, N = 16, 32, 32


@triton.jit
def all_gather_matmul(
    buffers, pads, b_ptr, c_ptr, epoch,
    RANK: tl.constexpr, WORLD: tl.constexpr, TILES: tl.constexpr,
    TILE: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Multiply the rows of all ranks by this rank's matrix; one program per tile of rows."""
    tile = tl.program_id(0)
    owner = tile // TILES
    mine = tl.load(pads.to(tl.pointer_type(tl.uint64)) + RANK).to(tl.pointer_type(tl.int32))
    if tile == 0:  # My rows are there: tell everybody.
        for peer in tl.static_range(WORLD):
            pad = tl.load(pads.to(tl.pointer_type(tl.uint64)) + peer).to(tl.pointer_type(tl.int32))
            tl.atomic_xchg(pad + RANK, epoch, sem="release", scope="sys")
    while tl.atomic_add(mine + owner, 0, sem="acquire", scope="sys") != epoch:
        pass
    rows = tl.load(buffers.to(tl.pointer_type(tl.uint64)) + owner)
    a_ptr = rows.to(tl.pointer_type(tl.bfloat16))
    offs_m = (tile % TILES) * TILE + tl.arange(0, TILE)
    offs_k, offs_n = tl.arange(0, K), tl.arange(0, N)
    a = tl.load(a_ptr + offs_m[:, None] * K + offs_k[None, :])
    b = tl.load(b_ptr + offs_k[:, None] * N + offs_n[None, :])
    offsets = (tile * TILE + tl.arange(0, TILE))[:, None] * N + offs_n[None, :]
    tl.store(c_ptr + offsets, tl.dot(a, b))


def values(rank, *shape):
    return np.random.default_rng(rank).standard_normal(shape).astype(np.float32)


@pytest.mark.ranks(4, races="error")
def test_every_rank_has_the_product_with_the_rows_of_all(ctx, rank, world_size):
    """In two epochs, without a reset of the flags between them; no access races."""
    tiles = 2
    dist.init_process_group("nccl")
    buffer = symm_mem.empty(tiles * TILE * K, dtype=simrank.bfloat16, device="cuda")
    handle = symm_mem.rendezvous(buffer)
    b = ctx.from_numpy(values(100 + rank, K, N)).to(ctx.bfloat16).cuda()
    for epoch in (1, 2):
        own = ctx.from_numpy(values(10 * epoch + rank, tiles * TILE * K)).to(ctx.bfloat16)
        buffer.copy_(own)
        c = ctx.empty(world_size * tiles * TILE, N)
        operation = all_gather_matmul[(world_size * tiles,)](
            handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev, b, c, epoch,
            RANK=rank, WORLD=world_size, TILES=tiles, TILE=TILE, K=K, N=N,
        )  # fmt: skip
        found = c.numpy()
        assert operation.mode == "tasks"
        every = [values(10 * epoch + peer, tiles * TILE, K) for peer in range(world_size)]
        rows = ctx.from_numpy(np.concatenate(every)).to(ctx.bfloat16).float().numpy()
        assert np.allclose(found, rows @ b.float().numpy(), atol=1e-4)
        dist.barrier()
