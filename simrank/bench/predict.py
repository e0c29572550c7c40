"""`simrank.predict`: the times that nccl-tests would print on a cluster, without a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank import units
from simrank.bench.pooling import read_pool
from simrank.bench.size_classes import ENDS_BYTES
from simrank.collectives.bounds import busbw_factor
from simrank.collectives.nccl import Communicator, Shape, predict_times
from simrank.collectives.nccl.environment import parse_algorithms, parse_protocols
from simrank.collectives.nccl.machine import calibration_for, constants_of, spec_of
from simrank.collectives.nccl.pool import ONE_NODE, SEVERAL_NODES, labels_of
from simrank.collectives.nccl.prediction import work_of_choice
from simrank.config.names import COLLECTIVE_ALIASES, COLLECTIVES
from simrank.config.quantity import choice_text, hint
from simrank.config.tuner import load_tuner
from simrank.hardware import load_cluster

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from simrank.collectives.nccl.laws import Floats
    from simrank.collectives.nccl.prediction import Prediction
    from simrank.config.calibration import CalibrationConfig
    from simrank.config.load import ClusterRef
    from simrank.hardware import Cluster


# Nine of ten measured times of the shipped tables are within the uncalibrated prediction over, and
# times, one more than this, by class of size: networks with slow steps (TCPX) are among them.
# Source: `simrank accuracy`, all_reduce, all_gather and reduce_scatter of nccl-tests.
UNCALIBRATED_SPREAD = (0.48, 1.2, 1.17, 0.3)
# Likewise of messages between pairs: all_to_all and sendrecv, which the laws explain worst.
P2P_SPREAD = (0.19, 0.69, 0.37, 0.39)
POOLED = "pooled"  # In the place of a calibration: constants of many sites.
P2P_COLLECTIVES = ("all_to_all", "all_to_all_v", "gather", "scatter", "sendrecv")


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predictions for one collective; every array has one entry per size.

    Attributes:
        cluster: The cluster's name.
        collective: For example all_reduce.
        num_ranks: Ranks that take part.
        size_bytes: The sizes S of nccl-tests.
        time_us: Time of one call in a loop of calls, in microseconds.
        algbw_GBps: size / time, in 10^9 bytes per second.
        busbw_GBps: algbw times nccl-tests' factor of the collective.
        algorithm: What NCCL chooses: ring, tree, nvls, nvls_tree; p2p for messages between pairs.
        protocol: LL, LL128 or Simple.
        low_us: Nine of ten measured times are expected to be above it and below `high_us`: of the
            machine that the constants were fitted to. Another site differs by half below 1 MiB,
            on average, until `simrank calibrate --site` has seen one small size (then by 15 %).
        high_us: Likewise.
        calibration: What the constants were fitted to; None: they are NCCL's own.
    """

    cluster: str
    collective: str
    num_ranks: int
    size_bytes: npt.NDArray[np.int64]
    time_us: Floats
    algbw_GBps: Floats  # noqa: N815 - the name, as everywhere in nccl-tests
    busbw_GBps: Floats  # noqa: N815
    algorithm: npt.NDArray[np.str_]
    protocol: npt.NDArray[np.str_]
    low_us: Floats
    high_us: Floats
    calibration: str | None


def predict(  # noqa: PLR0913 - nccl-tests' own options
    collective: str,
    sizes: Any,  # noqa: ANN401 - a size, several, an array
    num_ranks: int | None = None,
    cluster: ClusterRef = "hgx_h100",
    *,
    nodes: int | None = None,
    nccl_algo: str | None = None,
    nccl_proto: str | None = None,
    nccl_tuner: str | Path | None = None,
    calibration: str | None = "auto",
) -> Predicted:
    """Predict nccl-tests' times by NCCL's constants and its tuner's choices.

    Nothing runs: 100,000 sizes take less than a second.

    Args:
        collective: For example all_reduce.
        sizes: The sizes S of nccl-tests: bytes, or texts such as "16 MiB"; one or several.
        num_ranks: Ranks that fill one node after the other; None: all devices.
        cluster: A built-in name, a file, a mapping or a configuration.
        nodes: Nodes, instead of those that the cluster states.
        nccl_algo: What to choose from, as a value of NCCL_ALGO: "Ring,Tree" or "^NVLS".
        nccl_proto: Likewise of NCCL_PROTO.
        nccl_tuner: A file of NCCL's example tuner plugin, which says what to take for which sizes;
            a row that asks for what NCCL does not offer is ignored, as the plugin does.
        calibration: Fitted constants: "auto" for those of a built-in cluster, if it has any;
            "pooled" for those fitted to many sites, whose interval is that of another site; the
            name of a built-in one, or a file; None: NCCL's own.

    Raises:
        ValueError: An argument is none of what it may be; the text says what may stand there.
        UnsupportedError: The cluster says nothing of NCCL, or nothing of a network.
        ConfigError: The cluster, a file, `nccl_algo` or `nccl_proto` is wrong, or leaves nothing.
    """
    name = collective_of(collective)
    built = load_cluster(cluster, nodes)
    size_bytes = _sizes(sizes)
    shape = shape_of(built, num_ranks)
    comm = Communicator(shape, spec_of(built, shape))
    used = _Pooled(name, comm) if calibration == POOLED else _Fitted(name, built, calibration)
    comm = replace(comm, calibration=used.constants)
    found = predict_times(
        name,
        size_bytes,
        comm,
        algorithms=None if nccl_algo is None else parse_algorithms(nccl_algo, name),
        protocols=None if nccl_proto is None else parse_protocols(nccl_proto, name),
        tuner_rows=() if nccl_tuner is None else load_tuner(nccl_tuner),
    )
    algbw = size_bytes / found.times_us / 1e3
    spread = used.spread(size_bytes, comm, found)
    return Predicted(
        built.name,
        name,
        shape.num_ranks,
        size_bytes,
        found.times_us,
        algbw,
        algbw * busbw_factor(name, shape.num_ranks),
        np.array([algorithm for algorithm, _ in found.choices])[found.chosen],
        np.array([protocol for _, protocol in found.choices])[found.chosen],
        found.times_us / (1 + spread),
        found.times_us * (1 + spread),
        used.source,
    )


