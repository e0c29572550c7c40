"""Double binary tree: each of two trees sums half of the data, and copies it down.

A node that is inside one tree is a leaf of the other, so that both together load every node alike.
Inside a node the ranks are a chain, whose head is the node's member of the tree.

Source:
    Sanders, Speck and Traff, "Two-tree algorithms for full bandwidth broadcast, reduction and
    scan", Parallel Computing 35(12), 2009; chains inside nodes as in NCCL 2.30
    `src/graph/trees.cc` and `connect.cc`.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from simrank.collectives.algorithms.layout import local_copy, local_only
from simrank.collectives.algorithms.ring import NO_FAN, Hops, node_ranks, num_pieces
from simrank.collectives.problem import Problem
from simrank.collectives.schedule import Buffer, ChunkTable, IntArray, Op, Round, Schedule

OPTIONS = {"num_channels": 0, "num_chunks": 0}
MAX_HOPS = 1 << 18  # Assumed: with more, fewer rails are distinguished.
MAX_CHANNELS = 32  # NCCL 2.30 src/include/device.h, MAXCHANNELS: two of its channels are one here.


def all_reduce(problem: Problem, options: Mapping[str, int]) -> Schedule:
    """Reduce up two trees at once, and copy the sums down.

    Rounds: twice the height of the trees, and one more for each further piece (option num_chunks).
    Buffers: no SCRATCH; sums grow in OUTPUT, rounded to the storage dtype at each rank.
    """
    nodes = node_ranks(problem)
    num_nodes, num_local = nodes.shape
    rails = min(num_local, MAX_CHANNELS) if num_nodes > 1 else 1
    most = max(1, MAX_HOPS // (4 * problem.world_size))
    channels = options["num_channels"] or min(rails, most)
    if channels > MAX_CHANNELS:
        raise ValueError(f"num_channels may be at most {MAX_CHANNELS}, got {channels}")
    num_hops = 4 * channels * (problem.world_size - 1)
    pieces = num_pieces(
        problem, options["num_chunks"], num_parts=2 * channels, num_hops=num_hops
    )  # fmt: skip
    options = {**options, "num_channels": channels, "num_chunks": pieces}
    table = ChunkTable.split(problem.count, 2 * channels * pieces)
    if problem.world_size == 1:
        return local_only(problem, "tree", options, table=table)
    hops = Hops.join([_hops(nodes, channel, second) for channel in range(channels)
                      for second in (0, 1)])  # fmt: skip

    def rounds() -> Iterator[Round]:
        yield _input_copy(problem.world_size, table.num_chunks)
        yield from hops.rounds(pieces)

    return Schedule(
        collective=problem.collective,
        algorithm="tree",
        world_size=problem.world_size,
        rounds=rounds,
        num_rounds=hops.num_rounds(pieces),
        input=table,
        output=table,
        num_channels=2 * channels,
        options=options,
    )


class Tree(NamedTuple):
    """A tree over some members; every array has one entry per member.

    Attributes:
        parent: The member above; -1 for the root.
        depth: Edges up to the root.
        height: Edges down to the farthest leaf.
    """

    parent: IntArray
    depth: IntArray
    height: IntArray

    @classmethod
    def of(cls, parent: IntArray) -> "Tree":
        """Return the tree in which each member has a parent."""
        depth = np.zeros_like(parent)
        above = parent
        while (above >= 0).any():
            depth = depth + (above >= 0)
            above = np.where(above >= 0, parent[above], -1)
        height = np.zeros_like(parent)
        for level in range(int(depth.max()), 0, -1):
            members = np.flatnonzero(depth == level)
            np.maximum.at(height, parent[members], height[members] + 1)
        return cls(parent, depth, height)

    def hops(self, ranks: IntArray, part: int, begin: int = 0) -> Hops:
        """Return the hops of a part of the data: sums up to the root, and copies of it down.

        Args:
            ranks: Rank of each member.
            part: Number of the part.
            begin: Round in which the leaves begin.
        """
        child = np.flatnonzero(self.parent >= 0)
        parent = self.parent[child]
        is_up = np.arange(2 * len(child)) < len(child)
        up, down = self.height[child], int(self.height.max()) + self.depth[parent]
        output = np.full(len(is_up), Buffer.OUTPUT, dtype=np.int64)
        return Hops(
            src=ranks[np.concatenate((child, parent))],
            dst=ranks[np.concatenate((parent, child))],
            src_buffer=output,
            dst_buffer=output,
            op=np.where(is_up, Op.REDUCE, Op.COPY),
            part=np.full(len(is_up), part, dtype=np.int64),
            begin=begin + np.concatenate((up, down)),
            fan=np.full(len(is_up), NO_FAN, dtype=np.int64),
        )


def binary_trees(num_members: int) -> tuple[IntArray, IntArray]:
    """Return the parents of each member in two binary trees; the root's is -1.

    In the first tree, every second member is a leaf. The second is the first one mirrored, or, of
    an odd number, moved on by one member, so that those are inside it.
    """
    member = np.arange(num_members, dtype=np.int64)
    lowest_bit = member & -member
    above = (member ^ lowest_bit) | (lowest_bit << 1)
    parent = np.where(above < num_members, above, member ^ lowest_bit)
    parent[0] = -1
    if num_members % 2:
        moved = np.roll(parent, 1)
        return parent, np.where(moved >= 0, (moved + 1) % num_members, -1)
    mirrored = parent[::-1]
    return parent, np.where(mirrored >= 0, num_members - 1 - mirrored, -1)


def _hops(nodes: IntArray, channel: int, second: int) -> Hops:
    """Return the hops of one of the two trees of a channel.

    The chain of each channel begins at another rank of the node, which is beside another network
    card. On a single node the second chain runs the other way.
    """
    num_nodes, num_local = nodes.shape
    order = np.roll(nodes, -(channel % num_local), axis=1)
    if num_nodes == 1 and second:
        order = order[:, ::-1]
    parent = np.arange(-1, order.size - 1, dtype=np.int64)  # Chains of ranks, node by node.
    heads = binary_trees(num_nodes)[second]
    parent[::num_local] = np.where(heads >= 0, heads * num_local, -1)
    return Tree.of(parent).hops(order.reshape(-1), 2 * channel + second)


def _input_copy(num_ranks: int, num_chunks: int) -> Round:
    """Return the local round that copies every chunk of INPUT to OUTPUT."""
    chunks = np.tile(np.arange(num_chunks, dtype=np.int64), num_ranks)
    ranks = np.repeat(np.arange(num_ranks, dtype=np.int64), num_chunks)
    return local_copy(ranks, chunks, src_chunk=chunks)
