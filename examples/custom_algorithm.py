"""Define a broadcast in which the root sends to every rank at once, and compare it with others.

Run: python examples/custom_algorithm.py
"""

from collections.abc import Iterator, Mapping

import numpy as np

import simrank
from simrank.collectives import Problem, register_algorithm
from simrank.collectives.algorithms import Algorithm
from simrank.collectives.schedule import Buffer, ChunkTable, Op, Round, Schedule


def star_broadcast(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Return the schedule: one round, one step per rank, as arrays."""
    ranks = np.arange(problem.world_size)
    zeros = np.zeros_like(ranks)

    def rounds() -> Iterator[Round]:
        yield Round(
            src=zeros + problem.root, src_buffer=zeros + Buffer.INPUT, src_chunk=zeros,
            dst=ranks, dst_buffer=zeros + Buffer.OUTPUT, dst_chunk=zeros,
            count=zeros + 1, op=zeros + Op.COPY, channel=zeros,
        )  # fmt: skip

    whole = ChunkTable.split(problem.count, 1)
    return Schedule(
        "broadcast", "star", problem.world_size, rounds, 1, whole, whole, root=problem.root,
        synchronizing=False, in_place_safe=False, options=options,
    )  # fmt: skip


if __name__ == "__main__":
    register_algorithm(Algorithm("broadcast", "star", star_broadcast, options={}))
    config = {
        "cluster": {"name": "hgx_h100", "cost_level": "schedule"},
        "collectives": ["broadcast"],
        "in_place": False,
        "algorithms": ["star", "binomial", "chain"],
        "sizes": ["1 KiB", "1 MiB"],
    }
    for row in simrank.bench.run(config):
        name, size, time_us = row["algorithm"], row["size_bytes"], row["time_us"]
        print(f"{name:>9} {size:>9} B {time_us:8.1f} us, {row['num_wrong']} wrong elements")
