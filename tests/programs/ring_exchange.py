"""Ring attention's exchange: each rank sees every block once, with the next one on its way."""

import os

import simrank as torch
import simrank.distributed as dist


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    block = torch.full((4, 4), float(rank))
    seen = torch.zeros(4, 4)
    for step in range(world_size):
        works, following = [], torch.empty_like(block)
        if step + 1 < world_size:
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, block, (rank + 1) % world_size),
                    dist.P2POp(dist.irecv, following, (rank - 1) % world_size),
                ]
            )
        seen.add_(block)  # The attention of this block, while the next one comes.
        for work in works:
            work.wait()
        block = following
    assert seen[0, 0].item() == sum(range(world_size))
    if rank == 0:
        print("all blocks seen")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
