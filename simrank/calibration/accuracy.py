"""Errors of predictions against published tables; start with `table_series`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.calibration.fitting import Measured
from simrank.calibration.measured_text import rows_by_file
from simrank.calibration.pool_fit import HOST_LAUNCH_US, bounded
from simrank.collectives.nccl import Communicator, GroupShape, laws, predict_times
from simrank.collectives.nccl.laws import UNCALIBRATED
from simrank.collectives.nccl.machine import spec_of
from simrank.collectives.nccl.size_classes import ENDS_BYTES, NAMES
from simrank.collectives.nccl.tuner import nvls_reduces
from simrank.collectives.problem import REDUCING
from simrank.config.locate import builtin_names, locate
from simrank.config.measured import THREADS, MachineConfig, load_machine, published_by
from simrank.config.quantity import DTYPES, NCCL_ALGORITHMS
from simrank.config.wires import ASSUMED
from simrank.config.yaml_source import read_text
from simrank.errors import ConfigError, ConfigProblem
from simrank.hardware import load_cluster

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from simrank.collectives.nccl.laws import Calibration, Floats
    from simrank.collectives.nccl.prediction import Prediction
    from simrank.config.measured import MeasuredRow
    from simrank.hardware import Cluster

AIMED = ("all_reduce", "all_gather", "reduce_scatter")
PARTS = ("L", "base", "D", "W", "ramp")  # Of a time, as in `simrank.collectives.nccl.laws`.
DIRECT = "back_to_back"  # As nccl-tests calls; other modes are loops of frameworks.
_MIN_FITTED_SIZES = 8  # Assumed: fewer than constants cannot be told apart.


@dataclass(frozen=True, slots=True)
class SeriesErrors:
    """One collective of one table on one number of ranks; arrays have one entry per size.

    Attributes:
        table: Name of the table.
        cluster: The cluster that was predicted.
        collective: For example all_reduce.
        num_ranks: Ranks that took part.
        num_nodes: Nodes that they lay on.
        mode: How the calls followed each other: back_to_back, torch or xla.
        size_bytes: The sizes S of nccl-tests.
        measured_us: What was measured.
        predicted_us: What is predicted.
        chosen: Algorithm and protocol of each prediction.
        parts_us: [5, sizes] What each prediction consists of: `PARTS`.
        fitted_to: The table that the constants were fitted to; "": they are NCCL's.
        is_rate_known: Whether the rate of the network cards, if any, was measured or published.
        remark: What else a reader of the errors has to know.
        published_by: The measured machine, and where its times were published.
    """

    table: str
    cluster: str
    collective: str
    num_ranks: int
    num_nodes: int
    mode: str
    size_bytes: npt.NDArray[np.int64]
    measured_us: Floats
    predicted_us: Floats
    chosen: tuple[tuple[str, str], ...]
    parts_us: Floats
    fitted_to: str = ""
    is_rate_known: bool = True
    remark: str = ""
    published_by: str = ""

    @property
    def error(self) -> Floats:
        """Predicted over measured, less 1: negative is too fast."""
        return self.predicted_us / self.measured_us - 1

    def in_class(self, number: int) -> npt.NDArray[np.bool_]:
        """Return a mask of sizes in a size class."""
        return np.asarray(np.searchsorted(ENDS_BYTES, self.size_bytes) == number)

    def by_class(self) -> list[tuple[float, float] | None]:
        """Return the mean of absolute and of signed errors of each size class, as shares."""
        parts = [self.error[self.in_class(number)] for number in range(len(NAMES))]
        return [
            (float(np.abs(part).mean()), float(part.mean())) if len(part) else None
            for part in parts
        ]

    def to_json(self) -> dict[str, Any]:
        """Return every row as plain data."""
        rows = zip(self.size_bytes, self.measured_us, self.predicted_us, self.chosen, strict=True)
        return {
            "table": self.table,
            "cluster": self.cluster,
            "collective": self.collective,
            "num_ranks": self.num_ranks,
            "num_nodes": self.num_nodes,
            "mode": self.mode,
            "fitted_to": self.fitted_to or None,
            "rows": [
                {
                    "size_bytes": int(size),
                    "measured_us": float(measured),
                    "predicted_us": float(predicted),
                    "error_pct": float(100 * (predicted / measured - 1)),
                    "algorithm": algorithm,
                    "protocol": protocol,
                }
                for size, measured, predicted, (algorithm, protocol) in rows
            ],
        }


@dataclass(frozen=True, slots=True)
class TableSeries:
    """One collective of one table on one number of ranks, to be predicted.

    Attributes:
        table: Name of the table.
        cluster: The cluster that is predicted.
        mode: How the calls followed each other: back_to_back, torch or xla.
        measured: What was measured, and on what.
        is_rate_known: As in `SeriesErrors`.
        remark: Likewise.
        gpus_per_thread: GPUs that a host thread launches on: no call takes less than its launches.
        site: Where it was measured; "": not known.
        launch: What ran a rank: processes or threads; "": not known.
        published_by: As in `SeriesErrors`.
    """

    table: str
    cluster: str
    mode: str
    measured: Measured
    is_rate_known: bool = True
    remark: str = ""
    gpus_per_thread: int = 1
    site: str = ""
    launch: str = ""
    published_by: str = ""

    def errors(self, calibration: Calibration = UNCALIBRATED, fitted_to: str = "") -> SeriesErrors:
        """Predict it, with a calibration's constants, which were fitted to some table."""
        of = self.measured
        comm = replace(of.comm, calibration=calibration)
        found = predict_times(of.collective, of.size_bytes, comm)
        launches_us = HOST_LAUNCH_US * self.gpus_per_thread if self.gpus_per_thread > 1 else 0.0
        times_us = bounded(found.times_us, launches_us)
        parts_us = _parts_us(of.collective, of.size_bytes, comm, found)
        parts_us[0] += times_us - found.times_us
        return SeriesErrors(
            self.table,
            self.cluster,
            of.collective,
            comm.shape.num_ranks,
            comm.shape.num_nodes,
            self.mode,
            of.size_bytes,
            of.time_us,
            times_us,
            tuple(found.choices[index] for index in found.chosen),
            parts_us,
            fitted_to,
            self.is_rate_known,
            self.remark,
            self.published_by,
        )

    @property
    def is_fittable(self) -> bool:
        """Whether there are sizes enough to fit all constants to half of them."""
        return len(self.measured.size_bytes) >= _MIN_FITTED_SIZES

    def part(self, which: slice | npt.NDArray[np.bool_]) -> TableSeries:
        """Return some of its sizes."""
        of = self.measured
        part = of._replace(size_bytes=of.size_bytes[which], time_us=of.time_us[which])
        return replace(self, measured=part)


