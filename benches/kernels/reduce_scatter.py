"""Reduce-scatter over plain symmetric memory: each rank reads its part of all others' inputs."""

import triton
import triton.language as tl

from simrank.kernels import channels

COLLECTIVE = "reduce_scatter"


def buffer_elements(
    count: int, world_size: int, num_channels: int, num_slots: int, slot: int
) -> int:
    """Return the elements of symmetric memory that each rank needs."""
    return count * world_size


def pad_words(world_size, num_channels, num_slots):
    """Return the words of the signal pad that each rank needs."""
    return num_channels * channels.barrier_words(world_size)


@triton.jit
def kernel(
    source, target, buffers, pads, count, rank,
    WORLD_SIZE: tl.constexpr, NUM_SLOTS: tl.constexpr, SLOT: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    dtype: tl.constexpr = target.dtype.element_ty
    word = pid * (WORLD_SIZE + 1)
    mine = channels.peer_pointer(buffers, rank, dtype)
    for peer in range(WORLD_SIZE):
        for start in range(pid * SLOT, count, tl.num_programs(0) * SLOT):
            offs = start + tl.arange(0, SLOT)
            values = tl.load(source + peer * count + offs, mask=offs < count)
            tl.store(mine + peer * count + offs, values, mask=offs < count)
    channels.barrier(pads, word, rank, WORLD_SIZE)
    for start in range(pid * SLOT, count, tl.num_programs(0) * SLOT):
        offs = start + tl.arange(0, SLOT)
        total = tl.zeros((SLOT,), tl.float32)
        for peer in range(WORLD_SIZE):
            part = channels.peer_pointer(buffers, peer, dtype) + rank * count
            total += tl.load(part + offs, mask=offs < count, other=0.0).to(tl.float32)
        tl.store(target + offs, total.to(dtype), mask=offs < count)
    channels.barrier(pads, word, rank, WORLD_SIZE)
