"""How fast schedules are played: data at 1,024 ranks, times at 131,072.

Run `python benches/schedule.py [--json FILE]`. Each case runs in a fresh process, so that its peak
memory is its own; the best of some repeats is printed beside the aim.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cases import Case, main

from simrank.collectives import Problem, build, play_data
from simrank.collectives.data import NOT_ARRIVED
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


CASES = {
    "ring all_reduce, 1,024 ranks, 8 KiB": Case(lambda: ring_with_data(8 * 1024, 5), 0.08),
    "ring all_reduce, 1,024 ranks, 1 MiB": Case(lambda: ring_with_data(MIB, 3), 1.2),
    "ring all_reduce, 8 ranks, 64 MiB": Case(node_with_data, None),
    "ring times, 131,072 ranks, equal nodes": Case(lambda: ring_without_data(slow_link=False), 0.1),
    "ring times, 131,072 ranks, one slow link": Case(
        lambda: ring_without_data(slow_link=True), 20.0
    ),
    "one ring, 131,072 ranks, equal nodes": Case(
        lambda: ring_without_data(slow_link=False, num_channels=1),
        0.1,
    ),
    "one ring, 131,072 ranks, one slow link": Case(
        lambda: ring_without_data(slow_link=True, num_channels=1),
        20.0,
    ),
    "chain times, 512 ranks one by one": Case(staggered_chain, None),
    "first routes, ring of 1,000 devices": Case(first_routes, 1.0),
}


if __name__ == "__main__":
    rows = main(__file__, CASES, seconds="play_s", seed=SEED)
    if rows:
        smpi = SMPI_SECONDS / rows["ring all_reduce, 1,024 ranks, 8 KiB"]["play_s"]
        print(
            f"SimGrid SMPI needs about {SMPI_SECONDS:g} s for the first case: {smpi:.0f} times as "
            "long"
        )
