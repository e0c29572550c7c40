"""Published symmetric-memory kernels, unmodified in style: their signals are inline PTX."""

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank.errors import DeadlockError

from . import published


def inputs_of(num_ranks, numel):
    """Return what each rank contributes, in bfloat16."""
    generator = np.random.default_rng(7)
    return generator.standard_normal((num_ranks, numel)).astype(ml_dtypes.bfloat16)


def summed(values):
    """Return the sum in rank order, in float32, rounded once."""
    total = np.zeros(values.shape[1], np.float32)
    for row in values:
        total += row.astype(np.float32)
    return total.astype(ml_dtypes.bfloat16)


def shared(ctx, values):
    """Return a symmetric buffer with a rank's values, and its handle."""
    dist.init_process_group("nccl")
    buffer = symm_mem.empty(len(values), dtype=simrank.bfloat16, device="cuda")
    buffer.copy_(ctx.from_numpy(values))
    return buffer, symm_mem.rendezvous(buffer, "default_pg")


SIZES = [
    pytest.param((8, 24), 24 * 64 * 3 + 5, marks=pytest.mark.slow),
    pytest.param((8, 24), 640, marks=pytest.mark.slow),
    ((2, 3), 500),
    ((4, 2), 128),
]


@pytest.mark.parametrize(("size", "numel"), SIZES)
def test_a_one_shot_all_reduce_is_exact(run, size, numel):
    """Every program of every rank meets its peers at two barriers; up to 8 ranks x 24 programs."""
    num_ranks, num_programs = size
    values = inputs_of(num_ranks, numel)

    def body(rank, ctx):
        _, handle = shared(ctx, values[rank])
        out = ctx.empty(numel, dtype=simrank.bfloat16)
        for _ in range(2):  # The barriers leave the signal pads as they were.
            published.one_shot_all_reduce[(num_programs,)](
                handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev, out, numel,
                rank=rank, world_size=num_ranks, BLOCK_SIZE=64,
            )  # fmt: skip
        assert np.array_equal(out.numpy(), summed(values))
        assert handle.get_signal_pad(rank).sum().item() == 0

    run(body, num_ranks)


@pytest.mark.parametrize("size", [pytest.param((8, 24), marks=pytest.mark.slow), (2, 3)])
def test_a_two_shot_all_reduce_is_exact(run, size):
    """In place: a host read of the buffer waits for the kernel that got only addresses."""
    num_ranks, num_programs = size
    numel = num_ranks * num_programs * 32 * 2
    values = inputs_of(num_ranks, numel)

    def body(rank, ctx):
        buffer, handle = shared(ctx, values[rank])
        published.two_shot_all_reduce[(num_programs,)](
            handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev, numel,
            rank=rank, world_size=num_ranks, BLOCK_SIZE=32,
        )  # fmt: skip
        assert np.array_equal(buffer.numpy(), summed(values))

    run(body, num_ranks)


def test_a_rank_that_does_not_launch_is_named_by_the_programs_that_wait(run):
    """Kernel, programs and line, instead of a machine that hangs."""
    values = inputs_of(2, 128)

    def body(rank, ctx):
        _, handle = shared(ctx, values[rank])
        out = ctx.empty(128, dtype=simrank.bfloat16)
        if rank:
            published.one_shot_all_reduce[(2,)](
                handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev, out, 128,
                rank=rank, world_size=2, BLOCK_SIZE=64,
            )  # fmt: skip
        ctx.synchronize()

    with pytest.raises(DeadlockError) as caught:
        run(body, 2)
    text = str(caught.value)
    assert "programs 0-1 wait for a change of bytes 0, 8 of a buffer of its own device" in text
    assert "kernel 'one_shot_all_reduce'" in text
    assert "published.py:" in text


@triton.jit
def grid_sum(x, counter, partial, out, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(partial + pid, tl.sum(tl.load(x + pid * BLOCK + tl.arange(0, BLOCK))))
    published.arrive_gmem_barrier(counter, 1, "release", "gpu")
    if pid == 0:
        published.wait_gmem_barrier(counter, tl.num_programs(0), "acquire", "gpu", "ge")
        total = 0.0
        for i in range(tl.num_programs(0)):
            total += tl.load(partial + i)
        tl.store(out, total)


def test_programs_of_one_grid_meet_at_a_counter(run):
    """One waits until all others have arrived."""

    def body(rank, ctx):
        x = ctx.arange(64, dtype=simrank.float32)
        counter, out = ctx.zeros(1, dtype=simrank.int32), ctx.zeros(1)
        operation = grid_sum[(8,)](x, counter, ctx.zeros(8), out, BLOCK=8)
        assert out.item() == 64 * 63 / 2
        assert operation.mode == "tasks"

    run(body, 1)


@triton.jit
def send_and_receive(buffer_ptrs, signal_ptrs, out, rank, steps, BLOCK: tl.constexpr):
    buffers = buffer_ptrs.to(tl.pointer_type(tl.uint64))
    signals = signal_ptrs.to(tl.pointer_type(tl.uint64))
    offs = tl.arange(0, BLOCK)
    theirs = tl.load(buffers + 1 - rank).to(tl.pointer_type(tl.float32))
    mine = tl.load(buffers + rank).to(tl.pointer_type(tl.float32))
    their_flag = tl.load(signals + 1 - rank).to(tl.pointer_type(tl.int64))
    my_flag = tl.load(signals + rank).to(tl.pointer_type(tl.int64))
    total = tl.zeros((BLOCK,), tl.float32)
    for step in range(steps):
        if rank == 0:
            tl.store(theirs + offs, offs + 1.0 * step)
            published.fence_and_remote_store(their_flag, (step + 1).to(tl.int64))
            published.wait_ge(my_flag, (step + 1).to(tl.int64))
        else:
            published.wait_ge(my_flag, (step + 1).to(tl.int64))
            total += tl.load(mine + offs)
            published.fence_and_remote_store(their_flag, (step + 1).to(tl.int64))
    tl.store(out + offs, total)


def test_a_fence_and_a_store_signal_that_data_has_arrived(run):
    """Sender and receiver take turns."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer = symm_mem.empty(16)
        handle = symm_mem.rendezvous(buffer)
        out = ctx.zeros(16)
        send_and_receive[(1,)](
            handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev, out, rank, 5, BLOCK=16
        )
        if rank:
            assert out.tolist() == [5.0 * i + 10 for i in range(16)]

    run(body, 2)
