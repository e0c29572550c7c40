"""What a test of torch programs costs, beside real processes and beside PyTorch's threaded group.

An 8-rank test initialises, reduces 50 times, runs a tensor-parallel MLP backward and destroys its
groups: with spawn and gloo, start included, and on simulated ranks with torch imported once. Then
the cost of one all_reduce, in CPU time per rank and call; of a small operation on a "cuda" tensor;
and of many ranks. Pin it to one CPU: `taskset -c 0 python benches/torch_tests.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import socket
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import simrank

ROUNDS = 6
NOW = time.perf_counter  # Kept under a name of our own: ranks see simulated clocks.


def cpu_s():
    """Return the process's CPU time, whoever asks."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Sum(torch.autograd.Function):
    """The second half of a row-parallel layer."""

    @staticmethod
    def forward(ctx, x):  # noqa: ARG004 - autograd's
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):  # noqa: ARG004 - autograd's
        return gradient


def one_test(rank, world, port=None):
    """Run the 8-rank test on one rank."""
    if port is not None:
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world)
        )
        torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for _ in range(50):
        dist.all_reduce(torch.ones(16))
    up, down = nn.Linear(64, 256 // world), nn.Linear(256 // world, 64, bias=False)
    Sum.apply(down(torch.relu(up(torch.ones(8, 64))))).sum().backward()
    dist.destroy_process_group()


def free_port():
    """Return a port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def reduce_often(rank, times, found):
    """Reduce `times` times; rank 0 keeps the CPU time that all of them took."""
    dist.init_process_group("gloo")
    tensor = torch.ones(16)
    dist.all_reduce(tensor)
    dist.barrier()
    start = cpu_s()
    for _ in range(times):
        dist.all_reduce(tensor)
    if rank == 0:
        found.append(cpu_s() - start)
    dist.barrier()


def simulated_us(world, times):
    """Return microseconds per rank and call on simulated ranks."""
    found = []
    simrank.multiprocessing.spawn(reduce_often, (times, found), world, share_args=True)
    return found[0] / times / world * 1e6


def threaded_us(world, times):
    """Return the same for PyTorch's threaded group."""
    from torch.testing._internal.distributed import multi_threaded_pg as threaded

    bindings = torch._C._distributed_c10d
    found = []
    bindings._set_thread_isolation_mode(True)
    threaded._install_threaded_pg()
    store = dist.HashStore()

    def body(rank):
        dist.init_process_group("threaded", rank=rank, world_size=world, store=store)
        tensor = torch.ones(16)
        dist.all_reduce(tensor)
        dist.barrier()
        start = cpu_s()
        for _ in range(times):
            dist.all_reduce(tensor)
        dist.barrier()
        if rank == 0:
            found.append(cpu_s() - start)
        dist.destroy_process_group()

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    threaded._uninstall_threaded_pg()
    bindings._set_thread_isolation_mode(False)
    return found[0] / times / world * 1e6


def small_operation(rank, found):
    """Keep the CPU time of an addition of 1,000 numbers on the host and on a device."""
    del rank
    host, device = torch.ones(1000), torch.ones(1000, device="cuda")
    for name, tensor in (("cpu", host), ("cuda", device)):
        best = []
        for _ in range(5):
            torch.cuda.synchronize()
            start = cpu_s()
            for _ in range(2000):
                tensor + tensor
            torch.cuda.synchronize()
            best.append(cpu_s() - start)
        found[name] = min(best) / 2000 * 1e6


def many(rank, world):
    """Initialise, run backward and reduce once."""
    del rank, world
    dist.init_process_group("gloo")
    x = torch.ones(64, requires_grad=True)
    (x * x).sum().backward()
    dist.all_reduce(x.grad)
    dist.destroy_process_group()


def main():
    """Run everything, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--no-real", action="store_true", help="leave the real processes out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {"python": platform.python_version(), "torch": torch.__version__}
    ours = []
    for _ in range(4):
        start = NOW()
        simrank.multiprocessing.spawn(one_test, (8,), 8)
        ours.append(NOW() - start)
    results["8-rank test, first, s"], results["8-rank test, warm, s"] = ours[0], min(ours)
    if not options.no_real:
        start = NOW()
        mp.spawn(one_test, (8, free_port()), 8)
        real = results["8-rank test, spawn and gloo, s"] = NOW() - start
        results["first / real (aim 30)"] = real / ours[0]
        results["warm / real (aim 100)"] = real / min(ours)
    for world, times in ((8, 200), (64, 40)):
        # In turns: what else the machine does meanwhile, it does to both.
        both = [(simulated_us(world, times), threaded_us(world, times)) for _ in range(ROUNDS)]
        simulated, threaded = map(min, zip(*both, strict=True))
        results[f"all_reduce of {world}, us per rank and call"] = simulated
        results[f"threaded group of {world}, us"] = threaded
        results[f"ratio at {world} (aim at most 2.5)"] = simulated / threaded
    found = {}
    simrank.multiprocessing.spawn(small_operation, (found,), 1, share_args=True)
    results["cuda above cpu, us per small operation (aim below 3)"] = found["cuda"] - found["cpu"]
    for world in (256, 1000):
        start = NOW()
        simrank.multiprocessing.spawn(many, (world,), world)
        results[f"{world} ranks, s"] = NOW() - start
        peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        results[f"{world} ranks, peak MB"] = peak_kb / 1024
    for name, value in results.items():
        print(f"{name:55} {value:.2f}" if isinstance(value, float) else f"{name:55} {value}")
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
