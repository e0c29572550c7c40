"""Processes make a group; one dies, and another is started in its place: all join once more."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZE = 3


def work(rank, attempt, port, results):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    while True:
        place = dist.PrefixStore(f"attempt {attempt}", store)
        dist.init_process_group("gloo", store=place, rank=rank, world_size=SIZE)
        x = torch.tensor([float(rank + 1)])
        dist.all_reduce(x)
        if (rank, attempt) == (1, 0):
            os._exit(3)
        try:
            y = torch.tensor([10.0 * (rank + 1)])
            dist.all_reduce(y)
        except RuntimeError:
            dist.destroy_process_group()
            attempt += 1
            continue
        results.put((rank, attempt, x.item(), y.item(), dist.get_world_size()))
        dist.barrier()
        dist.destroy_process_group()
        return


def main():
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def start(rank, attempt):
        process = context.Process(target=work, args=(rank, attempt, store.port, results))
        process.start()
        return process

    processes = [start(rank, 0) for rank in range(SIZE)]
    processes[1].join()
    print("rank 1 ended with", processes[1].exitcode)
    processes[1] = start(1, 1)
    for result in sorted(results.get() for _ in processes):
        print(result)
    for process in processes:
        process.join()
    print([process.exitcode for process in processes])


if __name__ == "__main__":
    main()
