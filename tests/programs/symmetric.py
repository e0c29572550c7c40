"""Symmetric memory: each rank reads its peers' buffers between two barriers."""

import os

import simrank as torch
import simrank.distributed as dist
from simrank.distributed import symmetric_memory as symm_mem


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    buffer = symm_mem.empty(16, dtype=torch.float32, device=f"cuda:{rank}")
    handle = symm_mem.rendezvous(buffer, dist.group.WORLD)
    buffer.fill_(float(rank))
    handle.barrier(channel=0)
    total = torch.zeros(16)
    for peer in range(world_size):
        total.add_(handle.get_buffer(peer, (16,), torch.float32))
    handle.barrier(channel=1)
    buffer.fill_(-1.0)
    assert total.tolist() == [float(sum(range(world_size)))] * 16
    if rank == 0:
        print("peers were read")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
