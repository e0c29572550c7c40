"""Symmetric memory: what streams and programs of several ranks do is ordered by happens-before."""

import numpy as np
import pytest
import triton
import triton.language as tl

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank import multiprocessing as mp
from simrank.errors import RaceError, SpawnException
from simrank.kernels import channels
from simrank.kernels.races.findings import ProgramRaceError
from simrank.kernels.races.operations import elements_of


@triton.jit
def add_all(pointers, out, N: tl.constexpr, WORLD: tl.constexpr):
    at = tl.arange(0, N)
    total = tl.zeros((N,), tl.float32)
    for rank in tl.static_range(WORLD):
        total += tl.load(channels.peer_pointer(pointers, rank, tl.float32) + at)
    tl.store(out + at, total)


def by_signals(ctx, handle, lock):
    others = [rank for rank in range(handle.world_size) if rank != handle.rank]
    for other in others:
        handle.put_signal(other, channel=1)
    for other in others:
        handle.wait_signal(other, channel=1)


def by_messages(ctx, handle, lock):
    right, left = (handle.rank + 1) % handle.world_size, (handle.rank - 1) % handle.world_size
    for _ in range(handle.world_size - 1):  # Around the ring: all are behind all.
        ops = [(dist.isend, ctx.zeros(1), right), (dist.irecv, ctx.zeros(1), left)]
        for work in dist.batch_isend_irecv([dist.P2POp(*op) for op in ops]):
            work.wait()


def by_host_barrier(ctx, handle, lock):
    ctx.synchronize()
    lock.wait()


# How the streams of all ranks come behind each other.
WAYS = {
    "symmetric barrier": lambda ctx, handle, lock: handle.barrier(),
    "signals": by_signals,
    "barrier": lambda ctx, handle, lock: dist.barrier(),
    "all_reduce": lambda ctx, handle, lock: dist.all_reduce(ctx.zeros(1)),
    "host read": lambda ctx, handle, lock: dist.all_reduce(x := ctx.zeros(1)) or x.item(),
    "messages": by_messages,
    "host barrier": by_host_barrier,
}


def copy_then_read(rank, ctx, how, dropped, kind, lock):
    """Write the own buffer, read all of them, twice; leave one meeting out."""
    dist.init_process_group("nccl")
    world = dist.get_world_size()
    buffer, source, out = symm_mem.empty(64), ctx.full((64,), float(rank)), ctx.zeros(64)
    handle = symm_mem.rendezvous(buffer)
    peer = handle.get_buffer((rank + 1) % world, (64,), simrank.float32)
    for _ in range(2):
        buffer.copy_(source)
        if dropped != "before":
            WAYS[how](ctx, handle, lock)
        if kind == "kernel":
            add_all[(1,)](handle.buffer_ptrs_dev, out, N=64, WORLD=world)
        elif kind == "copy":
            out.copy_(peer)
        else:
            out = peer + 1
        if dropped != "after":
            WAYS[how](ctx, handle, lock)
    ctx.synchronize()
    wanted = sum(range(world)) if kind == "kernel" else (rank + 1) % world + (kind == "sum")
    if dropped is None:
        assert (out.numpy() == wanted).all()


@pytest.mark.parametrize("how", WAYS)
def test_whatever_orders_ranks_is_known(run, how):
    """No finding, whoever reads and however they meet."""
    for kind in ("kernel", "copy", "sum"):
        context = run(copy_then_read, 4, how, None, kind, mp.Barrier(4), races="error")
        assert context.races == []


@pytest.mark.parametrize("dropped", ["before", "after"])
@pytest.mark.parametrize("kind", ["kernel", "copy", "sum"])
def test_a_meeting_that_is_left_out_is_found_in_the_first_run(run, dropped, kind):
    """That one rank was earlier in simulated time is no order."""
    races = run(copy_then_read, 4, "symmetric barrier", dropped, kind, None, races="report").races
    assert races
    assert all(isinstance(race, ProgramRaceError) for race in races)
    lines = str(races[0]).splitlines()
    assert "nothing orders two ranks (allocated at test_operations.py:" in lines[0]
    assert {lines[1].split()[0], lines[2].split()[0]} & {"copy_"}
    assert (
        lines[3] == "  to fix: let a barrier, a signal or a collective of both ranks stand between"
    )


def test_such_a_race_may_be_an_error(run):
    """Raised in the rank whose access is the second."""
    with pytest.raises(SpawnException) as caught:
        run(copy_then_read, 2, "symmetric barrier", "before", "kernel", None, races="error")
    assert isinstance(caught.value.errors[min(caught.value.errors)], RaceError)


