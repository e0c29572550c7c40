"""All-to-all over channels: a link to and from every peer, one distance after the other."""

import triton
import triton.language as tl

from simrank.kernels import channels

COLLECTIVE = "all_to_all"


def buffer_elements(
    count: int, world_size: int, num_channels: int, num_slots: int, slot: int
) -> int:
    """Return the elements of symmetric memory that each rank needs."""
    return num_channels * world_size * num_slots * slot


def pad_words(world_size, num_channels, num_slots):
    """Return the words of the signal pad that each rank needs."""
    return num_channels * world_size * channels.flag_words(num_slots)


@triton.jit
def _link(channel, distance, WORLD_SIZE: tl.constexpr):
    return channel * WORLD_SIZE + distance


@triton.jit
def kernel(
    source, target, buffers, pads, count, rank,
    WORLD_SIZE: tl.constexpr, NUM_SLOTS: tl.constexpr, SLOT: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0)
    dtype: tl.constexpr = target.dtype.element_ty
    stride = tl.num_programs(0) * SLOT
    for start in range(channel * SLOT, count, stride):
        offs = start + tl.arange(0, SLOT)
        mask = offs < count
        values = tl.load(source + rank * count + offs, mask=mask, other=0.0)
        tl.store(target + rank * count + offs, values, mask=mask)
    for distance in range(1, WORLD_SIZE):
        # Over the link of a distance a rank sends so far to the right, and receives from the left.
        receiver = (rank + distance) % WORLD_SIZE
        sender = (rank + WORLD_SIZE - distance) % WORLD_SIZE
        link = _link(channel, distance, WORLD_SIZE)
        word = link * (2 * NUM_SLOTS + 2)
        mine = channels.peer_pointer(buffers, rank, dtype) + link * NUM_SLOTS * SLOT
        theirs = channels.peer_pointer(buffers, receiver, dtype) + link * NUM_SLOTS * SLOT
        sent = channels.sent_steps(pads, word, rank, NUM_SLOTS)
        received = channels.received_steps(pads, word, rank, NUM_SLOTS)
        for start in range(channel * SLOT, count, stride):
            offs = start + tl.arange(0, SLOT)
            mask = offs < count
            values = tl.load(source + receiver * count + offs, mask=mask, other=0.0)
            sent = channels.send_slot(
                values, mask, theirs, pads, word, rank, receiver, NUM_SLOTS, sent
            )
            values = channels.receive_slot(
                mask, mine, pads, word, rank, sender, NUM_SLOTS, received
            )
            received += 1
            tl.store(target + sender * count + offs, values, mask=mask)
        channels.keep_sent_steps(pads, word, rank, NUM_SLOTS, sent)
        channels.keep_received_steps(pads, word, rank, NUM_SLOTS, received)
