"""Triton-distributed's names in kernels: substituted by module and name, whatever is installed."""

import numpy as np
import pytest
import triton
import triton.language as tl

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank.errors import UnsupportedError

from ..fake_libraries import library_in, symmetric

dl = simt = shmem = hip = None  # Set by the fixture: what kernels call.


@pytest.fixture(autouse=True, scope="module")
def library(tmp_path_factory):
    """Modules of the library's names, without the compiler behind them."""
    yield from library_in(globals(), tmp_path_factory)


@triton.jit
def gather(buffer, signal, out, N: tl.constexpr):
    me, size = dl.rank(), dl.num_ranks()
    lanes = tl.arange(0, N)
    for step in range(1, size):
        peer = (me + step) % size
        there = dl.symm_at(buffer, peer)
        tl.store(there + me * N + lanes, tl.load(buffer + me * N + lanes))
        dl.notify(signal + me, peer, signal=3, sig_op="add", comm_scope="intra_node")
    tl.store(signal + me, 3)
    token = dl.wait(signal, size, "sys", "acquire", waitValue=3)
    buffer = dl.consume_token(buffer, token)
    for peer in range(size):
        tl.store(out + peer * N + lanes, tl.load(buffer + peer * N + lanes))


@triton.jit
def signal_each(signal, out, world_size):
    with simt.simt_exec_region() as (thread, num_threads):
        if thread < world_size:
            add = shmem.NVSHMEM_SIGNAL_ADD
            shmem.signal_op(signal + dl.rank(), 5, add, thread)
            shmem.signal_wait_until(signal + thread, shmem.NVSHMEM_CMP_GE, 5)
    tl.store(out, num_threads)


@triton.jit
def warps_put(buffer, world_size, N: tl.constexpr):
    me = dl.rank()
    with simt.simt_exec_region() as (thread, _):
        warp = thread // 32
        if warp < world_size and warp != me:
            shmem.putmem_nbi_warp(buffer + me * N, buffer + me * N, N * 4, warp)
    shmem.barrier_all_block()


@triton.jit
def warps_put_and_signal(buffer, signal, peer):
    with simt.simt_exec_region() as (thread, _):
        if thread < 96:
            add = shmem.NVSHMEM_SIGNAL_ADD
            shmem.putmem_signal_warp(buffer, buffer, 4, signal, 5, add, peer)
    shmem.signal_wait_until(signal, shmem.NVSHMEM_CMP_GE, 15)


@triton.jit
def signal_twice(signal, out):
    if dl.rank() == 0:
        dl.wait(signal, 2, "sys", "acquire", waitValue=1)
        tl.store(out, 1)
    else:
        dl.notify(signal, 0, signal=1)
        for _ in range(20):
            tl.load(signal, volatile=True)
        dl.notify(signal, 0, signal=2)
        dl.notify(signal + 1, 0, signal=1)


@triton.jit
def wait_for_minus_one(signal, out):
    dl.wait(signal.to(tl.pointer_type(tl.uint32)), 1, "sys", "acquire", waitValue=-1)
    tl.store(out, 1)


@triton.jit
def notify_what_is_given(signal):
    dl.notify(signal, 0)


@triton.jit
def symm_at_of_a_block(signal):
    tl.store(dl.symm_at(signal + tl.arange(0, 2), 0), 1)


@triton.jit
def put_of_a_block(signal):
    lanes = signal + tl.arange(0, 2)
    shmem.putmem_nbi_warp(lanes, lanes, 4, 0)


@triton.jit
def look_at_all(buffer, out):
    peer = tl.program_id(0)
    tl.store(out + peer, tl.load(dl.symm_at(buffer, peer)))


@pytest.mark.parametrize("world_size", [2, 8])
def test_what_is_notified_is_there_after_the_wait(run, world_size):
    """Stores through a peer's pointer come before the signal."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer = symmetric((world_size, 16), simrank.float32)
        signal, out = symmetric(world_size, simrank.int64), ctx.zeros(world_size, 16)
        buffer[rank].fill_(rank + 1.0)
        gather[(1,)](buffer, signal, out, 16)
        np.testing.assert_array_equal(out.numpy()[:, 3], np.arange(1, world_size + 1))

    run(body, world_size, seed=4, races="error")


def test_each_thread_signals_and_waits_for_a_peer_of_its_own(run):
    """As many threads as ranks do; a launch of two warps has 64."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        signal, out = symmetric(8, simrank.int64), simrank.zeros(1, dtype=simrank.int32)
        signal_each[(1,)](signal, out, 8, num_warps=2)
        assert out.item() == 64
        assert signal.tolist() == [5] * 8

    run(body, 8, seed=4, races="error")


