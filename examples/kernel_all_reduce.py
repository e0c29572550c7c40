"""Write an all-reduce as a Triton kernel over symmetric memory, and time it beside NCCL's.

Run: python examples/kernel_all_reduce.py
"""

import triton
import triton.language as tl

import simrank
import simrank.distributed as dist
import simrank.distributed.symmetric_memory as symm_mem
from simrank.kernels import channels


@triton.jit
def one_shot(buffers, y, n, WORLD: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for peer in tl.static_range(WORLD):
        part = channels.peer_pointer(buffers, peer, tl.float32)
        total += tl.load(part + at, mask=at < n)
    tl.store(y + at, total, mask=at < n)


def work(rank: int, ctx: simrank.Context, n: int) -> None:
    ctx.cuda.set_device(rank)
    dist.init_process_group("nccl")
    x = symm_mem.empty(n, dtype=ctx.float32)
    x.fill_(float(rank))
    handle = symm_mem.rendezvous(x, dist.group.WORLD)
    y, z = ctx.empty(n), ctx.full((n,), float(rank))
    times_us = []
    for reduce in (lambda: launch(ctx, handle, y, n), lambda: dist.all_reduce(z)):
        dist.barrier()
        start = ctx.now_ps
        reduce()
        ctx.cuda.synchronize()
        times_us.append((ctx.now_ps - start) / 1e6)
    assert (y == z).all().item()
    if rank == 0:
        print(f"{n:>8} floats: kernel {times_us[0]:6.1f} us, NCCL {times_us[1]:6.1f} us")


def launch(
    ctx: simrank.Context, handle: symm_mem.SymmetricMemory, y: simrank.Tensor, n: int
) -> None:
    handle.barrier(channel=0)
    ctx.launch(one_shot, (triton.cdiv(n, 4096),), handle.buffer_ptrs_dev, y, n, WORLD=8, BLOCK=4096)
    handle.barrier(channel=1)


if __name__ == "__main__":
    for n in (1 << 12, 1 << 18):
        with simrank.Context("hgx_h100") as ctx:
            ctx.multiprocessing.spawn(work, args=(ctx, n), nprocs=8)