class _Fitted:
    """Constants of one machine; of NCCL itself where none are fitted."""

    def __init__(self, collective: str, cluster: Cluster, calibration: str | None) -> None:
        self._collective = collective
        self._fitted = calibration_for(cluster, calibration)
        self.constants = constants_of(self._fitted)
        self.source = None if self._fitted is None else self._fitted.source

    def spread(
        self, size_bytes: npt.NDArray[np.int64], comm: Communicator, found: Prediction
    ) -> Floats:
        """Return the half-width of the 90% interval for each size, as a share."""
        del found
        return spread_of(self._fitted, self._collective, comm.shape, size_bytes)


class _Pooled:
    """Constants of many sites."""

    def __init__(self, collective: str, comm: Communicator) -> None:
        labels = labels_of(collective, comm)
        self._collective, self._pool = collective, read_pool()
        self._found = self._pool.constants(labels)
        self.constants = self._found.calibration
        self.source = self._pool.words(self._found, labels)

    def spread(
        self, size_bytes: npt.NDArray[np.int64], comm: Communicator, found: Prediction
    ) -> Floats:
        """Return the half-width of the 90% interval for each size, as a share."""
        work = work_of_choice(self._collective, size_bytes, comm, found)
        variance = np.sum(list(self._found.variances(work).values()), axis=0)
        kind = SEVERAL_NODES if comm.shape.num_nodes > 1 else ONE_NODE
        return self._pool.half_widths(variance, np.searchsorted(ENDS_BYTES, size_bytes), kind)


def spread_of(
    fitted: CalibrationConfig | None,
    collective: str,
    shape: Shape,
    size_bytes: npt.NDArray[np.int64],
) -> Floats:
    """Return the half-width of the 90% interval for each size, as a share.

    What was not fitted - another collective, another number of ranks or nodes - is as uncertain as
    without a fit.
    """
    plain = P2P_SPREAD if collective in P2P_COLLECTIVES else UNCALIBRATED_SPREAD
    shares = np.array(plain)[np.searchsorted(ENDS_BYTES, size_bytes)]
    if fitted is None:
        return shares
    ends = [each.up_to_bytes for each in fitted.residuals if each.up_to_bytes is not None]
    left = np.array([each.interval_pct / 100 for each in fitted.residuals])
    left = left[np.searchsorted(ends, size_bytes)]
    is_fitted = any(
        (each.collective, each.num_ranks, each.num_nodes)
        == (collective, shape.num_ranks, shape.num_nodes)
        for each in fitted.fitted
    )
    return left if is_fitted else np.maximum(left, shares)


def shape_of(cluster: Cluster, num_ranks: int | None) -> Shape:
    """Return the shape of ranks that fill one node after the other; None: of all devices.

    Raises:
        ValueError: There are fewer devices, or no ranks.
    """
    ranks = cluster.num_devices if num_ranks is None else num_ranks
    if not 2 <= ranks <= cluster.num_devices:
        raise ValueError(
            f"num_ranks={ranks}: expected 2 to {cluster.num_devices}, the devices of {cluster.name}"
        )
    return Shape.packed(ranks, cluster.devices_per_node)


def collective_of(name: str) -> str:
    """Return the collective of a name, also of torch's or nccl-tests' names.

    Raises:
        ValueError: It is none.
    """
    known = COLLECTIVE_ALIASES.get(name, name)
    if known not in COLLECTIVES:
        to_fix = hint(name, COLLECTIVES)
        text = f"collective={name!r}: expected {choice_text(COLLECTIVES)}"
        raise ValueError(text if to_fix is None else f"{text}\n  to fix: {to_fix}")
    return known


_MAX_SIZE_BYTES = 1 << 62


def _sizes(sizes: Any) -> npt.NDArray[np.int64]:  # noqa: ANN401 - see `predict`
    is_one = isinstance(sizes, str | bytes) or not isinstance(sizes, Iterable)
    several = [sizes] if is_one else sizes
    if not isinstance(several, np.ndarray):
        several = [units.parse_size(each) if isinstance(each, str) else each for each in several]
    found = np.asarray(several)
    is_whole = found.ndim == 1 and found.dtype.kind in "iu" and found.size > 0
    if not is_whole or (found <= 0).any() or (found > _MAX_SIZE_BYTES).any():
        raise ValueError(f"sizes={sizes!r}: expected sizes above 0, in whole bytes or as '16 MiB'")
    return found.astype(np.int64)
