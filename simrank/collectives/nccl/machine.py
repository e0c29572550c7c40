"""NCCL's view of some ranks of a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simrank.collectives.nccl.placement import Shape
from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from simrank.collectives.schedule import IntArray
    from simrank.hardware import Cluster
    from simrank.hardware.spec import NcclSpec


def shape_on(nodes: IntArray) -> Shape:
    """Return the shape of ranks, given the node of each."""
    counts = np.unique(nodes, return_counts=True)[1]
    most, fewest = int(counts.max()), int(counts.min())
    return Shape(len(nodes), most, len(counts), 0 if most == fewest else fewest)


def spec_of(cluster: Cluster, shape: Shape, nics_used: int | None = None) -> NcclSpec:
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


def spec_within(cluster: Cluster, shape: Shape, nics_used: int | None = None) -> NcclSpec:
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