def test_a_put_of_a_warp_is_done_once_for_each_warp(run):
    """With the arguments of its first thread."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer = symmetric((4, 16), simrank.float32)
        buffer[rank].fill_(rank + 1.0)
        warps_put[(1,)](buffer, 4, 16)
        np.testing.assert_array_equal(buffer.numpy()[:, 7], [1, 2, 3, 4])

    run(body, 4, races="error")


def test_every_warp_adds_to_a_signal_that_warps_add_to(run):
    """Three of four, with the same arguments."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer, signal = symmetric(4, simrank.float32), symmetric(1, simrank.int64)
        warps_put_and_signal[(1,)](buffer, signal, 1 - rank)
        assert signal.item() == 15

    run(body, 2)


def test_a_signal_that_has_been_waited_for_may_go_on(run):
    """While others are still waited for: each is looked at by a thread of its own."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        signal, out = symmetric(2, simrank.int64), ctx.zeros(1)
        signal_twice[(1,)](signal, out)
        assert out.item() == 1 - rank

    run(body, 2)


def test_the_value_that_is_waited_for_is_one_of_the_signals_type(run):
    """As a register holds it: minus one is the largest unsigned number."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        signal, out = symmetric(1, simrank.int32), ctx.zeros(1)
        signal.fill_(-1)
        wait_for_minus_one[(1,)](signal, out)
        assert out.item() == 1

    run(body, 1)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (notify_what_is_given, "the dtype of signal ptr should be uint64"),
        (symm_at_of_a_block, "only support scalar pointer"),
        (put_of_a_block, "a library's function of a block"),
    ],
)
def test_pointers_that_the_library_does_not_take_are_refused(run, kernel, words):
    """A signal of 32 bits too: what lies behind it would be written over."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        signal = symmetric(2, simrank.int32)
        kernel[(1,)](signal)
        with pytest.raises((ValueError, UnsupportedError), match=words):
            signal.tolist()

    run(body, 1)


def test_a_kernel_that_only_asks_knows_its_rank(run):
    """Each of its programs may look at another peer."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer, out = symmetric(4, simrank.float32), ctx.zeros(4)
        buffer.fill_(rank + 1.0)
        ctx.synchronize()
        dist.barrier()
        look_at_all[(4,)](buffer, out)
        assert out.tolist() == [1.0, 2.0, 3.0, 4.0]

    run(body, 4)


@triton.jit
def tagged(out, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    missing = shmem.team_n_pes(0) - dl.num_ranks()
    tl.store(out + at, dl.consume_token(at, 0) + 10000 * dl.rank() + missing)


def test_a_kernel_that_only_asks_for_its_rank_runs_in_lockstep(run):
    """Each launch knows whose it is, also where it runs long after the host issued it."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        out = ctx.empty(32, dtype=simrank.int32)
        ctx.ones(1 << 20).sum()  # What the kernel waits for at its turn.
        operation = ctx.launch(tagged, (4,), out, N=8)
        assert out.tolist() == [10000 * rank + lane for lane in range(32)]
        assert operation.mode == "batched"

    run(body, 3)


@triton.jit
def reported(out, buffers, rank, N: tl.constexpr):
    peer = tl.load(buffers + (rank + 1) % 2).to(tl.pointer_type(tl.int32))
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + at, tl.load(peer + at) + rank)


def test_a_kernel_that_gets_its_rank_and_reads_of_a_peer_runs_in_lockstep(run):
    """An argument says nothing about what others see."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer = symm_mem.empty(32, dtype=simrank.int32)
        handle = symm_mem.rendezvous(buffer)
        buffer.fill_(7 + rank)
        handle.barrier()
        table = ctx.tensor(handle.buffer_ptrs)
        out = ctx.empty(32, dtype=simrank.int32)
        operation = ctx.launch(reported, (4,), out, table, rank, N=8)
        ctx.synchronize()
        assert operation.mode == "batched"
        assert out.tolist() == [8 - rank + rank] * 32
        handle.barrier()

    run(body, 2)