def test_a_broadcast_orders_only_what_is_behind_its_root(run):
    """Others may come to it later than their peers read: they are not waited for."""

    def body(rank, ctx, root):
        dist.init_process_group("nccl")
        buffer = symm_mem.empty(8)
        handle = symm_mem.rendezvous(buffer)
        if rank == 0:
            buffer.fill_(1.0)
        dist.broadcast(ctx.zeros(1), src=root)
        if rank == 1:
            handle.get_buffer(0, (8,), simrank.float32).clone()
        ctx.synchronize()

    assert run(body, 3, 0, races="report").races == []
    assert len(run(body, 3, 2, races="report").races) == 1


def test_bytes_that_lie_between_are_not_touched(run):
    """Every rank has its own column."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer = symm_mem.empty(8, 2)
        handle = symm_mem.rendezvous(buffer)
        first = handle.get_buffer(0, (8, 2), simrank.float32)
        first[:, rank].fill_(float(rank))
        ctx.synchronize()
        dist.barrier()
        assert first.cpu().tolist() == [[0.0, 1.0]] * 8

    run(body, 2, races="error")


def test_elements_of_a_view_are_those_that_it_has(run):
    """In elements where they are aligned, else in bytes."""

    def body(rank, ctx):
        x = ctx.zeros(4, 6)
        index, itemsize = elements_of(x[1:3, ::2])
        assert (index.tolist(), itemsize) == ([6, 8, 10, 12, 14, 16], 4)
        assert elements_of(x[:0])[0].size == 0
        np.testing.assert_array_equal(elements_of(x.t())[0], x.t().array.reshape(-1).argsort() * 0
                                      + np.arange(24).reshape(4, 6).T.reshape(-1))  # fmt: skip

    run(body, 1)


@triton.jit
def double_and_signal(x, y, flag, BEFORE: tl.constexpr):
    at = tl.arange(0, 64)
    if BEFORE:
        tl.atomic_xchg(flag, 1, sem="release", scope="sys")
    tl.store(y + at, tl.load(x + at) * 2)
    if not BEFORE:
        tl.atomic_xchg(flag, 1, sem="release", scope="sys")


@triton.jit
def wait_by_atomic(flag):
    while tl.atomic_add(flag, 0, sem="acquire", scope="sys") != 1:
        pass


@triton.jit
def wait_by_load(flag):
    while tl.load(flag, volatile=True) != 1:
        pass


def copy_behind_a_wait(rank, ctx, how, wait):
    """A kernel, or a copy, and then a flag; on a side stream a kernel that waits, and a copy."""
    x, y, out, values = ctx.ones(64), ctx.zeros(64), ctx.zeros(64), ctx.full((64,), 2.0)
    flag, other = (ctx.zeros(1, dtype=ctx.int32) for _ in range(2))
    side = ctx.Stream()
    side.wait_stream(ctx.cuda.current_stream())
    if how == "another flag":
        other.fill_(1)
    if how.startswith("kernel"):
        double_and_signal[(1,)](x, y, flag, BEFORE=how == "kernel that signals before it stores")
    elif how == "flag before the copy":
        flag.fill_(1)
        y.copy_(values)
    else:
        y.copy_(values)
        flag.fill_(1)
    with ctx.stream(side):
        wait[(1,)](other if how == "another flag" else flag)
        out.copy_(y)
    ctx.cuda.current_stream().wait_stream(side)
    if how in ("kernel", "copy"):
        assert out.tolist() == [2.0] * 64


@pytest.mark.parametrize("wait", [wait_by_atomic, wait_by_load], ids=lambda k: k.__name__)
@pytest.mark.parametrize("how", ["kernel", "copy"])
def test_a_copy_behind_a_kernel_that_waits_is_behind_what_that_has_waited_for(run, how, wait):
    """No event says so: the kernel on the side stream is there to wait for the flag."""
    assert run(copy_behind_a_wait, 1, how, wait, races="error").races == []


@pytest.mark.parametrize(
    "how", ["kernel that signals before it stores", "flag before the copy", "another flag"]
)
def test_a_copy_behind_a_kernel_that_waits_for_something_else_races(run, how):
    """What it has waited for does not come behind what is copied."""
    races = run(copy_behind_a_wait, 1, how, wait_by_atomic, races="report").races
    assert races
    assert any("copy_ reads" in str(race) or "copy_ of rank 0 reads" in str(race) for race in races)
