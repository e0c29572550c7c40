"""Triton-distributed's names in kernels: substituted by module and name, whatever is installed."""

import importlib.util
import sys
from contextlib import nullcontext

import numpy as np
import pytest

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank.errors import DeadlockError, UnsupportedError

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

dl = simt = shmem = hip = None  # Set by the fixture: what kernels call.
OPS = """
from triton.language import core

@core.builtin
def wait(barrierPtrs, numBarriers, scope, semantic, waitValue=1, _semantic=None):
    raise AssertionError

@core.builtin
def consume_token(value, token, _semantic=None):
    raise AssertionError

@core.builtin
def rank(axis=-1, _semantic=None):
    raise AssertionError

@core.builtin
def num_ranks(axis=-1, _semantic=None):
    raise AssertionError

@core.builtin
def symm_at(ptr, rank, _semantic=None):
    raise AssertionError

@core.builtin
def notify(ptr, rank, signal=1, sig_op="set", comm_scope="inter_node", _semantic=None):
    raise AssertionError
"""
SIMT = """
class simt_exec_region:
    def __enter__(self): ...
    def __exit__(self, *error): ...
"""
SHMEM = """
NVSHMEM_SIGNAL_ADD = 10
NVSHMEM_CMP_GE = 5
def signal_op(sig_addr, signal, sig_op, pe): ...
def signal_wait_until(sig_addr, cmp_, cmp_val): ...
def putmem_nbi_warp(dest, source, bytes, pe): ...
def putmem_signal_block(dest, source, bytes, sig_addr, signal, sig_op, pe): ...
def putmem_signal_warp(dest, source, bytes, sig_addr, signal, sig_op, pe): ...
def barrier_all_block(): ...
def team_sync_block(team): ...
def team_n_pes(team): ...
def remote_mc_ptr(team, ptr): ...
def broadcastmem_block(team, dest, source, nelems, pe_root): ...
"""
HIP = """
from triton.language import core

@core.extern
def thread_idx(axis, _semantic=None):
    raise AssertionError

@core.extern
def load_acquire_system(arg0, _semantic=None):
    raise AssertionError

@core.extern
def store_release_system(arg0, arg1, _semantic=None):
    raise AssertionError

@core.extern
def atom_add_relaxed_agent(arg0, arg1, _semantic=None):
    raise AssertionError

@core.extern
def syncthreads(_semantic=None):
    raise AssertionError
"""
SOURCES = {
    "hip": ("triton.language.extra.hip.libdevice", HIP),
    "dl": ("triton_dist.language.distributed_ops", OPS),
    "simt": ("triton_dist.language.simt_ops", SIMT),
    "shmem": ("triton_dist.language.extra.libshmem_device", SHMEM),
}


@pytest.fixture(autouse=True, scope="module")
def library(tmp_path_factory):
    """Modules of the library's names, without the compiler behind them."""
    folder = tmp_path_factory.mktemp("library")
    before = {name: sys.modules.get(name) for name, _ in SOURCES.values()}
    for short, (name, source) in SOURCES.items():
        path = folder / f"{short}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(name, path)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        globals()[short] = module
    yield
    for name, module in before.items():
        del sys.modules[name]
        if module is not None:
            sys.modules[name] = module


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
def root_of_the_node(buffer, sizes, N: tl.constexpr):
    tl.store(sizes, shmem.team_n_pes(2))
    shmem.broadcastmem_block(2, buffer + N, buffer, N * 4, 1)


