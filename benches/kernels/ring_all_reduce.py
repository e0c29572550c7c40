"""Ring all-reduce over channels: reduce-scatter, then all-gather, a slot at a time.

Source:
    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 69(2), 2009; slots and
    credits as in NCCL's Simple protocol.
"""

import triton
import triton.language as tl

from simrank.kernels import channels

COLLECTIVE = "all_reduce"


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
    per_rank = tl.cdiv(count, WORLD_SIZE)
    per_channel = tl.cdiv(per_rank, tl.num_programs(0))
    for start in range(0, per_channel, SLOT):
        within = channel * per_channel + start + tl.arange(0, SLOT)
        inside = (start + tl.arange(0, SLOT) < per_channel) & (within < per_rank)
        for hop in range(2 * WORLD_SIZE - 1):
            chunk = (rank + 2 * WORLD_SIZE - hop) % WORLD_SIZE
            offs = chunk * per_rank + within
            mask = inside & (offs < count)
            if hop == 0:
                values = tl.load(source + offs, mask=mask, other=0.0)
            else:
                values = channels.receive_slot(
                    mask, mine, pads, word, rank, left, NUM_SLOTS, received
                )
                received += 1
                if hop < WORLD_SIZE:
                    ours = tl.load(source + offs, mask=mask, other=0.0)
                    values = (values.to(tl.float32) + ours.to(tl.float32)).to(dtype)
            if hop >= WORLD_SIZE - 1:
                tl.store(target + offs, values, mask=mask)
            if hop < 2 * WORLD_SIZE - 2:
                sent = channels.send_slot(
                    values, mask, theirs, pads, word, rank, right, NUM_SLOTS, sent
                )
    channels.keep_sent_steps(pads, word, rank, NUM_SLOTS, sent)
    channels.keep_received_steps(pads, word, rank, NUM_SLOTS, received)
