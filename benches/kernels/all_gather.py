"""All-gather around a ring of channels: each rank passes on what it has received."""

import triton
import triton.language as tl

from simrank.kernels import channels

COLLECTIVE = "all_gather"


def buffer_elements(
    count: int, world_size: int, num_channels: int, num_slots: int, slot: int
) -> int:
    """Return the elements of symmetric memory that each rank needs."""
    return num_channels * num_slots * slot


def pad_words(world_size, num_channels, num_slots):
    """Return the words of the signal pad that each rank needs."""
    return num_channels * channels.flag_words(num_slots)


@triton.jit
def kernel(
    source, target, buffers, pads, count, rank,
    WORLD_SIZE: tl.constexpr, NUM_SLOTS: tl.constexpr, SLOT: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0)
    dtype: tl.constexpr = target.dtype.element_ty
    right = (rank + 1) % WORLD_SIZE
    left = (rank + WORLD_SIZE - 1) % WORLD_SIZE
    word = channel * (2 * NUM_SLOTS + 2)
    mine = channels.peer_pointer(buffers, rank, dtype) + channel * NUM_SLOTS * SLOT
    theirs = channels.peer_pointer(buffers, right, dtype) + channel * NUM_SLOTS * SLOT
    sent = channels.sent_steps(pads, word, rank, NUM_SLOTS)
    received = channels.received_steps(pads, word, rank, NUM_SLOTS)
    for start in range(channel * SLOT, count, tl.num_programs(0) * SLOT):
        offs = start + tl.arange(0, SLOT)
        mask = offs < count
        for hop in range(WORLD_SIZE):
            part = (rank + WORLD_SIZE - hop) % WORLD_SIZE
            if hop == 0:
                values = tl.load(source + offs, mask=mask, other=0.0)
            else:
                values = channels.receive_slot(
                    mask, mine, pads, word, rank, left, NUM_SLOTS, received
                )
                received += 1
            tl.store(target + part * count + offs, values, mask=mask)
            if hop < WORLD_SIZE - 1:
                sent = channels.send_slot(
                    values, mask, theirs, pads, word, rank, right, NUM_SLOTS, sent
                )
    channels.keep_sent_steps(pads, word, rank, NUM_SLOTS, sent)
    channels.keep_received_steps(pads, word, rank, NUM_SLOTS, received)
