"""How fast schedules are played: data at 1,024 ranks, times at 131,072.

Run `python benches/schedule.py [--json FILE]`. Each case runs in a fresh process, so that its peak
memory is its own; the best of some repeats is printed beside the aim.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import simrank
from simrank.collectives import Problem, build, play_data
from simrank.collectives.play import NOT_ARRIVED
from simrank.collectives.reference import count_wrong
from simrank.collectives.time_rounds import TimePlayer
from simrank.hardware import load_cluster

SEED = 0
MIB = 1 << 20

# SimGrid's SMPI plays the ring all-reduce of 8 KiB on 1,024 ranks in about this time on a machine
# of the same class (reported; it is not run here).
SMPI_SECONDS = 30.0


def best_of(repeats: int, action: Callable[[], object]) -> float:
    """Return the shortest wall time of an action, in seconds."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return min(times)


def ring_with_data(bytes_per_rank: int, repeats: int) -> dict[str, Any]:
    """Return the times to build and to play one ring all_reduce of float32 on 1,024 ranks.

    It runs in place, as programs do it, so that the peak is the ranks' own buffers. The first play
    is compared with a sum in float64; the others add up what it left.
    """
    num_ranks, count = 1024, bytes_per_rank // 4
    problem = Problem("all_reduce", num_ranks, count)
    begin = time.perf_counter()
    schedule = build(problem, "ring")
    num_rounds = sum(1 for _ in schedule.rounds())
    build_s = time.perf_counter() - begin
    buffers = np.random.default_rng(SEED).random((num_ranks, count), dtype=np.float32)
    expected = buffers.sum(axis=0, dtype=np.float64)
    play_s = best_of(1, lambda: play_data(schedule, buffers, outputs=buffers))
    allowed = expected * num_ranks * np.finfo(np.float32).eps
    num_wrong = sum(int((abs(row - expected) > allowed).sum()) for row in buffers)
    others_s = best_of(repeats - 1, lambda: play_data(schedule, buffers, outputs=buffers))
    play_s = min(play_s, others_s)
    return {"play_s": play_s, "build_s": build_s, "rounds": num_rounds, "num_wrong": num_wrong}


def ring_without_data(*, slow_link: bool, num_channels: int = 0) -> dict[str, Any]:
    """Return the times to build and to time one ring all_reduce on 131,072 ranks.

    Args:
        slow_link: Whether one link of one node is slow.
        num_channels: Rings; by default one for each of the eight rails, as the chooser takes them.
    """
    cluster = load_cluster({"name": "h100_ib", "nodes": 16_384})
    if slow_link:
        cluster = cluster.with_link("gpu3", "nvswitch", node=7_000, bandwidth_bytes_per_s=1e9)
    num_ranks = cluster.num_devices
    begin = time.perf_counter()
    problem = Problem("all_reduce", num_ranks, num_ranks * 2048, node_size=8)
    schedule = build(problem, "ring", options={"num_channels": num_channels})
    build_s = time.perf_counter() - begin
    arrivals = np.random.default_rng(SEED).integers(0, 10**7, num_ranks)
    devices = np.arange(num_ranks)

    def play() -> None:
        TimePlayer(schedule, network=cluster, devices=devices, itemsize=4).completions(arrivals)

    found = {"play_s": best_of(3, play), "build_s": build_s, "rounds": schedule.num_rounds}
    return {**found, "channels": schedule.num_channels}


def staggered_chain() -> dict[str, Any]:
    """Return the time to evaluate a chain broadcast after each of 512 arrivals, one by one."""
    cluster = load_cluster({"name": "h100_ib", "nodes": 64})
    schedule = build(Problem("broadcast", 512, 1000), "chain")

    def play() -> None:
        player = TimePlayer(schedule, network=cluster, devices=np.arange(512), itemsize=4)
        arrivals = np.full(512, NOT_ARRIVED)
        for rank in range(512):
            arrivals[rank] = rank * 10**8
            player.completions(arrivals)

    return {"play_s": best_of(1, play), "rounds": schedule.num_rounds}


