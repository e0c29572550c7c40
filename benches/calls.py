"""What a collective call costs the interpreter, beside torch's threaded group and LocalTensor.

Run `python benches/calls.py [--json FILE]`, pinned to one CPU (`taskset -c 0`); it takes about two
minutes with torch, less without. Every round runs all sides one after the other, so that a machine
that slows down slows all of them; a figure is the median of the rounds' ratios. Absolute times
depend on the machine.

* calls: microseconds per collective of all ranks, with simrank's own tensors; of all_reduce also in
  a torch program, which goes through torch's functions and Work objects too. The threaded group is
  `torch.testing._internal.distributed.multi_threaded_pg`; it has no send and recv, so that pairs
  stand beside its broadcast. LocalTensor (`torch.distributed._local_tensor`) runs the program once,
  not once per rank.
* in flight: what a call costs when 8,000 are in flight, over what it costs when 500 are.
* checks: a program with a trace and `races="error"`, over the same without.
* scale: 10,000 ranks x 10 all_reduces over a bare loop of as many greenlet waits.

`--profile CASE` prints where the time of a case goes, per package and per function.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import importlib.util
import json
import os
import platform
import pstats
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import greenlet

import simrank
import simrank.distributed as dist

NUM_ELEMENTS = 1024
CALLS = (
    "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "barrier",
    "send/recv",
)  # fmt: skip
RANKS = (8, 64)
AIM_THREADED, AIM_PAIRS = 3.0, 1.5  # Theirs over ours, at least; pairs: of send and recv.
AIM_LOCAL = {8: 1.0, 64: 3.0}  # Ours over LocalTensor's, at most, by ranks.
AIM_IN_FLIGHT, AIM_CHECKS, AIM_SCALE = 1.2, 2.0, 8.0  # At most.


def clock(read: Callable[[], float] = time.perf_counter) -> float:
    """Return wall-clock seconds, inside a rank too: there, the names in `time` are simulated."""
    return read()


# ---- one body for all sides: `library` is torch, or stands for it; `c10d` its distributed ----


def bodies(library: Any, c10d: Any, rank: int, size: int) -> dict[str, Callable[[], Any]]:
    """Return what makes one call of each kind; `library` makes the tensors."""
    small = library.ones(NUM_ELEMENTS)
    large = library.ones(NUM_ELEMENTS * size)
    is_sender, peer = rank % 2 == 0, rank ^ 1
    return {
        "all_reduce": lambda: c10d.all_reduce(small),
        "all_gather_into_tensor": lambda: c10d.all_gather_into_tensor(large, small),
        "reduce_scatter_tensor": lambda: c10d.reduce_scatter_tensor(small, large),
        "broadcast": lambda: c10d.broadcast(small, 0),
        "barrier": c10d.barrier,
        "send/recv": (
            (lambda: c10d.send(small, peer)) if is_sender else (lambda: c10d.recv(small, peer))
        ),
    }


def of_simrank(call: str, num_ranks: int, num_calls: int, **settings: Any) -> float:
    """Return the seconds per collective of all ranks, simulation included."""
    times = []

    def program(rank: int) -> None:
        dist.init_process_group("nccl")
        body = bodies(simrank, dist, rank, num_ranks)[call]
        body()
        context.cuda.synchronize()
        dist.barrier()  # All go on together; the first one there starts the clock.
        times.append(clock())
        for _ in range(num_calls):
            body()
        context.cuda.synchronize()
        times.append(clock())

    with simrank.Context.for_ranks(num_ranks, **settings) as context:
        if settings:
            from simrank.trace.timeline import Timeline

            context.observe(Timeline())
        context.multiprocessing.spawn(program, nprocs=num_ranks)
    return (max(times) - min(times)) / num_calls


def of_torch_program(call: str, num_ranks: int, num_calls: int) -> float:
    """Return the seconds per collective of a torch program on simulated devices."""
    import torch
    import torch.distributed as c10d

    times = []
    on_device = SimpleNamespace(ones=partial(torch.ones, device="cuda"))

    def program(rank: int) -> None:
        torch.cuda.set_device(rank % 8)
        c10d.init_process_group("nccl", device_id=torch.device("cuda", rank % 8))
        body = bodies(on_device, c10d, rank, num_ranks)[call]
        body()
        torch.cuda.synchronize()
        c10d.barrier()
        times.append(clock())
        for _ in range(num_calls):
            body()
        torch.cuda.synchronize()
        times.append(clock())

    with simrank.Context.for_ranks(num_ranks) as context:
        context.multiprocessing.spawn(program, nprocs=num_ranks)
    return (max(times) - min(times)) / num_calls


def of_threaded(call: str, num_ranks: int, num_calls: int) -> float:
    """Return the seconds per collective of torch's threaded group."""
    import torch
    import torch.distributed as c10d
    from torch.testing._internal.distributed import multi_threaded_pg

    call = "broadcast" if call == "send/recv" else call
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    world = multi_threaded_pg._install_threaded_pg()
    store = c10d.HashStore()
    times, start = [], threading.Barrier(num_ranks)

    def program(rank: int) -> None:
        c10d.init_process_group("threaded", rank=rank, world_size=num_ranks, store=store)
        body = bodies(torch, c10d, rank, num_ranks)[call]
        body()
        start.wait()
        times.append(clock())
        for _ in range(num_calls):
            body()
        times.append(clock())
        c10d.destroy_process_group()

    try:
        threads = [threading.Thread(target=program, args=(rank,)) for rank in range(num_ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        del world
        multi_threaded_pg._uninstall_threaded_pg()
        call = "broadcast" if call == "send/recv" else call
    torch._C._distributed_c10d._set_thread_isolation_mode(False)
    return (max(times) - min(times)) / num_calls


def of_local(num_ranks: int, num_calls: int) -> float:
    """Return the seconds per all_reduce of LocalTensor: one program for all ranks."""
    import torch
    import torch.distributed as c10d
    from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
    from torch.testing._internal.distributed import fake_pg

    c10d.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=num_ranks)
    try:
        # Made outside the mode, which would make every shard a LocalTensor again.
        x = LocalTensor({rank: torch.ones(NUM_ELEMENTS) for rank in range(num_ranks)})
        with LocalTensorMode(num_ranks), torch.no_grad():
            c10d.all_reduce(x)
            begin = clock()
            for _ in range(num_calls):
                c10d.all_reduce(x)
            return (clock() - begin) / num_calls
    finally:
        c10d.destroy_process_group()


# ---- what must not grow ----


def per_call_in_flight(num_in_flight: int, num_calls: int = 8000) -> float:
    """Return the seconds per all_reduce of two ranks that read after every `num_in_flight`."""
    times = []

    def program(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        x = simrank.ones(NUM_ELEMENTS)
        dist.all_reduce(x)
        x[0].item()
        times.append(clock())
        for _ in range(num_calls // num_in_flight):
            for _ in range(num_in_flight):
                dist.all_reduce(x, dist.ReduceOp.AVG)
            x[0].item()
        times.append(clock())

    with simrank.Context("hgx_h100") as context:
        context.multiprocessing.spawn(program, nprocs=2)
    return (max(times) - min(times)) / num_calls


def per_kernel_in_flight(num_in_flight: int, num_calls: int = 16000) -> float:
    """Return the seconds per `x.add_(1)` of one rank that reads after every `num_in_flight`."""
    times = []

    def program(rank: int) -> None:
        del rank
        x = simrank.zeros(NUM_ELEMENTS)
        times.append(clock())
        for _ in range(num_calls // num_in_flight):
            for _ in range(num_in_flight):
                x.add_(1)
            x[0].item()
        times.append(clock())

    with simrank.Context("hgx_h100") as context:
        context.multiprocessing.spawn(program, nprocs=1)
    return (max(times) - min(times)) / num_calls


def many_groups(num_groups: int, num_calls: int = 1000) -> float:
    """Return the seconds per all_reduce of 16 ranks that take turns in several groups."""
    times = []

    def program(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        groups = [dist.new_group() for _ in range(num_groups)]
        x = simrank.ones(NUM_ELEMENTS)
        times.append(clock())
        for _ in range(num_calls // num_groups):
            for group in groups:
                dist.all_reduce(x, group=group)
        x[0].item()
        times.append(clock())

    with simrank.Context.for_ranks(16) as context:
        context.multiprocessing.spawn(program, nprocs=16)
    return (max(times) - min(times)) / num_calls


def many_ranks(num_ranks: int = 10_000, num_calls: int = 10) -> float:
    """Return the seconds of all_reduces of 4 bytes with a read after each."""

    def program(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        x = simrank.ones(1)
        for _ in range(num_calls):
            dist.all_reduce(x, dist.ReduceOp.AVG)
        assert abs(x.item() - 1.0) < 1e-4  # Sums of 1 / n are rounded.

    begin = clock()
    with simrank.Context.for_ranks(num_ranks) as context:
        context.multiprocessing.spawn(program, nprocs=num_ranks)
    return clock() - begin


def bare_waits(num_ranks: int = 10_000, num_calls: int = 10) -> float:
    """Return the seconds of a bare loop of as many greenlet waits."""
    hub = greenlet.getcurrent()

    def body() -> None:
        for _ in range(num_calls):
            hub.switch()

    begin = clock()
    lets = [greenlet.greenlet(body, parent=hub) for _ in range(num_ranks)]
    for _ in range(num_calls + 1):
        for let in lets:
            let.switch()
    return clock() - begin


# ---- printing ----


def median_ratio(
    ours: Callable[[], float], theirs: Callable[[], float], rounds: int
) -> tuple[float, float, float]:
    """Return the medians of both times, and of theirs over ours, of interleaved rounds."""
    pairs = []
    for _ in range(rounds):
        gc.collect()  # What one side leaves behind is not the other side's to clear up.
        first = ours()
        gc.collect()
        pairs.append((first, theirs()))
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(b / a for a, b in pairs),
    )


def bench_calls(rounds: int, figures: dict[str, Any], *, has_torch: bool) -> None:
    """Measure every call beside the threaded group, and all_reduce beside LocalTensor."""
    for num_ranks in RANKS:
        num_calls = 4000 // num_ranks
        for call in CALLS:
            name = f"{call}, {num_ranks} ranks"
            ours = lambda c=call, n=num_ranks, k=num_calls: of_simrank(c, n, k)  # noqa: E731
            if not has_torch:
                ours_s = statistics.median(ours() for _ in range(rounds))
                print(f"{name:<36} simrank {ours_s * 1e6:8.0f} us")
                continue
            theirs = lambda c=call, n=num_ranks, k=num_calls: of_threaded(c, n, k)  # noqa: E731
            ours_s, theirs_s, ratio = median_ratio(ours, theirs, rounds)
            aim = AIM_PAIRS if call == "send/recv" else AIM_THREADED
            figures[name] = {"simrank_s": ours_s, "threaded_s": theirs_s, "ratio": ratio}
            print(
                f"{name:<36} simrank {ours_s * 1e6:8.0f} us   threaded {theirs_s * 1e6:8.0f} us "
                f"{ratio:6.2f} times as fast   aim {aim}"
            )
        if has_torch:
            ours = lambda n=num_ranks, k=num_calls: of_torch_program("all_reduce", n, k)  # noqa: E731
            theirs = lambda n=num_ranks, k=num_calls: of_threaded("all_reduce", n, k)  # noqa: E731
            ours_s, theirs_s, ratio = median_ratio(ours, theirs, rounds)
            name = f"all_reduce, {num_ranks} ranks, torch program"
            figures[name] = {"simrank_s": ours_s, "threaded_s": theirs_s, "ratio": ratio}
            print(
                f"{name:<36} simrank {ours_s * 1e6:8.0f} us   threaded {theirs_s * 1e6:8.0f} us "
                f"{ratio:6.2f} times as fast   aim {AIM_THREADED}"
            )
            local = lambda n=num_ranks, k=num_calls: of_local(n, k)  # noqa: E731
            ours = lambda n=num_ranks, k=num_calls: of_simrank("all_reduce", n, k)  # noqa: E731
            ours_s, local_s, ratio = median_ratio(ours, local, rounds)
            name = f"all_reduce, {num_ranks} ranks, LocalTensor"
            figures[name] = {"simrank_s": ours_s, "local_s": local_s, "ratio": 1 / ratio}
            print(
                f"{name:<36} simrank {ours_s * 1e6:8.0f} us   local    {local_s * 1e6:8.0f} us "
                f"{1 / ratio:6.2f} times its time   aim at most {AIM_LOCAL[num_ranks]}"
            )


def bench_growth(rounds: int, figures: dict[str, Any]) -> None:
    """Measure what must not grow with what is in flight, checked, or ranks."""
    checked = {"races": "error"}
    cases: tuple[tuple[str, Callable[[], float], Callable[[], float], float], ...] = (
        ("all_reduce, 8,000 over 500 in flight",
         lambda: per_call_in_flight(8000), lambda: per_call_in_flight(500), AIM_IN_FLIGHT),
        ("x.add_(1), 16,000 over 500 in flight",
         lambda: per_kernel_in_flight(16000), lambda: per_kernel_in_flight(500), AIM_IN_FLIGHT),
        ("all_reduce, 100 groups over 1",
         lambda: many_groups(100), lambda: many_groups(1), AIM_IN_FLIGHT),
        ("trace and races over plain, 8 ranks",
         lambda: of_simrank("all_reduce", 8, 500, **checked),
         lambda: of_simrank("all_reduce", 8, 500), AIM_CHECKS),
        ("trace and races over plain, 64 ranks",
         lambda: of_simrank("all_reduce", 64, 60, **checked),
         lambda: of_simrank("all_reduce", 64, 60), AIM_CHECKS),
        ("10,000 ranks x 10 over bare waits", many_ranks, bare_waits, AIM_SCALE),
    )  # fmt: skip
    for name, ours, base, aim in cases:
        ours_s, base_s, ratio = median_ratio(ours, base, rounds)
        figures[name] = {"ours_s": ours_s, "base_s": base_s, "ratio": 1 / ratio, "aim": aim}
        print(
            f"{name:<38} {ours_s * 1e6:10.0f} us   base {base_s * 1e6:10.0f} us "
            f"{1 / ratio:6.2f} times   aim at most {aim}"
        )


def profile(call: str, num_ranks: int) -> None:
    """Print where the time of a call goes: per package of simrank, then per function."""
    of_simrank(call, num_ranks, 10)
    profiler = cProfile.Profile()
    num_calls = 4000 // num_ranks
    profiler.enable()
    of_simrank(call, num_ranks, num_calls)
    profiler.disable()
    stats = pstats.Stats(profiler)
    spent: dict[str, float] = defaultdict(float)
    total = 0.0
    for (file, _, name), (_, _, own_s, _, _) in stats.stats.items():  # type: ignore[attr-defined]
        parts = Path(file).parts
        package = parts[parts.index("simrank") + 1] if "simrank" in parts else f"other: {name}"
        if not package.startswith("other") or own_s > 0.01:
            spent[package] += own_s
        total += own_s
    for package, own_s in sorted(spent.items(), key=lambda item: -item[1])[:14]:
        print(f"{own_s / total:6.1%}  {package}")
    stats.sort_stats("tottime").print_stats(30)
    print(f"{stats.total_calls / num_calls / num_ranks:.0f} Python calls per call and rank")


def main() -> None:
    """Measure, print the ratios beside the aims, and store them if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds; medians count")
    parser.add_argument("--json", type=Path, help="store the figures with machine and versions")
    parser.add_argument("--profile", metavar="CALL:RANKS", help="for example all_reduce:8")
    options = parser.parse_args()
    if options.profile:
        call, _, num_ranks = options.profile.partition(":")
        profile(call, int(num_ranks or 8))
        return
    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1:
        print("not pinned to one CPU: threads gain from a second one (taskset -c 0 pins)")
    has_torch = importlib.util.find_spec("torch") is not None
    if has_torch:
        import torch

        torch.set_num_threads(1)
    else:
        print("torch is not installed: only simrank's times, no ratios (pip install torch)")
    sys.setswitchinterval(0.005)  # The default, said.
    figures: dict[str, Any] = {}
    bench_calls(options.rounds, figures, has_torch=has_torch)
    bench_growth(max(options.rounds // 2, 1), figures)
    if options.json is not None:
        machine = {"machine": platform.platform(), "python": platform.python_version()}
        options.json.write_text(json.dumps({**machine, "seed": 0, "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
