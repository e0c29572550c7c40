"""Kernels that are right, each with mistakes that can be planted in it: all are races.

What a kernel leaves out or relaxes is a constant of it, so that both forms are one source.
"""

import numpy as np
import triton
import triton.language as tl

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank.kernels import channels


@triton.jit
def _pass_on(theirs, mine, their_flag, my_flag, out, value, N: tl.constexpr, BUG: tl.constexpr):
    at = tl.arange(0, N)
    if BUG == "signal before the store":
        tl.atomic_xchg(their_flag, 1, sem="release", scope="sys")
    tl.store(theirs + at, value + at)
    if BUG == "relaxed signal":
        tl.atomic_xchg(their_flag, 1, sem="relaxed", scope="sys")
    elif BUG == "signal for one device":
        tl.atomic_xchg(their_flag, 1, sem="release", scope="gpu")
    elif BUG != "signal before the store":
        tl.atomic_xchg(their_flag, 1, sem="release", scope="sys")
    if BUG == "relaxed wait":
        while tl.atomic_add(my_flag, 0, sem="relaxed", scope="sys") != 1:
            pass
    elif BUG != "no wait":
        while tl.atomic_add(my_flag, 0, sem="acquire", scope="sys") != 1:
            pass
    tl.store(out + at, tl.load(mine + at))


def pass_on(ctx, rank, size, bug):
    """Put into the next rank's buffer, signal, and read what came."""
    world, handle, buffer = _symmetric(size)
    right = (rank + 1) % world
    out = ctx.zeros(size)
    _pass_on[(1,)](
        handle.get_buffer(right, (size,), simrank.float32), buffer, handle.get_signal_pad(right),
        handle.get_signal_pad(rank), out, float(rank), N=size, BUG=bug or "",
    )  # fmt: skip
    return out, (rank - 1) % world + np.arange(size)


@triton.jit
def _one_shot(buffers, pads, out, rank, WORLD: tl.constexpr, N: tl.constexpr, BUG: tl.constexpr):
    at = tl.arange(0, N)
    own = channels.peer_pointer(buffers, rank, tl.float32)
    tl.store(own + at, at + rank + 1.0)
    if BUG != "no barrier before the loads":
        channels.barrier(pads, 0, rank, WORLD)
    total = tl.zeros((N,), tl.float32)
    for peer in tl.static_range(WORLD):
        total += tl.load(channels.peer_pointer(buffers, peer, tl.float32) + at)
    tl.store(out + at, total)
    if BUG != "no barrier after the loads":
        channels.barrier(pads, 0, rank, WORLD)
    tl.store(own + at, tl.zeros((N,), tl.float32))


def one_shot(ctx, rank, size, bug):
    """Read all ranks' buffers between two barriers, and clear the own one."""
    world, handle, _ = _symmetric(size)
    out = ctx.zeros(size)
    _one_shot[(1,)](
        handle.buffer_ptrs_dev,
        handle.signal_pad_ptrs_dev,
        out,
        rank,
        WORLD=world,
        N=size,
        BUG=bug or "",
    )
    return out, world * (np.arange(size) + 1) + sum(range(world))


@triton.jit
def _count(buffers, pads, out, rank, WORLD: tl.constexpr, N: tl.constexpr, BUG: tl.constexpr):
    at = tl.arange(0, N)
    slot = rank
    if BUG == "wrong slot":
        slot = rank // 2
    for peer in tl.static_range(WORLD):
        theirs = channels.peer_pointer(buffers, peer, tl.float32)
        tl.store(theirs + slot * N + at, at + rank + 1.0)
        tl.atomic_add(channels.peer_pointer(pads, peer, tl.int32), 1, sem="release", scope="sys")
    wanted = WORLD
    if BUG == "waits for one less":
        wanted = WORLD - 1
    flag = channels.peer_pointer(pads, rank, tl.int32)
    while tl.atomic_add(flag, 0, sem="acquire", scope="sys") < wanted:
        pass
    own = channels.peer_pointer(buffers, rank, tl.float32)
    total = tl.zeros((N,), tl.float32)
    for peer in tl.static_range(WORLD):
        total += tl.load(own + peer * N + at)
    tl.store(out + at, total)


def count(ctx, rank, size, bug):
    """Put into a slot at every rank, and wait until as many have come as there are ranks."""
    world, handle, _ = _symmetric(size * 8)
    out = ctx.zeros(size)
    _count[(1,)](
        handle.buffer_ptrs_dev,
        handle.signal_pad_ptrs_dev,
        out,
        rank,
        WORLD=world,
        N=size,
        BUG=bug or "",
    )
    return out, world * (np.arange(size) + 1) + sum(range(world))


