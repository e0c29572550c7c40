"""What instructions do to memory."""

import numpy as np
import pytest
import triton
import triton.language as tl

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank.kernels import machine, operation
from simrank.kernels.memory.addresses import IllegalAccessError

from ..fake_libraries import library_in, symmetric


@triton.jit
def atomics(x, out):
    old = tl.inline_asm_elementwise(
        """
        atom.global.relaxed.gpu.add.u32 $0, [$1], 5;
        red.relaxed.gpu.global.max.u32 [$1+4], 9;
        atom.global.gpu.inc.u32 $0, [$1+8], 3;
        st.global.u32 [$1+12], 77;
        ld.global.v2.u32 {$0, _}, [$1];
        """,
        "=&r,l", [x], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    tl.store(out + tl.program_id(0), old)


def test_atomics_of_each_program_take_effect_one_after_the_other(run):
    """`inc` starts over at its limit; vectors are loaded element by element."""

    def body(rank, ctx):
        x = ctx.tensor([1, 2, 3, 4], dtype=simrank.int32)
        out = ctx.zeros(3, dtype=simrank.int32)
        atomics[(3,)](x, out)
        assert x.tolist() == [16, 9, 2, 77]
        assert max(out.tolist()) == 16

    run(body, 1)


@triton.jit
def send_pairs(pads, rank, N: tl.constexpr):
    lanes = tl.arange(0, N)
    there = tl.load(pads + 1 - rank).to(tl.pointer_type(tl.int32)) + 2 * lanes
    tl.inline_asm_elementwise(
        "st.volatile.global.v2.b32 [$1], {$2, $3}; mov.u32 $0, 0;",
        "=r,l,r,r",
        [there, lanes + 100, lanes * 0 + 1],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def receive_pairs(pads, out, rank, N: tl.constexpr):
    lanes = tl.arange(0, N)
    here = tl.load(pads + rank).to(tl.pointer_type(tl.int32)) + 2 * lanes
    arrived, data, flag = 0, lanes, lanes
    while arrived < N:
        data, flag = tl.inline_asm_elementwise(
            "ld.volatile.global.v2.b32 {$0, $1}, [$2];",
            "=r,=r,l",
            [here],
            dtype=(tl.int32, tl.int32),
            is_pure=False,
            pack=1,
        )
        arrived = tl.sum(flag)
    tl.store(out + lanes, data)


@pytest.mark.parametrize("seed", [4, 5, 8, 9])
def test_a_vector_is_loaded_and_stored_at_one_time(run, seed):
    """Who sees the flag beside data sees the data."""

    def body(rank, ctx):
        dist.init_process_group("nccl")
        handle = symm_mem.rendezvous(symm_mem.empty(8, dtype=simrank.float32))
        pads, out = simrank.tensor(handle.signal_pad_ptrs), ctx.zeros(16, dtype=simrank.int32)
        dist.barrier()
        if rank == 0:
            receive_pairs[(1,)](pads, out, rank, 16)
            assert out.tolist() == list(range(100, 116))
        else:
            send_pairs[(1,)](pads, rank, 16)

    run(body, 2, seed=seed)


@triton.jit
def load_a_pair(x, out):
    first, _ = tl.inline_asm_elementwise(
        "ld.global.v2.b32 {$0, $1}, [$2];",
        "=r,=r,l",
        [x],
        dtype=(tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )
    tl.store(out, first)


def test_a_vector_lies_at_a_multiple_of_its_size(run):
    """Else hardware gives up: its elements alone would be aligned."""

    def body(rank, ctx):
        x, out = ctx.arange(8, dtype=simrank.int32), ctx.zeros(1, dtype=simrank.int32)
        load_a_pair[(1,)](x[2:], out)
        assert out.item() == 2
        load_a_pair[(1,)](x[3:], out)
        with pytest.raises(IllegalAccessError, match="multiple of 8, the size of 2 uint32"):
            out.item()

    run(body, 1)


# ---- instructions on the memory of all ranks of a team ----

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


def test_programs_go_on_behind_a_compilation_in_which_others_ran(run, monkeypatch):
    """A kernel that nothing has compiled yet: the compiler reads files, and may wait for them."""

    def compile_while_others_run(*_):
        machine.set_running(None)

    monkeypatch.setattr(operation, "assembly_of", compile_while_others_run)

    def body(rank, ctx):
        x = ctx.tensor([1, 2, 3, 4], dtype=simrank.int32)
        atomics[(3,)](x, ctx.zeros(3, dtype=simrank.int32))
        assert x.tolist() == [16, 9, 2, 77]

    run(body, 1)
