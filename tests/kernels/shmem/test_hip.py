"""Triton-distributed's functions for AMD GPUs."""

import pytest
import triton
import triton.language as tl

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem

from ..fake_libraries import library_in

dl = simt = shmem = hip = None  # Set by the fixture: what kernels call.


@pytest.fixture(autouse=True, scope="module")
def library(tmp_path_factory):
    """Modules of the library's names, without the compiler behind them."""
    yield from library_in(globals(), tmp_path_factory)


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


def test_threads_of_amd_meet_and_count(run):
    """By the names that its library gets."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        handle = symm_mem.rendezvous(symm_mem.empty(8, dtype=simrank.float32))
        out = simrank.zeros(1, dtype=simrank.int32)
        meet_on_amd[(1,)](simrank.tensor(handle.signal_pad_ptrs), out, rank, 4, num_warps=2)
        assert out.item() == 2 * 64

    run(body, 4, seed=2, races="error")


@pytest.mark.parametrize("cluster", ["mi300x", "mi355x"])
def test_a_warp_of_amd_has_64_threads(run, cluster):
    """All of them come to a barrier, and count; each is one of the region for threads."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        handle = symm_mem.rendezvous(symm_mem.empty(8, dtype=simrank.float32))
        pads = simrank.tensor(handle.signal_pad_ptrs)
        out = simrank.zeros(1, dtype=simrank.int32)
        for num_warps in (1, 2):
            meet_on_amd[(1,)](pads, out.zero_(), rank, 0, num_warps=num_warps)
            assert out.item() == 2 * 64 * num_warps
        seen = simrank.zeros(128, dtype=simrank.int32)
        region[(1,)](seen, num_warps=2)
        assert seen.tolist() == [128 + thread for thread in range(128)]

    run(body, 2, cluster=cluster, races="error")


@triton.jit
def region(out):
    with simt.simt_exec_region() as (thread, size):
        hip.store_release_system(out + thread, size + thread)
    hip.syncthreads()
