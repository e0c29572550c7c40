"""NCCL's view of some ranks of a cluster, and the cluster's fitted constants."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simrank.collectives.nccl.laws import UNCALIBRATED, Calibration
from simrank.collectives.nccl.placement import Shape
from simrank.errors import UnsupportedError

if TYPE_CHECKING:
    from simrank.collectives.schedule import IntArray
    from simrank.config.calibration import CalibrationConfig
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


def calibration_for(cluster: Cluster, word: str | None) -> CalibrationConfig | None:
    """Return a calibration by "auto", name or file; None or "none": uncalibrated.

    Raises:
        ConfigError: Unknown name, or something in it is wrong.
    """
    if word is None or word == "none":  # As cluster files say it.
        return None
    from simrank.config.calibration import load_calibration  # noqa: PLC0415 - it is slow to import

    return fitted_to(cluster) if word == "auto" else load_calibration(word)


def fitted_to(cluster: Cluster) -> CalibrationConfig | None:
    """Return the calibration that a cluster's file names, or None."""
    from simrank.config.calibration import load_calibration  # noqa: PLC0415 - it is slow to import

    return None if cluster.nccl_fit is None else load_calibration(cluster.nccl_fit.name)


def lost_calibration(cluster: Cluster) -> str | None:
    """Return a warning for a copy of a built-in cluster that has lost its calibration, or None.

    Such a copy has the block `nccl` of one and no key `calibration`.
    """
    if cluster.nccl is None or cluster.names_calibration:
        return None
    from simrank.config.locate import builtin_names  # noqa: PLC0415 - only copies need it
    from simrank.hardware.load import load_cluster  # noqa: PLC0415 - likewise

    for name in builtin_names("calibrations"):
        if load_cluster(name).nccl == cluster.nccl:
            return (
                f"cluster {cluster.name} has the block `nccl` of {name} and not its calibration: "
                f"NCCL's own constants are used\n  to fix: add `calibration: {name}` to its file, "
                "or `calibration: none`"
            )
    return None


def constants_on(cluster: Cluster) -> Calibration:
    """Return the constants that hold on a cluster; where none were fitted, NCCL's own."""
    fit = cluster.nccl_fit
    if fit is None:
        return UNCALIBRATED
    return Calibration(takes_fastest=fit.takes_fastest, **dict(fit.constants))


def constants_of(fitted: CalibrationConfig | None) -> Calibration:
    """Return the constants that a file holds; without one, NCCL's own."""
    if fitted is None:
        return UNCALIBRATED
    return Calibration(takes_fastest=fitted.takes_fastest, **fitted.constants)
