"""Which ranks take part: how many, on how many nodes, and how many of them share one."""

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
    """

    num_ranks: int
    num_local: int
    num_nodes: int

    @classmethod
    def packed(cls, num_ranks: int, per_node: int) -> Shape:
        """Return the shape of ranks that fill one node after the other."""
        return cls(num_ranks, min(num_ranks, per_node), -(-num_ranks // per_node))

    @property
    def depth(self) -> int:
        """Levels of a tree over the nodes."""
        return int(math.log2(self.num_nodes))

    @property
    def column(self) -> int:
        """The column of NCCL's tables: one node, two, or more."""
        return min(self.num_nodes, 3) - 1
