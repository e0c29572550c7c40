"""How long large programs take: 1,024 ranks in three kinds of groups, 131,072, and predictions.

Run `python benches/scale.py [--json FILE]`. Each case runs in a fresh process, so that its peak
memory is its own. Data is left out, as for any model of that size.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cases import Case, main

import simrank
import simrank.distributed as dist

TENSOR, PIPELINE, DATA = 8, 8, 16  # Megatron's sizes of groups: 1,024 ranks.
NUM_RANKS = TENSOR * PIPELINE * DATA
CLUSTER = {"name": "h100_ib", "nodes": NUM_RANKS // 8}
NUM_TENSOR_CALLS, NUM_DATA_CALLS, NUM_MESSAGES = 80, 16, 4  # Per rank and step: 100.
NUM_GROUPS_PER_RANK = 108
MOST_RANKS = 131_072


def clock(read: Callable[[], float] = time.perf_counter) -> float:
    """Return wall time: a default is bound before any Context replaces it in this module."""
    return read()


def _layout() -> list[list[int]]:
    """Return the members of every group: tensor next to each other, then data, then pipeline."""
    ranks = np.arange(NUM_RANKS).reshape(PIPELINE, DATA, TENSOR)
    by_tensor = ranks.reshape(-1, TENSOR)
    by_data = np.moveaxis(ranks, 1, 2).reshape(-1, DATA)
    by_pipeline = np.moveaxis(ranks, 0, 2).reshape(-1, PIPELINE)
    return [row.tolist() for table in (by_tensor, by_data, by_pipeline) for row in table]


def megatron_step() -> dict[str, Any]:
    """Return the wall time of one step: 80 all_reduces in TP, 16 in DP, 4 messages along PP."""
    layout, times = _layout(), []

    def program(rank: int) -> None:
        dist.init_process_group("nccl")
        mine = [dist.new_group(group, use_local_synchronization=True) for group in layout
                if rank in group]  # fmt: skip
        tensor_group, data_group, pipeline_group = mine
        stage = dist.get_rank(pipeline_group)
        x, y = simrank.empty(1 << 20), simrank.empty(1 << 16)
        dist.barrier()
        times.append(clock())
        for _ in range(NUM_MESSAGES // 2):
            if stage > 0:
                dist.recv(y, rank - NUM_RANKS // PIPELINE)
            for _ in range(NUM_TENSOR_CALLS // 2):
                dist.all_reduce(x, group=tensor_group)
            if stage < PIPELINE - 1:
                dist.send(y, rank + NUM_RANKS // PIPELINE)
        for _ in range(NUM_DATA_CALLS):
            dist.all_reduce(x, group=data_group)
        dist.barrier()
        times.append(clock())

    with simrank.Context(CLUSTER, data=False) as context:
        context.multiprocessing.spawn(program, nprocs=NUM_RANKS)
        simulated_ms = context.now_ps / 1e9
    return {"wall_s": max(times) - min(times), "simulated_ms": simulated_ms}


def new_groups() -> dict[str, Any]:
    """Return the wall time of 108 calls of new_group on each of 1,024 ranks."""
    layout, times = _layout()[:NUM_GROUPS_PER_RANK], []

    def program(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        times.append(clock())
        for members in layout:
            dist.new_group(members)
        times.append(clock())

    with simrank.Context(CLUSTER, data=False) as context:
        context.multiprocessing.spawn(program, nprocs=NUM_RANKS)
    return {"wall_s": max(times) - min(times)}


def tensor_parallel_world(straggler: bool = False) -> dict[str, Any]:
    """Return the wall time of 131,072 ranks: 8 all_reduces in each node, and one of all.

    Args:
        straggler: Let one rank come late to each of its calls.
    """

    def program(rank: int) -> None:
        dist.init_process_group("nccl")
        first = rank // TENSOR * TENSOR
        mine = dist.new_group(list(range(first, first + TENSOR)), use_local_synchronization=True)
        x = simrank.empty(1 << 16)
        for _ in range(8):
            dist.all_reduce(x, group=mine)
        dist.all_reduce(x)

    faults = [{"delay_arrivals": MOST_RANKS // 3, "by": "50 us"}] if straggler else []
    cluster = {"name": "h100_ib", "nodes": MOST_RANKS // TENSOR}
    begin = clock()
    forced = {"all_reduce": "hierarchical"}
    with simrank.Context(cluster, data=False, algorithms=forced, faults=faults) as context:
        context.multiprocessing.spawn(program, nprocs=MOST_RANKS)
        simulated_ms = context.now_ps / 1e9
    return {"wall_s": clock() - begin, "simulated_ms": simulated_ms}


def predictions() -> dict[str, Any]:
    """Return the wall time of 100,000 predictions in one call."""
    sizes = np.arange(1, 100_001) << 14
    simrank.predict("all_reduce", sizes[:1], 1024, "h100_ib", nodes=128)
    begin = clock()
    found = simrank.predict("all_reduce", sizes, 1024, "h100_ib", nodes=128)
    return {"wall_s": clock() - begin, "sizes": len(found.time_us)}


CASES = {
    "step of 1,024 ranks, 100 calls each": Case(megatron_step, 2.0),
    "new_group, 108 on each of 1,024 ranks": Case(new_groups, 3.0),
    "131,072 ranks, 9 calls each": Case(tensor_parallel_world, 30.0),
    "131,072 ranks, one of them late": Case(lambda: tensor_parallel_world(straggler=True), 30.0),
    "100,000 predictions": Case(predictions, 1.0),
}


if __name__ == "__main__":
    main(__file__, CASES, seconds="wall_s")
