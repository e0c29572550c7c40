"""Instructions on the memory of all ranks of a team."""

import numpy as np
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


def symmetric(shape, dtype):
    tensor = symm_mem.empty(shape, dtype=dtype)
    tensor.fill_(0)
    symm_mem.rendezvous(tensor)
    dist.barrier()
    return tensor


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
