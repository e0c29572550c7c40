"""Shapes of groups: numbers of ranks and nodes, and ranks per node."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """The ranks of one group, as NCCL counts them.

    Attributes:
        num_ranks: Ranks of the group.
        num_local: Ranks on its fullest node.
        num_nodes: Nodes that it lies on.
        fewest: Ranks on its emptiest node; 0: as many as on the fullest.
    """

    num_ranks: int
    num_local: int
    num_nodes: int
    fewest: int = 0

    @classmethod
    def packed(cls, num_ranks: int, per_node: int) -> Shape:
        """Return the shape of ranks that fill one node after the other."""
        nodes = -(-num_ranks // per_node)
        last = num_ranks - per_node * (nodes - 1)
        fullest = min(num_ranks, per_node)
        return cls(num_ranks, fullest, nodes, 0 if last == fullest else last)

    @property
    def num_least(self) -> int:
        """Ranks on its emptiest node."""
        return self.fewest or self.num_local

    @property
    def depth(self) -> int:
        """Levels of a tree over the nodes."""
        return int(math.log2(self.num_nodes))

    @property
    def column(self) -> int:
        """The column of NCCL's tables: one node, two, or more."""
        return min(self.num_nodes, 3) - 1
