"""NCCL's view of some ranks of a cluster, and the shapes of groups."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from simrank.collectives.schedule import IntArray
    from simrank.hardware import Cluster
    from simrank.hardware.spec import NcclSpec


# ---- shapes of groups: numbers of ranks and nodes, and ranks per node ----


@dataclass(frozen=True, slots=True)
class GroupShape:
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
    def packed(cls, num_ranks: int, per_node: int) -> GroupShape:
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


# ---- NCCL's view of some ranks of a cluster ----


def shape_on(nodes: IntArray) -> GroupShape:
    """Return the shape of ranks, given the node of each."""
    counts = np.unique(nodes, return_counts=True)[1]
    most, fewest = int(counts.max()), int(counts.min())
    return GroupShape(len(nodes), most, len(counts), 0 if most == fewest else fewest)


def spec_of(cluster: Cluster, shape: GroupShape, nics_used: int | None = None) -> NcclSpec:
    """Return NCCL's view of some ranks of a cluster; each rank uses its nearest network cards.

    Args:
        cluster: The cluster.
        shape: Which ranks take part.
        nics_used: Cards of a node that carry data; None: those beside the ranks.

    Raises:
        UnsupportedError: The cluster says nothing of NCCL, or nothing of a network; or the ranks
            are of several pods.
    """
    pods = cluster.topology.pods
    if pods is not None and shape.num_nodes > pods.num_nodes:
        raise UnsupportedError(
            f"{shape.num_nodes} nodes are of several pods of cluster {cluster.name}, and closed "
            "forms know nothing of what meets on an uplink\n"
            "  to fix: simulate it (algorithm auto), or take the nodes of one pod"
        )
    return spec_within(cluster, shape, nics_used)


def spec_within(cluster: Cluster, shape: GroupShape, nics_used: int | None = None) -> NcclSpec:
    """Return NCCL's view of the ranks as if all nodes were in one pod."""
    spec = cluster.nccl
    if spec is None:
        raise UnsupportedError(
            f"cluster {cluster.name} does not say what NCCL finds on it\n"
            "  to fix: add a block `nccl` to its file; configs/clusters/README.md has its keys"
        )
    if shape.num_nodes > 1 and not (spec.nics and spec.nic_bytes_per_s):
        raise UnsupportedError(
            f"cluster {cluster.name} does not say what network cards NCCL finds\n"
            "  to fix: add `nics` and `nic_bandwidth` to the block `nccl` of its file"
        )
    beside = -(-spec.nics * shape.num_least // cluster.devices_per_node)
    return replace(spec, nics=nics_used or beside)
