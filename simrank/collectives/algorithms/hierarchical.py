"""Hierarchical algorithms: inside nodes first, then between equal ranks of all nodes.

What crosses the network is what one node, not one rank, has to say to another: all_reduce is a
reduce-scatter in each node, an all_reduce of every rank's part over the nodes, and an all-gather in
each node; all_to_all collects in each node what goes to one local rank anywhere.

Source:
    Cho, Finkler, Serrano, Kung and Hunter, "BlueConnect: decomposing all-reduce for deep learning
    on heterogeneous network hierarchy", MLSys 2019; the two steps of all_to_all as in Singh et al.,
    "PXN" of NVIDIA/nccl 2.12, and DeepSpeed-MoE (Rajbhandari et al., ICML 2022), section 5.2.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from simrank.collectives.algorithms.layout import local_only
from simrank.collectives.algorithms.ring import Rings, gather_rounds, reduce_rounds
from simrank.collectives.problem import Problem
from simrank.collectives.schedule import Buffer, ChunkTable, IntArray, Op, Round, Schedule

OPTIONS: Mapping[str, int] = {}


def _grid(problem: Problem) -> IntArray:
    """Return the ranks by node and place on it; one node where that is not known."""
    ranks = np.arange(problem.world_size, dtype=np.int64)
    return ranks.reshape(problem.num_nodes, -1)


def all_reduce(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Reduce-scatter in nodes, all_reduce over nodes, all-gather in nodes, all on rings.

    Rounds: 2 (g - 1) of count / g elements inside nodes of g ranks, 2 (N - 1) of count / n between
        N nodes.
    Buffers: those of `reduce_rounds`; a rank's part lies in its OUTPUT while it goes over nodes.
    """
    grid = _grid(problem)
    num_nodes, num_local = grid.shape
    table = ChunkTable.split(problem.count, problem.world_size)
    if problem.world_size == 1:
        return local_only(problem, "hierarchical", options, table=table)
    # Chunk l * N + b: the part of local rank l, of that the piece of node b.
    part, piece = np.arange(num_local) * num_nodes, np.arange(num_nodes)
    inside = Rings(grid[None], np.broadcast_to(part, (1, *grid.shape)), num_chunks=num_nodes)
    source = Buffer.OUTPUT if num_local > 1 else Buffer.INPUT
    between = Rings(grid.T[None], (part[:, None] + piece)[None], source=source)

    def rounds() -> Iterator[Round]:
        yield from reduce_rounds(inside, first_shift=1, last=lambda chunk: chunk)
        yield from reduce_rounds(between, first_shift=1, last=lambda chunk: chunk)
        yield from gather_rounds(between, first_shift=0)
        yield from gather_rounds(inside, first_shift=0)

    phases = tuple(
        phase for phase in (inside.phase(), between.phase(2), inside.phase()) if phase.num_rounds
    )
    return Schedule(
        collective=problem.collective,
        algorithm="hierarchical",
        world_size=problem.world_size,
        rounds=rounds,
        num_rounds=sum(phase.num_rounds for phase in phases),
        input=table,
        output=table,
        scratch=inside.slot_table(table),
        phases=phases,
        options=options,
    )


def all_to_all(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Sort chunks by local rank within nodes, then exchange with equal local ranks of all nodes.

    Rounds: g - 1 inside nodes of g ranks, N - 1 between N nodes, and two that are local.
    Buffers: what a rank has collected lies in SCRATCH, by sender, then by node; an INPUT under
        OUTPUT is copied first.
    """
    grid = _grid(problem)
    num_nodes, num_local = grid.shape
    tables = _exchanged(problem, grid)

    def rounds() -> Iterator[Round]:
        ranks = grid.reshape(-1)
        node, place = np.divmod(ranks, num_local)
        for shift in range(num_local):
            to = (place + shift) % num_local
            yield _move(
                (ranks, Buffer.INPUT, to * num_nodes),
                (node * num_local + to, Buffer.SCRATCH, place * num_nodes),
                num_nodes,
            )
        yield _by_node(grid)
        for shift in range(num_nodes):
            to = (node + shift) % num_nodes
            yield _move(
                (ranks, Buffer.SCRATCH, problem.world_size + to * num_local),
                (to * num_local + place, Buffer.OUTPUT, node * num_local),
                num_local,
            )

    return Schedule(
        collective=problem.collective,
        algorithm="hierarchical",
        world_size=problem.world_size,
        rounds=rounds,
        num_rounds=num_local + num_nodes - 2,
        input=tables[0],
        output=tables[1],
        scratch=tables[2],
        in_place_safe=False,
        options=options,
    )


def _exchanged(problem: Problem, grid: IntArray) -> tuple[ChunkTable, ChunkTable, ChunkTable]:
    """Return the tables of INPUT by destination, OUTPUT by sender, and SCRATCH."""
    size, (num_nodes, num_local) = problem.world_size, grid.shape
    by_place = grid.T.reshape(-1)  # Ranks in the order of INPUT's chunks.
    if problem.splits is None:
        each = ChunkTable.from_sizes(np.full(size, problem.count))
        given = ChunkTable(each.start[by_place], each.size)
        return given, each, ChunkTable.from_sizes(np.full(2 * size, problem.count))
    matrix = np.array(problem.splits, dtype=np.int64).reshape(size, size)
    sent, received = ChunkTable.from_sizes(matrix), ChunkTable.from_sizes(matrix.T)
    given = ChunkTable(sent.start[:, by_place], sent.size[:, by_place])
    # [node, place, sender on the node, node that it goes to, at the same place]
    blocks = matrix.reshape(num_nodes, num_local, num_nodes, num_local).transpose(0, 3, 1, 2)
    collected = np.concatenate(
        [blocks.reshape(size, size), blocks.swapaxes(2, 3).reshape(size, size)], axis=1
    )
    return given, received, ChunkTable.from_sizes(collected)


def _by_node(grid: IntArray) -> Round:
    """Return the local round that sorts collected chunks by destination node."""
    num_nodes, num_local = grid.shape
    sender, node = (part.reshape(-1) for part in np.indices((num_local, num_nodes)))
    ranks = np.repeat(grid.reshape(-1), grid.size)
    src, dst = sender * num_nodes + node, grid.size + node * num_local + sender
    return _move(
        (ranks, Buffer.SCRATCH, np.tile(src, grid.size)),
        (ranks, Buffer.SCRATCH, np.tile(dst, grid.size)),
        1,
    )


_Place = tuple[IntArray, Buffer, IntArray]  # Rank, buffer and first chunk of each step.


def _move(src: _Place, dst: _Place, count: int) -> Round:
    zeros = np.zeros_like(src[0])
    return Round(
        src=src[0],
        dst=dst[0],
        src_buffer=zeros + src[1],
        src_chunk=src[2],
        dst_buffer=zeros + dst[1],
        dst_chunk=dst[2],
        count=zeros + count,
        op=zeros + Op.COPY,
        channel=zeros,
    )
