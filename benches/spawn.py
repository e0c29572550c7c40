"""How long an 8-rank test takes, beside torch.multiprocessing.spawn with gloo.

The program does 50 all_reduces of 1,024 floats. Two figures: a fresh interpreter that runs it once,
and one call of spawn in a warm process. Without torch only simrank's times are printed. Ratios are
what counts: absolute times depend on the machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Byte code is kept, as on a user's machine: without it, every start would compile both libraries.
WRITING = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
AIMS = {"fresh interpreter": 30, "warm call": 200}  # torch's time over simrank's
NUM_RANKS, NUM_CALLS, NUM_ELEMENTS = 8, 50, 1024

SIMRANK = f"""
import simrank
import simrank.distributed as dist

def program(rank):
    dist.init_process_group()
    x = simrank.ones({NUM_ELEMENTS})
    for _ in range({NUM_CALLS}):
        dist.all_reduce(x, dist.ReduceOp.AVG)
    assert x[0].item() == 1.0
    dist.destroy_process_group()

def run():
    simrank.multiprocessing.spawn(program, nprocs={NUM_RANKS})
"""

TORCH = f"""
import socket
import torch
import torch.distributed as dist

def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

def program(rank, port):
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{{port}}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size={NUM_RANKS})
    x = torch.ones({NUM_ELEMENTS})
    for _ in range({NUM_CALLS}):
        dist.all_reduce(x)
        x /= {NUM_RANKS}
    assert x[0].item() == 1.0
    dist.destroy_process_group()

def run():
    torch.multiprocessing.spawn(program, (free_port(),), nprocs={NUM_RANKS})
"""

TIMED = """
if __name__ == "__main__":
    import time
    times = []
    for _ in range({num_calls}):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    print(min(times))
"""


def measure(source: str, folder: Path, num_calls: int) -> tuple[float, float]:
    """Return seconds of a fresh interpreter with one call, and of the best call of a warm one."""
    path = folder / "program.py"
    fresh = []
    for calls in (1, num_calls):
        path.write_text(source + TIMED.format(num_calls=calls))
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, check=True, env=WRITING
        )
        fresh.append(time.perf_counter() - start)
    return fresh[0], float(done.stdout)


def main() -> None:
    """Measure, print the ratios beside the aims, and store them if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; medians count")
    parser.add_argument("--json", type=Path, help="store the figures with machine and versions")
    options = parser.parse_args()
    has_torch = importlib.util.find_spec("torch") is not None
    if not has_torch:
        print("torch is not installed: only simrank's times, no ratios (pip install torch)")
    times: dict[str, list[tuple[float, float]]] = {"simrank": [], "torch": []}
    with tempfile.TemporaryDirectory() as folder:
        measure(SIMRANK, Path(folder), 1)  # Not counted: byte code may have to be written.
        for _ in range(options.rounds):
            times["simrank"].append(measure(SIMRANK, Path(folder), 10))
            if has_torch:
                times["torch"].append(measure(TORCH, Path(folder), 2))
    figures: dict[str, Any] = {}
    for index, (case, aim) in enumerate(AIMS.items()):
        ours = statistics.median(entry[index] for entry in times["simrank"])
        figures[case] = {"simrank_s": ours}
        line = f"{case:<18} simrank {ours * 1e3:9.1f} ms"
        if has_torch:
            theirs = statistics.median(entry[index] for entry in times["torch"])
            figures[case] |= {"torch_s": theirs, "ratio": theirs / ours, "aim": aim}
            line += (
                f"   torch + gloo {theirs * 1e3:9.1f} ms   {theirs / ours:7.1f} times   aim {aim}"
            )
        print(line)
    if options.json is not None:
        machine = {"machine": platform.platform(), "python": platform.python_version()}
        options.json.write_text(json.dumps({**machine, "seed": 0, "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
