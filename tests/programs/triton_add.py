"""A Triton kernel of one's own on every rank, and a collective on what it made."""

import os

import triton
import triton.language as tl

import simrank as torch
import simrank.distributed as dist


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(
        out + at,
        tl.load(x + at, mask=inside, other=0) + tl.load(y + at, mask=inside, other=0),
        mask=inside,
    )


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    n = 1000
    x, y, out = torch.full((n,), float(rank)), torch.ones(n), torch.empty(n)
    add[(triton.cdiv(n, 256),)](x, y, out, n, BLOCK=256)
    dist.all_reduce(out)
    assert out.tolist() == [float(sum(range(world_size)) + world_size)] * n
    if rank == 0:
        print("added")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
