"""What one case costs on a warm pool of 4 workers, beside starting fresh processes for it.

Three kinds of case: nothing at all on plain processes; nothing, and an all_reduce of 1,024 floats,
on gloo's process group where torch is installed. Fresh processes are the pool's own (start, one
case, end) and, with torch, those of `torch.multiprocessing.spawn`, which make a group each time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrank.validate import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_WORKERS, NUM_CASES, NUM_FRESH = 4, 100, 3
AIM_MS = 20.0


def nothing() -> None:
    """Be a case that only costs what the pool costs."""


def all_reduce() -> None:
    """Sum 1,024 floats over all workers."""
    import torch  # noqa: PLC0415 - optional
    import torch.distributed as dist  # noqa: PLC0415 - optional

    dist.all_reduce(torch.ones(1024))


def spawned(rank: int, store: str) -> None:
    """Be a process of torch's spawn: make a group, sum, leave it."""
    import torch.distributed as dist  # noqa: PLC0415 - optional

    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=NUM_WORKERS)
    all_reduce()
    dist.destroy_process_group()


def milliseconds(call: Callable[[], Any], times: int) -> list[float]:
    """Return how long each of some calls took."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        found.append((time.perf_counter() - start) * 1e3)
    return found


def fresh(backend: str | None, case: Callable[[], None]) -> None:
    """Start workers, run one case, end them."""
    with WorkerPool(NUM_WORKERS, backend) as pool:
        pool.run(case)


def by_spawn() -> None:
    """Run one case on processes of torch's spawn."""
    import torch.multiprocessing as mp  # noqa: PLC0415 - optional

    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(spawned, (f"file://{folder}/store",), nprocs=NUM_WORKERS)


def measure(name: str, backend: str | None, case: Callable[[], None]) -> dict[str, float]:
    """Print and return the times of one kind of case, in milliseconds."""
    with WorkerPool(NUM_WORKERS, backend) as pool:
        milliseconds(lambda: pool.run(case), 5)
        warm = milliseconds(lambda: pool.run(case), NUM_CASES)
    figures = {
        "warm_median_ms": statistics.median(warm),
        "warm_p95_ms": statistics.quantiles(warm, n=20)[-1],
        "fresh_ms": statistics.median(milliseconds(lambda: fresh(backend, case), NUM_FRESH)),
    }
    print(
        f"{name:<24} warm {figures['warm_median_ms']:7.2f} ms (p95 {figures['warm_p95_ms']:7.2f})"
        f"   fresh {figures['fresh_ms']:8.0f} ms   aim under {AIM_MS:g} ms warm"
    )
    return figures


def main() -> None:
    """Measure, print both beside the aim, and store them if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="store the figures with machine and versions")
    options = parser.parse_args()
    figures: dict[str, Any] = {"plain, nothing": measure("plain, nothing", None, nothing)}
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed: no gloo (pip install torch)")
    else:
        figures["gloo, nothing"] = measure("gloo, nothing", "gloo", nothing)
        figures["gloo, all_reduce"] = measure("gloo, all_reduce", "gloo", all_reduce)
        spawn_ms = statistics.median(milliseconds(by_spawn, NUM_FRESH))
        figures["torch.multiprocessing.spawn"] = {"fresh_ms": spawn_ms}
        print(f"{'torch mp.spawn, the same':<24} {'':<29}   fresh {spawn_ms:8.0f} ms")
    if options.json is not None:
        machine = {"machine": platform.platform(), "python": platform.python_version()}
        options.json.write_text(json.dumps({**machine, "seed": 0, "figures": figures}, indent=1))
    slow = [name for name, at in figures.items() if at.get("warm_median_ms", 0.0) >= AIM_MS]
    sys.exit(f"over the aim: {', '.join(slow)}" if slow else 0)


if __name__ == "__main__":
    main()