@triton.jit
def _last_reduces(x, parts, counter, out, N: tl.constexpr, BUG: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(parts + pid, tl.sum(tl.load(x + pid * N + tl.arange(0, N))))
    if BUG == "relaxed counter":
        turn = tl.atomic_add(counter, 1, sem="relaxed")
    elif BUG == "counter that only releases":
        turn = tl.atomic_add(counter, 1, sem="release")
    elif BUG == "counter that only acquires":
        turn = tl.atomic_add(counter, 1, sem="acquire")
    else:
        turn = tl.atomic_add(counter, 1, sem="acq_rel")
    last = tl.num_programs(0) - 1
    if BUG == "reduces one too early":
        last = last - 1
    if turn == last:
        total = 0.0
        for other in range(tl.num_programs(0)):
            total += tl.load(parts + other)
        tl.store(out, total)


def last_reduces(ctx, rank, size, bug):
    """Let the last program of a grid add up what all have stored."""
    parts, out = ctx.zeros(12), ctx.zeros(1)
    counter = ctx.zeros(1, dtype=ctx.int32)
    _last_reduces[(12,)](ctx.ones(12 * size), parts, counter, out, N=size, BUG=bug or "")
    return out, np.array([12 * size])


@triton.jit
def _smooth(x, y, n, N: tl.constexpr, BUG: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    right = tl.load(x + (at + 1) % n)
    if BUG == "in place":
        tl.store(x + at, tl.load(x + at) + right)
    elif BUG == "overlapping blocks":
        tl.store(y + at + tl.program_id(0) % 2, tl.load(x + at) + right)
    else:
        tl.store(y + at, tl.load(x + at) + right)


def smooth(ctx, rank, size, bug):
    """Add to every element the one behind it, into another tensor."""
    n = 6 * size
    x, y = ctx.arange(n).to(ctx.float32), ctx.zeros(n + 1)
    _smooth[(6,)](x, y, n, N=size, BUG=bug or "")
    wanted = np.arange(n) + np.roll(np.arange(n), -1)
    return y[:n], wanted


@triton.jit
def _gather(buffers, out, WORLD: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    for peer in tl.static_range(WORLD):
        tl.store(
            out + peer * N + at, tl.load(channels.peer_pointer(buffers, peer, tl.float32) + at)
        )


def copy_and_gather(ctx, rank, size, bug):
    """Copy into the own buffer on the stream and let a kernel read all of them, twice."""
    world, handle, buffer = _symmetric(size)
    out = ctx.zeros(world * size)
    for step in range(2):
        buffer.copy_(ctx.full((size,), float(rank + step)))
        if bug != "no barrier before the kernel":
            handle.barrier()
        _gather[(1,)](handle.buffer_ptrs_dev, out, WORLD=world, N=size)
        if bug != "no barrier behind the kernel":
            handle.barrier()
    return out, np.repeat(np.arange(world) + 1, size)


def signalled_copy(ctx, rank, size, bug):
    """Copy into the next rank's buffer, and read what the one before has copied here."""
    world, handle, buffer = _symmetric(size)
    right, left = (rank + 1) % world, (rank - 1) % world
    source = ctx.full((size,), float(rank))
    if bug == "signal before the copy":
        handle.put_signal(right)
    handle.get_buffer(right, (size,), simrank.float32).copy_(source)
    if bug != "signal before the copy":
        handle.put_signal(right)
    if bug == "no wait for the signal":
        out = buffer.clone()
        handle.wait_signal(left)
    else:
        handle.wait_signal(left)
        out = buffer.clone()
    return out, np.full(size, left)


@triton.jit
def _ring(theirs, mine, their_flag, my_flag, out, rank, WORLD: tl.constexpr, N: tl.constexpr,
          BUG: tl.constexpr):  # fmt: skip
    at = tl.arange(0, N)
    value = at + rank + 1.0
    total = value
    for step in range(WORLD - 1):
        slot = step
        if BUG == "one slot for all steps":
            slot = 0
        tl.store(theirs + slot * N + at, value)
        tl.atomic_xchg(their_flag, step + 1, sem="release", scope="sys")
        wanted = step + 1
        if BUG == "waits for the step before":
            wanted = step
        while tl.atomic_add(my_flag, 0, sem="acquire", scope="sys") < wanted:
            pass
        value = tl.load(mine + slot * N + at)
        total += value
    tl.store(out + at, total)


def ring(ctx, rank, size, bug):
    """Pass values around a ring, a slot for each step, and add them up."""
    world, handle, buffer = _symmetric(size * 8)
    right = (rank + 1) % world
    out = ctx.zeros(size)
    _ring[(1,)](
        handle.get_buffer(right, (size * 8,), simrank.float32), buffer,
        handle.get_signal_pad(right), handle.get_signal_pad(rank), out, rank,
        WORLD=world, N=size, BUG=bug or "",
    )  # fmt: skip
    return out, world * (np.arange(size) + 1) + sum(range(world))


def _symmetric(size):
    dist.init_process_group("nccl")
    buffer = symm_mem.empty(size)
    return dist.get_world_size(), symm_mem.rendezvous(buffer), buffer


# By program: its mistakes, and on how many ranks at least they are any.
PROGRAMS = {
    pass_on: (["relaxed signal", "signal for one device", "relaxed wait", "no wait",
               "signal before the store"], 2),
    one_shot: (["no barrier before the loads", "no barrier after the loads"], 2),
    count: (["waits for one less", "wrong slot"], 3),
    last_reduces: (["relaxed counter", "counter that only releases", "counter that only acquires",
                    "reduces one too early"], 1),
    smooth: (["in place", "overlapping blocks"], 1),
    copy_and_gather: (["no barrier before the kernel", "no barrier behind the kernel"], 2),
    signalled_copy: (["signal before the copy", "no wait for the signal"], 2),
    ring: (["one slot for all steps", "waits for the step before"], 3),
}  # fmt: skip
MISTAKES = [(program, bug) for program, (bugs, _) in PROGRAMS.items() for bug in bugs]


def body(rank, ctx, program, size, bug):
    """Run a program on one rank; without a mistake its numbers are checked."""
    out, wanted = program(ctx, rank, size, bug)
    ctx.synchronize()
    if bug is None:
        np.testing.assert_array_equal(out.numpy(), wanted)
