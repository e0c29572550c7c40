"""Constants of NCCL's laws on a cluster, and what they rest on; start with `constants_on`.

They are pooled over many sites, fitted to measured times of the cluster, or NCCL's own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from simrank.collectives.nccl.laws import CONSTANTS, UNCALIBRATED, Calibration, Communicator
from simrank.collectives.nccl.pool import (
    FIT,
    NORMAL_90,
    NUM,
    SERIES,
    UNKNOWN,
    Constants,
    calibration_of,
    labels_in,
    labels_of,
    logs_of,
    prior_covariance,
)
from simrank.collectives.nccl.size_classes import ENDS_BYTES
from simrank.config.project import AUTO, NO_CALIBRATION, POOLED
from simrank.config.wires import ASSUMED
from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from simrank.collectives.nccl.laws import Floats
    from simrank.collectives.nccl.machine import GroupShape
    from simrank.collectives.nccl.pool import Labels, Pool
    from simrank.config.calibration import CalibrationConfig
    from simrank.hardware import Cluster
    from simrank.hardware.spec import NcclSpec

# 90 % of the measured times of the shipped tables are within the uncalibrated prediction over, and
# times, one more than this, by class of size: networks with slow steps (TCPX) are among them.
# Source: `simrank accuracy`, all_reduce, all_gather and reduce_scatter of nccl-tests.
UNCALIBRATED_SPREAD: Final = (0.5, 1.2, 1.15, 0.33)
# Likewise of messages between pairs: all_to_all and sendrecv, which the laws explain worst.
P2P_SPREAD: Final = (0.16, 0.55, 0.62, 0.93)
# Of the logarithm of a rate that a cluster's file assumes. Assumed: cards of one kind reached 0.75
# to 1.05 of each other in the tables of RoCE and EFA.
_ASSUMED_SIGMA: Final = 0.15
_P2P: Final = ("all_to_all", "all_to_all_v", "gather", "scatter", "sendrecv")


def communicator_on(
    cluster: Cluster,
    collective: str,
    shape: GroupShape,
    spec: NcclSpec,
    word: str | Constants | None = AUTO,
) -> tuple[Communicator, Constants]:
    """Return ranks with their constants, whose variance includes rates that the file assumes.

    Args:
        cluster: The cluster.
        collective: For example all_reduce.
        shape: The shape of the ranks.
        spec: The parameters of NCCL.
        word: As for `constants_on`, or the constants.
    """
    found = (
        word
        if isinstance(word, Constants)
        else constants_on(cluster, collective, Communicator(shape, spec), word)
    )
    assumed = _assumed(cluster, shape)
    known = replace(found, covariances={**found.covariances, **assumed})
    return Communicator(shape, spec, known.calibration), known


def _assumed(cluster: Cluster, shape: GroupShape) -> dict[str, Floats]:
    """Return the covariances of the rates that a cluster's file states as assumed."""
    kinds = {each.key: each.kind for each in cluster.provenance}
    rates = {"nccl.ring_bandwidth": "bandwidth_intra"}
    if shape.num_nodes > 1:
        rates["nccl.nic_bandwidth"] = "bandwidth_net"
    found = {}
    for key, constant in rates.items():
        if kinds.get(key) == ASSUMED:
            number = CONSTANTS.index(constant)
            covariance = np.zeros((NUM, NUM))
            covariance[number, number] = _ASSUMED_SIGMA**2
            found[f"{key.removeprefix('nccl.')} is assumed"] = covariance
    return found


def constants_on(
    cluster: Cluster, collective: str, comm: Communicator, word: str | None = AUTO
) -> Constants:
    """Return the constants for a collective of some ranks of a cluster.

    Args:
        cluster: The cluster.
        collective: For example all_reduce.
        comm: The ranks, and on what they are.
        word: `auto`: the calibration that the cluster's file names, or pooled constants; `pooled`;
            `none` or None: NCCL's own; else a file that `simrank calibrate` wrote.

    Raises:
        ConfigError: The file is missing, or something in it is wrong.
    """
    if word == AUTO:
        word = cluster.calibration or POOLED
    if word is None or word == NO_CALIBRATION:
        return of_nccl(collective)
    labels = labels_of(collective, comm)
    if word == POOLED:
        return _pooled(labels)
    from simrank.config.calibration import load_calibration  # noqa: PLC0415 - it is slow to import

    return of_file(load_calibration(word), labels, comm)