@triton.jit
def reduce_in_the_switch(buffer, world_size, N: tl.constexpr):
    everywhere = shmem.remote_mc_ptr(0, buffer)
    shmem.barrier_all_block()
    with simt.simt_exec_region() as (thread, num_threads):
        for n in range(thread + dl.rank() * num_threads, N // 8, num_threads * world_size):
            a, b, c, d = tl.inline_asm_elementwise(
                "multimem.ld_reduce.global.add.acc::f32.v4.bf16x2 {$0, $1, $2, $3}, [$4];",
                "=r,=r,=r,=r,l",
                [everywhere + n * 8],
                dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
                is_pure=False,
                pack=1,
            )
            low = tl.inline_asm_elementwise(
                "mov.b64 $0, {$1, $2};", "=l,r,r", [a, b], dtype=tl.int64, is_pure=True, pack=1
            )
            tl.inline_asm_elementwise(
                "multimem.st.global.b64 [$1], $2; mov.u32 $0, 0;",
                "=r,l,l",
                [everywhere + n * 8, low],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
            tl.inline_asm_elementwise(
                "multimem.st.global.v2.b32 [$1], {$2, $3}; mov.u32 $0, 0;",
                "=r,l,r,r",
                [everywhere + n * 8 + 4, c, d],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
    shmem.barrier_all_block()


@triton.jit
def reduce_one_part(buffer):
    tl.inline_asm_elementwise(
        "multimem.red.relaxed.sys.global.add.f32 [$1], $2; mov.u32 $0, 0;",
        "=r,l,f",
        [buffer, tl.cast(1, tl.float32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def add_everywhere(buffer):
    reduce_one_part(shmem.remote_mc_ptr(0, buffer))


@triton.jit
def add_everywhere_by_thread(buffer):
    everywhere = shmem.remote_mc_ptr(0, buffer)
    with simt.simt_exec_region() as (thread, _):
        reduce_one_part(everywhere)
        if thread == 0:
            reduce_one_part(everywhere)


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
def meet_in_teams(team):
    shmem.team_sync_block(team)


@triton.jit
def meet_on_amd(pads, out, rank, world_size):
    thread = hip.thread_idx(0)
    if thread < world_size:
        there = tl.load(pads + thread).to(tl.pointer_type(tl.int32))
        hip.store_release_system(there + rank, 1)
        here = tl.load(pads + rank).to(tl.pointer_type(tl.int32))
        while hip.load_acquire_system(here + thread) != 1:
            pass
    hip.syncthreads()
    hip.atom_add_relaxed_agent(out, 2)


@triton.jit
def look_at_all(buffer, out):
    peer = tl.program_id(0)
    tl.store(out + peer, tl.load(dl.symm_at(buffer, peer)))


def symmetric(shape, dtype):
    tensor = symm_mem.empty(shape, dtype=dtype)
    tensor.fill_(0)
    symm_mem.rendezvous(tensor)
    dist.barrier()
    return tensor


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


def test_the_team_of_a_node_has_the_ranks_of_one_node(run):
    """Two nodes of eight: each has a root of its own."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer = symmetric(32, simrank.float32)
        sizes = simrank.zeros(1, dtype=simrank.int32)
        buffer[:16].fill_(float(rank))
        root_of_the_node[(1,)](buffer, sizes, 16)
        assert sizes.item() == 8
        assert buffer[16:].tolist() == [float(rank // 8 * 8 + 1)] * 16

    run(body, 16, cluster="h100_ib", races="error")


@pytest.mark.parametrize("world_size", [2, 4])
def test_multimem_instructions_reduce_and_write_at_all_ranks(run, world_size):
    """Each rank does its part of an all-reduce in place."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer = symmetric(1024, simrank.bfloat16)
        given = np.random.default_rng(0).integers(-9, 9, (world_size, 1024)).astype(np.float32)
        buffer.copy_(ctx.from_numpy(given[rank]).to(simrank.bfloat16))
        reduce_in_the_switch[(1,)](buffer, world_size, 1024, num_warps=1)
        np.testing.assert_array_equal(buffer.numpy().astype(np.float32), given.sum(axis=0))

    run(body, world_size, seed=1, races="error")


def test_multimem_red_adds_at_every_rank(run):
    """An address that is of one rank only is refused."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer = symmetric(4, simrank.float32)
        add_everywhere[(1,)](buffer)
        ctx.synchronize()
        dist.barrier()
        assert buffer.tolist() == [3.0, 0.0, 0.0, 0.0]
        reduce_one_part[(1,)](buffer)
        with pytest.raises(ValueError, match="no multicast address"):
            ctx.synchronize()

    run(body, 3, races="error")


def test_every_thread_does_a_multimem_red(run):
    """As with atomics of one place, also where all give the same."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        buffer = symmetric(4, simrank.float32)
        add_everywhere_by_thread[(1,)](buffer, num_warps=2)
        ctx.synchronize()
        dist.barrier()
        assert buffer.tolist() == [2 * 65.0, 0.0, 0.0, 0.0]

    run(body, 2, races="error")


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


@pytest.mark.parametrize("is_same", [True, False])
def test_teams_of_the_same_ranks_meet_apart(run, is_same):
    """Who calls the barrier of another team is waited for, as by the library."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        meet_in_teams[(1,)](0 if is_same else 2 * rank)
        ctx.synchronize()

    with nullcontext() if is_same else pytest.raises(DeadlockError, match="1 of 2 ranks"):
        run(body, 2)


def test_threads_of_amd_meet_and_count(run):
    """By the names that its library gets."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        handle = symm_mem.rendezvous(symm_mem.empty(8, dtype=simrank.float32))
        out = simrank.zeros(1, dtype=simrank.int32)
        meet_on_amd[(1,)](simrank.tensor(handle.signal_pad_ptrs), out, rank, 4, num_warps=2)
        assert out.item() == 2 * 64

    run(body, 4, seed=2, races="error")


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
