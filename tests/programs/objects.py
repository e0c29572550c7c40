"""Objects: a configuration from rank 0, results from everybody, work handed out and back."""

import os

import simrank as torch
import simrank.distributed as dist


def main():
    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    config = [{"lr": 0.1, "names": ["a", "b"]} if rank == 0 else None]
    dist.broadcast_object_list(config, src=0)
    assert config[0]["names"] == ["a", "b"]
    mine = [None]
    dist.scatter_object_list(mine, [f"task {i}" for i in range(world_size)] if rank == 0 else None)
    assert mine == [f"task {rank}"]
    results = [None] * world_size
    dist.all_gather_object(results, {"rank": rank, "task": mine[0]})
    assert [result["rank"] for result in results] == list(range(world_size))
    gathered = [None] * world_size if rank == 1 else None
    dist.gather_object(len(mine[0]), gathered, dst=1)
    if rank == 1:
        print("gathered", sum(gathered))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
