"""A mesh of data and tensor parallel groups: sums along each axis."""

import os

import simrank as torch
import simrank.distributed as dist

TENSOR = 2


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    data_group = tensor_group = None
    for row in range(world_size // TENSOR):  # Every rank makes every group, in the same order.
        members = list(range(row * TENSOR, (row + 1) * TENSOR))
        group = dist.new_group(members)
        tensor_group = group if rank in members else tensor_group
    for column in range(TENSOR):
        members = list(range(column, world_size, TENSOR))
        group = dist.new_group(members)
        data_group = group if rank in members else data_group
    x = torch.full((4,), float(rank))
    dist.all_reduce(x, group=tensor_group)
    dist.all_reduce(x, group=data_group)
    assert x.tolist() == [float(sum(range(world_size)))] * 4
    assert dist.get_world_size(tensor_group) == TENSOR
    if rank == 0:
        print("both axes summed")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
