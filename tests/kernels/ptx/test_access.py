"""What instructions do to memory."""

import pytest
import triton
import triton.language as tl

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank.kernels.memory.illegal import IllegalAccessError


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