def _parts_us(
    collective: str, sizes: npt.NDArray[np.int64], comm: Communicator, found: Prediction
) -> Floats:
    parts = np.empty((len(PARTS), len(sizes)))
    for index, choice in enumerate(found.choices):
        mine = found.chosen == index
        of = laws.terms(collective, *choice, sizes[mine], comm)
        each = (of.launch, of.base, of.latency, of.transfer, of.ramp)
        parts[:, mine] = np.stack([np.broadcast_to(part, mine.sum()) for part in each])
    return parts


def table_series(table: str, cluster: str | None = None) -> list[TableSeries]:
    """Read measured times.

    Args:
        table: A built-in name, or a file in any of the formats of `calibration.measured_text`.
        cluster: As for `measured_series`.

    Raises:
        ConfigError: The table or its cluster is wrong, or nothing says which cluster it is.
        UnsupportedError: The cluster says nothing of NCCL, or nothing of a network.
    """
    path = locate("measured", table)
    return measured_series({str(path): read_text(path)}, cluster)


def measured_series(
    texts: Mapping[str, str],
    cluster: str | None = None,
    *,
    collective: str | None = None,
    num_ranks: int | None = None,
    nodes: int | None = None,
) -> list[TableSeries]:
    """Read measured times from texts.

    Args:
        texts: The text of each file, by its name, in any of the formats of
            `calibration.measured_text`.
        cluster: The cluster to predict, instead of the one that stands beside the table; then
            ranks fill one node after the other unless the text says on which hosts they were, and
            use all network cards beside them.
        collective: What ran, where nccl-tests' output does not say it.
        num_ranks: On how many ranks, where nccl-tests' output does not list them.
        nodes: On how many nodes, ranks spread evenly, where the text does not list hosts.

    Returns:
        One entry per file, collective and ranks, in the order of the texts.

    Raises:
        ConfigError: A text or a cluster is wrong, or nothing says which cluster it is.
        UnsupportedError: The cluster says nothing of NCCL, or nothing of a network.
    """
    by_file = rows_by_file(texts, collective, num_ranks)
    return [
        each
        for file, rows in by_file.items()
        for each in _series_of_file(file, rows, cluster, nodes)
    ]


