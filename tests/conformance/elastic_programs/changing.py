"""Processes that are there from the start join groups of two, four and three, under any numbers."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

PHASES = {"a": [0, 1], "b": [0, 1, 2, 3], "c": [3, 0, 2], "d": [1, 3], "e": [1, 0, 2, 3]}


def tell(rank, size):
    x = torch.tensor([10.0**rank])
    dist.all_reduce(x)
    everyone = [None] * size
    dist.all_gather_object(everyone, rank)
    ends = dist.new_group([0, size - 1])
    y = torch.tensor([float(rank)])
    if rank in (0, size - 1):
        dist.broadcast(y, src=size - 1, group=ends)
    mixed = torch.empty(size)
    dist.all_to_all_single(mixed, torch.arange(size) + 10.0 * rank)
    return x.item(), everyone, y.item(), mixed.tolist()


def work(me, port, results):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    for name, members in PHASES.items():
        if me in members:
            rank, size = members.index(me), len(members)
            place = dist.PrefixStore(name, store)
            dist.init_process_group("gloo", store=place, rank=rank, world_size=size)
            results.put((name, me, dist.get_rank(), *tell(rank, size)))
            dist.barrier()
            dist.destroy_process_group()


def main():
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = mp.spawn(work, (store.port, results), nprocs=4, join=False)
    for result in sorted(results.get() for _ in range(sum(map(len, PHASES.values())))):
        print(result)
    while not processes.join():
        pass


if __name__ == "__main__":
    main()