def of_nccl(collective: str) -> Constants:
    """Return NCCL's own constants, with the interval that holds for them."""
    spread = P2P_SPREAD if collective in _P2P else UNCALIBRATED_SPREAD
    return Constants(UNCALIBRATED, {}, np.log1p(spread) / NORMAL_90)


def of_file(fitted: CalibrationConfig, labels: Labels, comm: Communicator) -> Constants:
    """Return the constants of a machine that some of its collectives were measured on.

    Those of other collectives, and of other numbers of ranks, differ from the measured one's as
    pooled constants do, and are known as well as another series of the site.

    Raises:
        ConfigError: The machine has other devices, or another network.
    """
    _check_machine(fitted, labels)
    own = Calibration(takes_fastest=fitted.takes_fastest, **fitted.constants)
    covariance = np.zeros((NUM, NUM))
    if fitted.covariance:
        covariance[np.tril_indices(NUM)] = fitted.covariance
        covariance += np.tril(covariance, -1).T
    noises = _noises(fitted)
    shape, measured = comm.shape, fitted.fitted
    shapes = [(each.collective, each.num_ranks, each.num_nodes) for each in measured]
    if not shapes or (labels.operation, shape.num_ranks, shape.num_nodes) in shapes:
        return Constants(own, {FIT: covariance}, noises, fitted.source)
    pooled, first = _pooled(labels), measured[0]
    seen = _pooled(labels_in(comm.spec, first.collective, first.num_ranks, first.num_nodes))
    logs = logs_of(own) - logs_of(seen.calibration) + logs_of(pooled.calibration)
    moved = replace(calibration_of(logs), takes_fastest=pooled.calibration.takes_fastest)
    known = {name: each for name, each in pooled.covariances.items() if name != "site"}
    known |= {FIT: covariance + known[FIT], SERIES: prior_covariance(SERIES)}
    source = f"{fitted.source}, for {labels.operation} moved as {pooled.source}"
    return Constants(moved, known, np.maximum(noises, pooled.noises), source, pooled.unknown)


def _check_machine(fitted: CalibrationConfig, labels: Labels) -> None:
    """Check that a calibration is of such a machine.

    Raises:
        ConfigError: It has other devices, or another network.
    """
    for name, its, mine in (
        ("platform", fitted.platform, labels.platform),
        ("network", fitted.network, labels.network),
    ):
        if its is not None and mine not in (None, UNKNOWN, its):
            got = f"constants {fitted.source}, of {fitted.cluster}: {name} {its}"
            to_fix = "calibrate with a table of this machine, or take `pooled` constants"
            problem = ConfigProblem("calibration", None, name, f"those of {mine}", got, to_fix)
            raise ConfigError(problem)


def _noises(fitted: CalibrationConfig) -> Floats:
    """Return the residual noise by class of size, as a standard deviation of logarithms."""
    ends = [each.up_to_bytes for each in fitted.residuals if each.up_to_bytes is not None]
    left = np.log1p([each.interval_pct / 100 for each in fitted.residuals]) / NORMAL_90
    classes = np.searchsorted(ends, (*ENDS_BYTES, ENDS_BYTES[-1] + 1))
    return np.asarray(left[classes])


def uses_pool(cluster: Cluster) -> bool:
    """Return whether a cluster's file leaves the constants to the pooled ones."""
    return (cluster.calibration or POOLED) == POOLED


@lru_cache(maxsize=1)
def shipped_pool() -> Pool:
    """Return the pooled constants that simrank ships."""
    from simrank.collectives.nccl.pool import read_pool  # noqa: PLC0415 - it is slow to import

    return read_pool()


@lru_cache(maxsize=1024)
def _pooled(labels: Labels) -> Constants:
    return shipped_pool().constants(labels)
