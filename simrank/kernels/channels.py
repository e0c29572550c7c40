"""Channels between ranks for Triton kernels: slots with credits, and barriers, as in NCCL.

Plain `@triton.jit` functions: they run here, and compile for GPUs, where memory comes from torch's
symmetric memory. A connection is one way, from a sender to a receiver. The receiver has `num_slots`
slots and a flag for each that says what was put there last; the sender has as many flags that say
what was taken last. A sender that is `num_slots` steps ahead waits: that is the back-pressure.
Steps are counted on from launch to launch, so no flag is ever reset.

Flags are words of the signal pads. Those of a connection are `flag_words(num_slots)` words at an
offset that all ranks agree on; those of a barrier are `barrier_words(world_size)`.
"""

from __future__ import annotations

import triton
import triton.language as tl

HAS_POLL = tl.constexpr(hasattr(tl, "atomic_poll"))  # From triton 3.9 on.


def flag_words(num_slots: int) -> int:
    """Return the words of the signal pad per connection on each side."""
    return 2 * num_slots + 2


def barrier_words(world_size: int) -> int:
    """Return the words of the signal pad per barrier of one program."""
    return world_size + 1


# ---- addresses ----


@triton.jit
def peer_pointer(table, peer, dtype: tl.constexpr):
    """Return a pointer to a peer's memory, from a table of addresses."""
    address = tl.load(table.to(tl.pointer_type(tl.int64)) + peer)
    return address.to(tl.pointer_type(dtype))


# ---- flags ----


@triton.jit
def wait_equal(flag, value):
    """Wait until a flag of this rank has a value (acquire)."""
    if HAS_POLL:
        tl.atomic_poll(flag, value, sem="acquire", scope="sys")
    else:
        while tl.atomic_cas(flag, value, value, sem="acquire", scope="sys") != value:
            pass
    tl.debug_barrier()


@triton.jit
def set_flag(flag, value):
    """Set a flag, here or at a peer, after this program's earlier writes (release)."""
    tl.debug_barrier()
    tl.atomic_xchg(flag, value, sem="release", scope="sys")


@triton.jit
def put_signal(pads, word, peer):
    """Set a word of a peer's signal pad from 0 to 1, after the last signal was taken."""
    flag = peer_pointer(pads, peer, tl.int32) + word
    tl.debug_barrier()
    while tl.atomic_cas(flag, 0, 1, sem="release", scope="sys") != 0:
        pass


@triton.jit
def wait_signal(pads, word, rank):
    """Wait until a word of this rank's signal pad is 1, and set it back to 0."""
    flag = peer_pointer(pads, rank, tl.int32) + word
    while tl.atomic_cas(flag, 1, 0, sem="acquire", scope="sys") != 1:
        pass
    tl.debug_barrier()


@triton.jit
def barrier(pads, word, rank, world_size: tl.constexpr):
    """Wait until the same program of every rank calls the barrier.

    What each wrote before is visible to all after. Programs with words of their own do not meet.
    """
    BLOCK: tl.constexpr = triton.next_power_of_2(world_size)
    peers = tl.arange(0, BLOCK)
    mask = peers < world_size
    own = peer_pointer(pads, rank, tl.int32) + word
    round_number = tl.load(own + world_size) + 1
    tl.debug_barrier()
    table = pads.to(tl.pointer_type(tl.int64))
    theirs = tl.load(table + peers, mask=mask, other=0).to(tl.pointer_type(tl.int32))
    tl.atomic_xchg(theirs + word + rank, round_number, mask=mask, sem="release", scope="sys")
    least = round_number - 1
    while least < round_number:
        seen = tl.atomic_add(own + peers, 0, mask=mask, sem="acquire", scope="sys")
        least = tl.min(tl.where(mask, seen, round_number))
    tl.store(own + world_size, round_number)
    tl.debug_barrier()


# ---- slots ----


@triton.jit
def sent_steps(pads, word, rank, num_slots: tl.constexpr):
    """Return the number of steps sent over a connection, over all launches."""
    return tl.load(peer_pointer(pads, rank, tl.int32) + word + 2 * num_slots)


@triton.jit
def received_steps(pads, word, rank, num_slots: tl.constexpr):
    """Return the number of steps received over a connection, over all launches."""
    return tl.load(peer_pointer(pads, rank, tl.int32) + word + 2 * num_slots + 1)


@triton.jit
def keep_sent_steps(pads, word, rank, num_slots: tl.constexpr, step):
    """Store the number of steps sent over a connection, for the next launch."""
    tl.store(peer_pointer(pads, rank, tl.int32) + word + 2 * num_slots, step)


@triton.jit
def keep_received_steps(pads, word, rank, num_slots: tl.constexpr, step):
    """Store the number of steps received over a connection, for the next launch."""
    tl.store(peer_pointer(pads, rank, tl.int32) + word + 2 * num_slots + 1, step)


@triton.jit
def acquire_slot(pads, word, rank, num_slots: tl.constexpr, step):
    """Wait until the receiver has released the slot of a step (sender)."""
    if step >= num_slots:
        credit = peer_pointer(pads, rank, tl.int32) + word + num_slots + step % num_slots
        wait_equal(credit, step - num_slots + 1)


@triton.jit
def commit_slot(pads, word, receiver, num_slots: tl.constexpr, step):
    """Signal the receiver that the slot of a step is filled (sender)."""
    set_flag(peer_pointer(pads, receiver, tl.int32) + word + step % num_slots, step + 1)


@triton.jit
def wait_slot(pads, word, rank, num_slots: tl.constexpr, step):
    """Wait until the slot of a step is filled (receiver)."""
    wait_equal(peer_pointer(pads, rank, tl.int32) + word + step % num_slots, step + 1)


@triton.jit
def release_slot(pads, word, sender, num_slots: tl.constexpr, step):
    """Release the slot of a step to the sender (receiver)."""
    credit = peer_pointer(pads, sender, tl.int32) + word + num_slots + step % num_slots
    set_flag(credit, step + 1)


@triton.jit
def send_slot(values, mask, slots, pads, word, rank, receiver, num_slots: tl.constexpr, step):
    """Store values in the receiver's slot of a step once it is free; return the next step.

    `slots` points to the first of the receiver's slots, each as long as `values`.
    """
    acquire_slot(pads, word, rank, num_slots, step)
    size: tl.constexpr = values.shape[0]
    tl.store(slots + (step % num_slots) * size + tl.arange(0, size), values, mask=mask)
    commit_slot(pads, word, receiver, num_slots, step)
    return step + 1


@triton.jit
def receive_slot(mask, slots, pads, word, rank, sender, num_slots: tl.constexpr, step):
    """Return the values of a step's slot once it is filled, and release the slot.

    `slots` points to the first of this rank's slots, each as long as `mask`. The next step is
    `step + 1`.
    """
    wait_slot(pads, word, rank, num_slots, step)
    size: tl.constexpr = mask.shape[0]
    values = tl.load(slots + (step % num_slots) * size + tl.arange(0, size), mask=mask)
    release_slot(pads, word, sender, num_slots, step)
    return values
