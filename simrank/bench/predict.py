"""`simrank.predict`: the times that nccl-tests would print on a cluster, without a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank import units
from simrank.collectives.bounds import busbw_factor
from simrank.collectives.nccl import Communicator, Shape, predict_times
from simrank.collectives.nccl.evidence import communicator_on
from simrank.collectives.nccl.machine import shape_on, spec_of
from simrank.collectives.nccl.prediction import work_of_choice
from simrank.collectives.nccl.size_classes import ENDS_BYTES
from simrank.collectives.problem import REDUCING
from simrank.config.project import AUTO
from simrank.config.quantity import (
    COLLECTIVE_ALIASES,
    COLLECTIVES,
    DTYPE_ALIASES,
    DTYPES,
    REDOP_ALIASES,
    REDOPS,
    choice_text,
    hint,
)
from simrank.distributed.planner import NcclOverrides, tuning_of
from simrank.errors import UnsupportedError
from simrank.hardware import load_cluster

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from simrank.collectives.nccl.laws import Floats, Work
    from simrank.collectives.nccl.pool import Constants
    from simrank.collectives.nccl.prediction import Prediction
    from simrank.config.load import ClusterRef
    from simrank.hardware import Cluster


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
        low_us: Lower end of the 90 % prediction interval, of a machine that was not measured; of
            that machine, where the constants are fitted to it (`simrank calibrate`).
        high_us: Its upper end.
        calibration: What the constants rest on; None: they are NCCL's own.
        unknown: What no measured table tells: of a network, for example, or of a platform. The
            interval has the range of all networks, or platforms, instead.
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
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Forecast:
    """A prediction with the constants that it rests on.

    Attributes:
        comm: The ranks, with the constants.
        found: Times and choices.
        constants: The constants, and how well they are known.
        work: [m] What the chosen algorithms do.
        classes: [m] The class of each size.
    """

    comm: Communicator
    found: Prediction
    constants: Constants
    work: Work
    classes: npt.NDArray[np.int64]

    @property
    def spread(self) -> Floats:
        """Half-width of the 90 % interval [m], as a share of the time."""
        return self.constants.half_widths(self.work, self.classes)

    @property
    def variances(self) -> dict[str, Floats]:
        """Variance of the logarithm of each time [m], by what it is of."""
        return self.constants.variances(self.work, self.classes)


def predict(  # noqa: PLR0913 - nccl-tests' own options
    collective: str,
    sizes: Any,  # noqa: ANN401 - a size, several, an array
    num_ranks: int | None = None,
    cluster: ClusterRef = "hgx_h100",
    *,
    nodes: int | None = None,
    ranks: Sequence[int] | None = None,
    dtype: str = "float32",
    redop: str = "sum",
    nccl_algo: str | None = None,
    nccl_proto: str | None = None,
    nccl_tuner: str | Path | None = None,
    calibration: str | None = AUTO,
) -> Predicted:
    """Predict nccl-tests' times by NCCL's constants and its tuner's choices.

    Nothing runs: 100,000 sizes take less than a second.

    Args:
        collective: For example all_reduce.
        sizes: The sizes S of nccl-tests: bytes, or texts such as "16 MiB"; one or several.
        num_ranks: Ranks that fill one node after the other; None: all devices.
        cluster: A built-in name, a file, a mapping or a configuration.
        nodes: Nodes, instead of those that the cluster states.
        ranks: Devices of the group, instead of `num_ranks`: `range(0, 64, 8)` is one rank per node
            of eight, as in a data-parallel group of a tensor-parallel model.
        dtype: Of the elements; the switches of NVLink (NVLS) do not reduce all of them.
        redop: sum, prod, min, max or avg; likewise.
        nccl_algo: What to choose from, as a value of NCCL_ALGO: "Ring,Tree" or "^NVLS".
        nccl_proto: Likewise of NCCL_PROTO.
        nccl_tuner: A file of NCCL's example tuner plugin, which says what to take for which sizes;
            a row that asks for what NCCL does not offer is ignored, as the plugin does.
        calibration: Constants: "auto" for the file that the cluster's names, else "pooled":
            fitted to many sites, with the interval of another site; a file that `simrank
            calibrate` wrote; None: NCCL's own.

    Raises:
        ValueError: An argument is none of what it may be; the text says what may stand there.
        UnsupportedError: The cluster says nothing of NCCL, or nothing of a network.
        ConfigError: The cluster, a file, `nccl_algo` or `nccl_proto` is wrong, or leaves nothing.
    """
    name = collective_of(collective)
    built = load_cluster(cluster, nodes)
    size_bytes = _sizes(sizes)
    shape = shape_of_ranks(built, ranks, num_ranks)
    overrides = NcclOverrides(
        nccl_algo, nccl_proto, None if nccl_tuner is None else str(nccl_tuner)
    )
    operation = _named("redop", redop, REDOPS, REDOP_ALIASES)
    reduced = operation if name in REDUCING else None
    tuning = tuning_of(name, _named("dtype", dtype, DTYPES, DTYPE_ALIASES), reduced, overrides)
    cast = forecast(
        name,
        size_bytes,
        built,
        shape,
        calibration,
        algorithms=tuning.algorithms,
        protocols=tuning.protocols,
        tuner_rows=tuning.tuner_rows,
    )
    return _predicted(built.name, name, size_bytes, cast)


def _predicted(
    cluster: str, collective: str, size_bytes: npt.NDArray[np.int64], cast: Forecast
) -> Predicted:
    found, spread, num_ranks = cast.found, cast.spread, cast.comm.shape.num_ranks
    algbw = size_bytes / found.times_us / 1e3
    return Predicted(
        cluster,
        collective,
        num_ranks,
        size_bytes,
        found.times_us,
        algbw,
        algbw * busbw_factor(collective, num_ranks),
        np.array([algorithm for algorithm, _ in found.choices])[found.chosen],
        np.array([protocol for _, protocol in found.choices])[found.chosen],
        found.times_us / (1 + spread),
        found.times_us * (1 + spread),
        cast.constants.source,
        cast.constants.unknown,
    )


def forecast(
    collective: str,
    size_bytes: npt.NDArray[np.int64],
    cluster: Cluster,
    shape: Shape,
    calibration: str | None = AUTO,
    **left: Any,  # noqa: ANN401 - algorithms, protocols and rows of a tuner, as `predict_times`
) -> Forecast:
    """Predict times with their uncertainty; arguments as of `predict` and `predict_times`."""
    comm, constants = communicator_on(
        cluster, collective, shape, spec_of(cluster, shape), calibration
    )
    found = predict_times(collective, size_bytes, comm, **left)
    work = work_of_choice(collective, size_bytes, comm, found)
    return Forecast(comm, found, constants, work, np.searchsorted(ENDS_BYTES, size_bytes))


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


def shape_of_ranks(
    cluster: Cluster, ranks: Sequence[int] | None, num_ranks: int | None = None
) -> Shape:
    """Return the shape of the group of some devices; None: of `num_ranks` that fill nodes.

    Raises:
        ValueError: A device is missing or repeated, there are fewer than two, or `num_ranks`
            is given too.
        UnsupportedError: The devices are of several pods.
    """
    if ranks is None:
        return shape_of(cluster, num_ranks)
    devices, most = list(ranks) if isinstance(ranks, Iterable) else [], cluster.num_devices
    is_right = all(
        isinstance(each, int | np.integer) and not isinstance(each, bool) and 0 <= each < most
        for each in devices
    )
    if not is_right or len(devices) < 2 or len(set(devices)) < len(devices):
        expected = f"two or more different devices from 0 to {most - 1}, those of {cluster.name}"
        raise ValueError(f"ranks={shortened(ranks)}: expected {expected}")
    if num_ranks is not None:
        raise ValueError(
            f"num_ranks={num_ranks} and ranks={shortened(ranks)}: expected one of them"
        )
    nodes = cluster.node_of(np.array(devices))
    if cluster.topology.pods is not None and cluster.spans_pods(nodes):
        raise UnsupportedError(
            f"ranks={shortened(ranks)} are of several pods of cluster {cluster.name}, and closed "
            "forms do not model what shares an uplink\n  to fix: take devices of one pod, or "
            "simulate it"
        )
    return shape_on(nodes)


def collective_of(name: str) -> str:
    """Return the collective of a name, also of torch's or nccl-tests' names.

    Raises:
        ValueError: It is none.
    """
    return _named("collective", name, COLLECTIVES, COLLECTIVE_ALIASES)


def _named(what: str, name: str, names: Sequence[str], aliases: Mapping[str, str]) -> str:
    """Return a name without its aliases.

    Raises:
        ValueError: It is none of the names.
    """
    known = aliases.get(name, name)
    if known not in names:
        to_fix = hint(name, names)
        text = f"{what}={name!r}: expected {choice_text(names)}"
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