def _series_of_file(
    file: str, rows: Sequence[MeasuredRow], cluster: str | None, nodes: int | None
) -> list[TableSeries]:
    path = Path(file)
    machine = load_machine(path)
    name = cluster or (None if machine is None else machine.cluster)
    if name is None:
        to_fix = "name it with --cluster"
        if path.suffix == ".csv":
            to_fix = f"--cluster, or a file {path.with_suffix('.yaml').name} beside it"
        raise ConfigError(ConfigProblem(file, None, "", "a cluster", "nothing", to_fix))
    if machine is not None and machine.cluster != name:
        machine = None  # What it says is of another cluster.
    if nodes is not None:
        rows = [replace(row, ranks_per_host=_spread(file, row, nodes)) for row in rows]
    grouped: dict[tuple[str, int, tuple[int, ...], bool], list[MeasuredRow]] = {}
    for row in rows:
        reduced = row.dtype if row.collective in REDUCING else ""
        key = row.collective, row.num_ranks, row.ranks_per_host, nvls_reduces(reduced, "sum")
        grouped.setdefault(key, []).append(row)
    table = path.stem if path.suffix == ".csv" else file
    return [_series(table, name, machine, mine, nodes) for mine in grouped.values()]


def _spread(table: str, row: MeasuredRow, nodes: int) -> tuple[int, ...]:
    """Return the ranks of each node, as listed or spread evenly.

    Raises:
        ConfigError: Another number of hosts is listed, or there are fewer ranks than nodes.
    """
    listed = row.ranks_per_host
    if len(listed) > 1 and len(listed) != nodes:
        to_fix = "leave --nodes out"
        hosts = f"the {len(listed)} hosts that are listed"
        raise ConfigError(ConfigProblem(table, None, "", hosts, f"--nodes {nodes}", to_fix))
    if len(listed) > 1:
        return listed
    if not 1 <= nodes <= row.num_ranks:
        expected = f"1 to {row.num_ranks} nodes for {row.num_ranks} ranks"
        raise ConfigError(ConfigProblem(table, None, "", expected, f"--nodes {nodes}"))
    fewest, more = divmod(row.num_ranks, nodes)
    return (fewest + 1,) * more + (fewest,) * (nodes - more)


