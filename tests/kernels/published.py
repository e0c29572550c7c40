"""Kernels in the style of published symmetric-memory libraries: signals in inline PTX."""

import triton
import triton.language as tl


@triton.jit
def _tid():
    return tl.inline_asm_elementwise(
        """
        mov.u32 $0, %tid.x;
        mov.u32 $1, %tid.y;
        mov.u32 $2, %tid.z;
        """,
        "=r,=r,=r",
        [],
        dtype=(tl.uint32, tl.uint32, tl.uint32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def _send_signal(addrs, sem: tl.constexpr):
    tl.inline_asm_elementwise(
        f"""
        {{
            .reg .u32   %tmp32_<1>;
            .reg .pred  %p<1>;

            send_signal:
                atom.global.{sem}.sys.cas.b32 %tmp32_0, [$1], 0, 1;
                setp.eq.u32 %p0, %tmp32_0, 0;
                @!%p0 bra send_signal;
        }}
        """,
        "=r, l",
        [addrs],
        dtype=addrs.dtype,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _wait_signal(addrs, sem: tl.constexpr):
    tl.inline_asm_elementwise(
        f"""
        {{
            .reg .u32   %tmp32_<1>;
            .reg .pred  %p<1>;

            wait_signal:
                atom.global.sys.{sem}.cas.b32 %tmp32_0, [$1], 1, 0;
                setp.eq.u32 %p0, %tmp32_0, 1;
                @!%p0 bra wait_signal;
        }}
        """,
        "=r, l",
        [addrs],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def blockwise_barrier(
    signal_pad_ptrs,
    block_id,
    rank: tl.constexpr,
    world_size: tl.constexpr,
    has_previous: tl.constexpr,
    has_subsequent: tl.constexpr,
):
    tid_x, tid_y, tid_z = _tid()
    remote_ranks = tl.arange(0, world_size)
    signal_pad_ptrs = signal_pad_ptrs.to(tl.pointer_type(tl.uint64))
    remote_pads = tl.load(signal_pad_ptrs + remote_ranks).to(tl.pointer_type(tl.uint32))
    send_addrs = remote_pads + block_id * world_size + rank
    local_pad = tl.load(signal_pad_ptrs + rank).to(tl.pointer_type(tl.uint32))
    wait_addrs = local_pad + block_id * world_size + remote_ranks
    if has_previous:
        tl.debug_barrier()
    if tid_x + tid_y + tid_z < world_size:
        _send_signal(send_addrs, "release" if has_previous else "relaxed")
        _wait_signal(wait_addrs, "acquire" if has_subsequent else "relaxed")
    if has_subsequent:
        tl.debug_barrier()


@triton.jit
def one_shot_all_reduce(
    buffer_ptrs,
    signal_pad_ptrs,
    output_ptr,
    numel,
    rank: tl.constexpr,
    world_size: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    pid = tl.program_id(axis=0)
    blockwise_barrier(signal_pad_ptrs, pid, rank, world_size, False, True)
    buffer_ptrs = buffer_ptrs.to(tl.pointer_type(tl.uint64))
    output_ptr = output_ptr.to(tl.pointer_type(tl.bfloat16))
    block_start = pid * BLOCK_SIZE
    while block_start < numel:
        offsets = block_start + tl.arange(0, BLOCK_SIZE)
        mask = offsets < numel
        acc = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
        for i in range(world_size):
            buffer_rank = tl.load(buffer_ptrs + i).to(tl.pointer_type(tl.bfloat16))
            buffer_rank = tl.multiple_of(buffer_rank, 16)
            acc += tl.load(buffer_rank + offsets, mask=mask).to(tl.float32)
        tl.store(output_ptr + offsets, acc, mask=mask)
        block_start += tl.num_programs(axis=0) * BLOCK_SIZE
    blockwise_barrier(signal_pad_ptrs, pid, rank, world_size, True, False)


@triton.jit
def two_shot_all_reduce(
    buffer_ptrs,
    signal_pad_ptrs,
    numel,
    rank: tl.constexpr,
    world_size: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    pid = tl.program_id(axis=0)
    blockwise_barrier(signal_pad_ptrs, pid, rank, world_size, False, True)
    buffer_ptrs = buffer_ptrs.to(tl.pointer_type(tl.uint64))
    per_rank = tl.cdiv(numel, world_size)
    start = pid * BLOCK_SIZE
    while start < per_rank:
        offsets = start + tl.arange(0, BLOCK_SIZE)
        mask = offsets < per_rank
        offsets += rank * per_rank
        acc = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
        for i in range(world_size):
            source = tl.load(buffer_ptrs + i).to(tl.pointer_type(tl.bfloat16))
            acc += tl.load(source + offsets, mask=mask, other=0.0).to(tl.float32)
        for i in range(world_size):
            target = tl.load(buffer_ptrs + (rank + i) % world_size)
            target = target.to(tl.pointer_type(tl.bfloat16))
            tl.store(target + offsets, acc.to(tl.bfloat16), mask=mask)
        start += tl.num_programs(axis=0) * BLOCK_SIZE
    blockwise_barrier(signal_pad_ptrs, pid, rank, world_size, True, True)


@triton.jit
def wait_gmem_barrier(addr, expect, sem: tl.constexpr, scope: tl.constexpr, op: tl.constexpr):
    tl.inline_asm_elementwise(
        f"""
        {{
            .reg .pred  %p<1>;
            wait_block:
                ld.global.{sem}.{scope}.u32 $0, [$1];
                setp.{op}.u32 %p0, $0, $2;
                @!%p0 bra wait_block;
        }}
        """,
        "=r, l, r",
        [addr, expect],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def arrive_gmem_barrier(addr, update, sem: tl.constexpr, scope: tl.constexpr):
    tl.inline_asm_elementwise(
        f"""
        {{
            red.{sem}.{scope}.global.add.u32 [$1], $2;
            mov.u32 $0, 0;
        }}
        """,
        "=r, l, r",
        [addr, update],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def wait_ge(addr, value):
    tl.inline_asm_elementwise(
        """
        {
            .reg .pred %p<2>;
            .reg .s64 %v;
            // One thread polls; the rest waits at the barrier.
            mov.u32 $0, %tid.x;
            setp.ne.u32 %p1, $0, 0;
            @%p1 bra done;
            poll:
                ld.acquire.sys.global.s64 %v, [$1];
                setp.lt.s64 %p0, %v, $2;
                @%p0 bra poll;
            done:
            bar.sync 0;
            mov.u32 $0, 0;
        }
        """,
        "=r,l,l",
        [addr, value],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def fence_and_remote_store(addr, value):
    tl.inline_asm_elementwise(
        """
        {
            bar.sync 0;
            fence.acq_rel.sys;
            st.relaxed.sys.global.s64 [$1], $2;
            mov.u32 $0, 0;
        }
        """,
        "=r,l,l",
        [addr, value],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
