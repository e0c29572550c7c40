"""All-reduce in the switch of an NVLink domain (NVLS), and with trees between such domains.

A switch reads one chunk from all ranks and hands their sum to the one that owns it (a fan of steps
into one rank), and it writes what a rank sends once into all of them (a fan out of one rank). While
one piece is reduced, the one before it is spread.

Source:
    Klenk et al., "An in-network architecture for accelerating shared-memory multiprocessor
    collectives", ISCA 2020; NVLS and NVLSTree as in NCCL 2.30 `src/device/all_reduce.h`. Sums
    accumulate in float32, as with PTX `multimem.ld_reduce ... .acc::f32`.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from simrank.collectives.algorithms import tree
from simrank.collectives.algorithms.layout import local_only
from simrank.collectives.algorithms.ring import Hops, node_ranks, num_pieces
from simrank.collectives.problem import Problem
from simrank.collectives.schedule import Buffer, ChunkTable, IntArray, Op, Schedule

OPTIONS = {"num_chunks": 0}
MAX_WORLD_SIZE = 1024  # Assumed: each rank takes steps with all others of its node.


def all_reduce(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Return the schedule in which the switch reduces and multicasts a part per rank.

    Of more ranks than `MAX_WORLD_SIZE`, the double tree stands for it.

    Rounds: one per piece of a part (option num_chunks), and one more.
    Buffers: SCRATCH is where a rank's own share comes back; every part is rounded once.
    """
    if problem.world_size > MAX_WORLD_SIZE:
        return _plain_tree(problem, "nvls", options)
    ranks = np.arange(problem.world_size, dtype=np.int64).reshape(1, -1)
    begins = np.zeros(1, dtype=np.int64)
    hops = Hops.join([_reduce(ranks, ranks[0], 0), _spread(ranks, ranks[0], 1 + begins)])
    return _schedule(problem, "nvls", options, hops=hops, num_parts=problem.world_size)


def tree_all_reduce(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Reduce in every node's switch and over two trees of nodes, then multicast in the switches.

    Where nodes have different numbers of ranks, and of more ranks than `MAX_WORLD_SIZE`, the double
    tree stands for it.

    Rounds: twice the height of the trees and two more, and one more for each further piece.
    Buffers: SCRATCH as in `all_reduce`; a part is rounded in its node, and at each node of its
        tree.
    """
    nodes = node_ranks(problem)
    num_nodes, num_local = nodes.shape
    if num_local == 1 or problem.world_size > MAX_WORLD_SIZE:
        return _plain_tree(problem, "nvls_tree", options)
    found = []
    for second, parent in enumerate(tree.binary_trees(num_nodes)):
        over_nodes = tree.Tree.of(parent)
        parts = 2 * np.arange(num_local, dtype=np.int64) + second
        found.append(_reduce(nodes, parts, second * problem.world_size))
        if num_nodes > 1:
            found += [
                over_nodes.hops(nodes[:, local], int(part), begin=1)
                for local, part in enumerate(parts)
            ]
        arrives = 1 + int(over_nodes.height.max()) + over_nodes.depth
        found.append(_spread(nodes, parts, arrives, first_fan=(2 + second) * problem.world_size))
    hops = Hops.join(found)
    return _schedule(problem, "nvls_tree", options, hops=hops, num_parts=2 * num_local)


def _plain_tree(problem: Problem, algorithm: str, options: Mapping[str, int]) -> Schedule:
    return replace(tree.all_reduce(problem, {**tree.OPTIONS, **options}), algorithm=algorithm)


def _reduce(nodes: IntArray, parts: IntArray, first_fan: int) -> Hops:
    """Return the hops in which the rank that owns a part gets its sum over the node, from INPUT.

    Shapes: (N nodes, g ranks on each)
        nodes: [N, g]
        parts: [g]

    Args:
        nodes: Ranks of each node.
        parts: What each rank of a node owns.
        first_fan: Number of the first fan.
    """
    owner, other, part = _pairs(nodes, parts)
    is_first = np.tile(np.arange(nodes.shape[1]) == 0, nodes.size)
    return Hops(
        src=other,
        dst=owner,
        src_buffer=np.full_like(owner, Buffer.INPUT),
        dst_buffer=np.full_like(owner, Buffer.OUTPUT),
        op=np.where(is_first, Op.COPY, Op.REDUCE),
        part=part,
        begin=np.zeros_like(owner),
        fan=first_fan + owner,
    )


def _spread(
    nodes: IntArray, parts: IntArray, begins: IntArray, first_fan: int | None = None
) -> Hops:
    """Return the hops in which all ranks of a node get each part from its owner.

    The switch sends to the owner too, which has it: that goes to SCRATCH.

    Args:
        nodes: [N, g] ranks of each node.
        parts: [g] what each rank of a node owns.
        begins: [N] round in which a node has the first piece.
        first_fan: Number of the first fan; by default those behind one fan per rank.
    """
    owner, other, part = _pairs(nodes, parts)
    first = nodes.size if first_fan is None else first_fan
    return Hops(
        src=owner,
        dst=other,
        src_buffer=np.full_like(owner, Buffer.OUTPUT),
        dst_buffer=np.where(owner == other, Buffer.SCRATCH, Buffer.OUTPUT),
        op=np.full_like(owner, Op.COPY),
        part=part,
        begin=np.repeat(begins, nodes.shape[1] ** 2),
        fan=first + owner,
    )


def _pairs(nodes: IntArray, parts: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return (owner, rank of its node, owner's part) for all pairs of each node."""
    num_nodes, num_local = nodes.shape
    owner = np.repeat(nodes.reshape(-1), num_local)
    other = np.repeat(nodes, num_local, axis=0).reshape(-1)
    return owner, other, np.tile(np.repeat(parts, num_local), num_nodes)


def _schedule(
    problem: Problem, algorithm: str, options: Mapping[str, int], *, hops: Hops, num_parts: int
) -> Schedule:
    pieces = num_pieces(
        problem, options["num_chunks"], num_parts=num_parts, num_hops=hops.num_hops
    )  # fmt: skip
    options = {**options, "num_chunks": pieces}
    table = ChunkTable.split(problem.count, num_parts * pieces)
    if problem.world_size == 1:
        return local_only(problem, algorithm, options, table=table)
    return Schedule(
        collective=problem.collective,
        algorithm=algorithm,
        world_size=problem.world_size,
        rounds=lambda: hops.rounds(pieces),
        num_rounds=hops.num_rounds(pieces),
        input=table,
        output=table,
        scratch=ChunkTable.from_sizes([table.max_size] * num_parts),
        num_channels=num_parts,
        wide=True,
        options=options,
    )