def _series(
    table: str,
    cluster: str,
    machine: MachineConfig | None,
    rows: Sequence[MeasuredRow],
    asked_nodes: int | None,
) -> TableSeries:
    built, num_ranks, per_host = load_cluster(cluster), rows[0].num_ranks, rows[0].ranks_per_host
    if num_ranks < 2:
        expected = "two ranks or more: one rank sends nothing"
        raise ConfigError(ConfigProblem(table, None, "", expected, str(num_ranks)))
    nodes = -(-num_ranks // built.devices_per_node) if machine is None else machine.nodes
    is_known_where = len(per_host) > 1 or asked_nodes is not None
    is_listed = sum(per_host) == num_ranks
    if is_listed and max(per_host) > built.devices_per_node:
        expected = f"{built.devices_per_node} ranks on a node of {built.name} at most"
        got = str(max(per_host))
        to_fix = "another cluster, or a file with so many devices: `device: {count: ...}`"
        raise ConfigError(ConfigProblem(table, None, "", expected, got, to_fix))
    is_spread = is_known_where and is_listed
    if is_spread:
        nodes = len(per_host)
    has_fabric = len(built.topology.vertices) > built.topology.num_node_vertices
    if built.num_nodes < nodes and has_fabric:
        built = load_cluster(cluster, nodes)
    if num_ranks > built.num_devices:
        got = f"the {built.num_devices} devices of {built.name}"
        to_fix = "a cluster with a network: of `simrank clusters`, or a file with `fabric:`"
        raise ConfigError(ConfigProblem(table, None, "", f"{num_ranks} ranks", got, to_fix))
    shape = _shape(built, num_ranks, machine)
    if is_spread:
        shape = GroupShape(num_ranks, max(per_host), len(per_host), min(per_host))
    spec = spec_of(built, shape, None if machine is None else machine.nics_used)
    algorithms, protocols = _forced(rows[0], machine)
    spec = replace(
        spec,
        algorithms=algorithms or spec.algorithms,
        protocols=protocols or spec.protocols,
    )
    measured = Measured(
        rows[0].collective,
        np.array([row.size_bytes for row in rows]),
        np.array([row.time_us for row in rows]),
        Communicator(shape, spec),
    )
    mode = DIRECT if machine is None else machine.mode
    is_known = shape.num_nodes == 1 or _is_known(built)
    remark = "" if machine is None else machine.remark or ""
    launched = max(rows[0].gpus_per_thread, 1 if machine is None else machine.gpus_per_thread)
    if rows[0].is_graph or (machine is not None and machine.cuda_graph):
        launched = 1  # A graph is launched once.
    site = "" if machine is None else machine.site or ""
    launch = rows[0].launch or ("" if machine is None else machine.launch or "")
    if launched > 1:
        launch = THREADS
    return TableSeries(
        table, built.name, mode, measured, is_known, remark, launched, site, launch,
        published_by(rows),
    )  # fmt: skip


def _forced(
    row: MeasuredRow, machine: MachineConfig | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the algorithms and protocols that environment and dtype leave; empty: all."""
    algorithms = row.algorithms or ((machine and machine.algorithms) or ())
    protocols = row.protocols or ((machine and machine.protocols) or ())
    is_reduced = row.collective in REDUCING and row.dtype in DTYPES
    if not algorithms and is_reduced and not nvls_reduces(row.dtype, "sum"):
        algorithms = tuple(each for each in NCCL_ALGORITHMS if not each.startswith("nvls"))
    return algorithms, protocols


def _is_known(cluster: Cluster) -> bool:
    """Return whether the rate of its network cards was measured or published, not assumed."""
    kinds = {each.key: each.kind for each in cluster.provenance}
    return kinds.get("nccl.nic_bandwidth", ASSUMED) != ASSUMED


def _shape(cluster: Cluster, num_ranks: int, machine: MachineConfig | None) -> GroupShape:
    """Return the shape of a group: ranks spread evenly over its nodes."""
    if machine is None:
        return GroupShape.packed(num_ranks, cluster.devices_per_node)
    nodes = min(machine.nodes, num_ranks)
    fewest = num_ranks // nodes if num_ranks % nodes else 0
    return GroupShape(num_ranks, -(-num_ranks // nodes), nodes, fewest)


def builtin_tables() -> list[str]:
    """Return the names of the shipped tables whose machine is known."""
    names = builtin_names("measured")
    return [name for name in names if load_machine(Path(locate("measured", name))) is not None]


def mean_errors(series: Sequence[SeriesErrors]) -> list[tuple[float, float] | None]:
    """Return the means over series of each size class, as `SeriesErrors.by_class` does."""
    means: list[tuple[float, float] | None] = []
    for found in zip(*(each.by_class() for each in series), strict=True):
        known = [errors for errors in found if errors is not None]
        absolute, signed = zip(*known, strict=True) if known else ((), ())
        means.append((float(np.mean(absolute)), float(np.mean(signed))) if known else None)
    return means