def first_routes() -> dict[str, Any]:
    """Return the time of the first look-up of neighbours on a ring of 1,000 devices."""
    links = [
        {"between": [f"gpu{i}", f"gpu{(i + 1) % 1000}"], "bandwidth": "1 GB/s", "latency": "1 us"}
        for i in range(1000)
    ]
    device = {"like": "hgx_h100", "count": 1000}
    cluster = load_cluster({"name": "r", "source": "assumed", "device": device, "links": links})
    ranks = np.arange(1000)
    return {"play_s": best_of(1, lambda: cluster.paths(ranks, np.roll(ranks, -1)))}


def node_with_data() -> dict[str, Any]:
    """Return the time to play one ring all_reduce of 64 MiB on 8 ranks."""
    problem = Problem("all_reduce", 8, 16 * MIB)
    schedule = build(problem, "ring")
    inputs = [np.full(16 * MIB, rank, dtype=np.float32) for rank in range(8)]
    outputs = [np.zeros_like(array) for array in inputs]
    play_s = best_of(3, lambda: play_data(schedule, inputs, outputs=outputs))
    check_s = best_of(1, lambda: count_wrong(problem, inputs, outputs))
    return {"play_s": play_s, "check_s": check_s}


CASES: dict[str, tuple[Callable[[], dict[str, Any]], float | None]] = {
    "ring all_reduce, 1,024 ranks, 8 KiB": (lambda: ring_with_data(8 * 1024, 5), 0.08),
    "ring all_reduce, 1,024 ranks, 1 MiB": (lambda: ring_with_data(MIB, 3), 1.2),
    "ring all_reduce, 8 ranks, 64 MiB": (node_with_data, None),
    "ring times, 131,072 ranks, equal nodes": (lambda: ring_without_data(slow_link=False), 0.1),
    "ring times, 131,072 ranks, one slow link": (lambda: ring_without_data(slow_link=True), 20.0),
    "one ring, 131,072 ranks, equal nodes": (
        lambda: ring_without_data(slow_link=False, num_channels=1),
        0.1,
    ),
    "one ring, 131,072 ranks, one slow link": (
        lambda: ring_without_data(slow_link=True, num_channels=1),
        20.0,
    ),
    "chain times, 512 ranks one by one": (staggered_chain, None),
    "first routes, ring of 1,000 devices": (first_routes, 1.0),
}


def run_case(name: str) -> dict[str, Any]:
    """Run a case in a process of its own and return its figures."""
    command = [sys.executable, __file__, "--case", name]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def print_row(name: str, found: dict[str, Any]) -> None:
    """Print one case beside its aim."""
    aim = CASES[name][1]
    beside = "" if aim is None else f"  aim {aim:g} s ({found['play_s'] / aim:.2f} of it)"
    rest = {key: value for key, value in found.items() if key not in ("play_s", "peak_mib")}
    notes = ", ".join(f"{key} {value:.4g}" for key, value in rest.items())
    print(f"{name:42} {found['play_s']:8.4f} s{beside}; peak {found['peak_mib']:.0f} MiB; {notes}")


def main() -> None:
    """Run all cases, or the one that the parent process asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=list(CASES), help="run one case here, print JSON")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    if arguments.case:
        found = CASES[arguments.case][0]()
        found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(found))
        return
    rows = {}
    for name in CASES:
        rows[name] = run_case(name)
        print_row(name, rows[name])
    smpi = SMPI_SECONDS / rows["ring all_reduce, 1,024 ranks, 8 KiB"]["play_s"]
    print(
        f"SimGrid SMPI needs about {SMPI_SECONDS:g} s for the first case: {smpi:.0f} times as long"
    )
    if arguments.json:
        about = {"machine": platform.platform(), "python": platform.python_version()}
        about |= {"simrank": simrank.__version__, "numpy": np.__version__}
        arguments.json.write_text(
            json.dumps({"seed": SEED, **about, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
