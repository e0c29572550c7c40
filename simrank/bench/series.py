"""Series of a benchmark, one per combination of its lists but size and form, and rows."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.bench.program import OUT_OF_PLACE, Case, counts, redop_of, root_of
from simrank.calibration.hold_outs import without_site
from simrank.collectives import Problem, algorithms_for, build
from simrank.collectives.bounds import busbw_factor
from simrank.collectives.nccl.machine import spec_of
from simrank.collectives.nccl.pool import labels_in
from simrank.config.model import in_file_order
from simrank.config.quantity import choice_text, closest
from simrank.distributed.planner import NcclOverrides, tuning_of
from simrank.errors import ConfigError, UnsupportedError
from simrank.faults import check_faults
from simrank.formats.msccl import SUFFIX, register_msccl
from simrank.hardware.build import build_cluster
from simrank.planning.predict import forecast, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from simrank.config import BenchConfig
    from simrank.hardware.cluster import Cluster
    from simrank.kernels.algorithms import KernelAlgorithm


# ---- one result of a benchmark, with the columns of its JSON file ----


@dataclass(frozen=True, slots=True)
class Row:
    """One result, with the columns of the JSON file; None where one does not apply.

    Attributes:
        cluster: Name of the cluster; a column of the file only where there are several.
        collective: Its name.
        algorithm: What ran ("auto" is resolved).
        protocol: None at the schedule cost level.
        num_ranks: Ranks that took part.
        num_nodes: Nodes that they span.
        in_place: Whether output and input shared memory.
        redop: Reduce operation, or "none".
        root: Root rank, or -1.
        dtype: Element type.
        size_bytes: nccl-tests size.
        time_us: Mean time of one iteration over all ranks.
        algbw_GBps: size / time.
        busbw_GBps: algbw times the collective's factor.
        num_wrong: Elements that rounding does not explain; None if not checked.
        cost_level: Where the time comes from.
        calibration: None at the schedule cost level.
        interval_us: None at the schedule cost level.
        channels: Lanes of the schedule.
        measured_us: Published time of the same call, if there is one.
        error_pct: Error of `left_out_us`, or of `time_us` where that is None, against `measured_us`
            in percent.
        left_out: The site of the measured time, if the constants are fitted to it.
        left_out_us: The time that constants without that site predict.
        left_out_interval_us: The 90% prediction interval of `left_out_us`.
    """

    cluster: str
    collective: str
    algorithm: str
    protocol: str | None
    num_ranks: int
    num_nodes: int
    in_place: bool
    redop: str
    root: int
    dtype: str
    size_bytes: int
    time_us: float
    algbw_GBps: float  # noqa: N815 - nccl-tests' name
    busbw_GBps: float  # noqa: N815 - nccl-tests' name
    num_wrong: int | None
    cost_level: str
    calibration: str | None
    interval_us: tuple[float, float] | None
    channels: int
    measured_us: float | None
    error_pct: float | None
    left_out: str | None = None
    left_out_us: float | None = None
    left_out_interval_us: tuple[float, float] | None = None


def timed_row(
    case: Case,
    cluster: str,
    num_nodes: int,
    time_us: float,
    **found: Any,  # noqa: ANN401 - as the columns are
) -> Row:
    """Return the row of a case.

    Args:
        case: What was called.
        cluster: Name of the cluster.
        num_nodes: Nodes that the ranks span.
        time_us: Mean time of one iteration.
        found: The columns that do not follow from these, by the names of `Row`.
    """
    algbw = case.size_bytes / time_us / 1e3 if time_us else 0.0
    return Row(
        cluster=cluster,
        collective=case.collective,
        num_ranks=case.num_ranks,
        num_nodes=num_nodes,
        in_place=case.in_place,
        redop=case.redop,
        root=case.root,
        dtype=case.dtype,
        size_bytes=case.size_bytes,
        time_us=time_us,
        algbw_GBps=algbw,
        busbw_GBps=algbw * busbw_factor(case.collective, case.num_ranks),
        **{"measured_us": None, "error_pct": None, **found},
    )


def as_columns(row: Row, *, several_clusters: bool) -> dict[str, Any]:
    """Return a row as in the JSON file; only with several clusters it says which one."""
    columns = asdict(row)
    cluster = columns.pop("cluster")
    return {"cluster": cluster, **columns} if several_clusters else columns


# ---- the algorithm `nccl` of benchmarks: rows that NCCL's closed forms predict; nothing runs ----

NCCL = "nccl"


def predicted_rows(series: Series, config: BenchConfig) -> list[tuple[Case, Row]]:
    """Return a row for each case of a series.

    Raises:
        UnsupportedError: The cluster says nothing of NCCL, or nothing of a network.
        ConfigError: The benchmark has faults, of which the closed forms know nothing.
    """
    if config.faults:
        expected = f"no faults with the algorithm {NCCL}, which predicts without them"
        raise ConfigError(config.source.problem(("faults",), expected, "some"))
    if series.num_ranks == 1:
        expected = f"two ranks or more for the algorithm {NCCL}"
        raise ConfigError(config.source.problem(("num_ranks",), expected, "1"))
    cases = series.cases(config)
    shape = shape_of(series.cluster, series.num_ranks)
    sizes = np.array([case.size_bytes for case in cases], dtype=np.int64)
    redop = None if series.redop == "none" else series.redop
    tuning = tuning_of(series.call_name, series.dtype, redop, NcclOverrides.of_environment())
    cast = forecast(
        series.collective,
        sizes,
        series.cluster,
        shape,
        algorithms=tuning.algorithms,
        protocols=tuning.protocols,
        tuner_rows=tuning.tuner_rows,
    )
    found, spread = cast.found, cast.spread
    low_us, high_us = found.times_us / (1 + spread), found.times_us * (1 + spread)
    bounds = zip(low_us.tolist(), high_us.tolist(), strict=True)
    rows = []
    times = zip(cases, found.times_us.tolist(), found.chosen, bounds, strict=True)
    for case, time_us, index, interval_us in times:
        algorithm, protocol = found.choices[index]
        row = timed_row(
            case,
            series.cluster.name,
            shape.num_nodes,
            time_us,
            algorithm=algorithm,
            protocol=protocol,
            num_wrong=None,
            cost_level=NCCL,
            calibration=cast.constants.source,
            interval_us=interval_us,
            channels=cast.comm.spec.channels,
        )
        rows.append((case, row))
    return rows


def prediction_interval(
    series: Series, size_bytes: int, time_us: float
) -> tuple[str | None, tuple[float, float]]:
    """Return the source of the constants, and the 90% prediction interval in us.

    Args:
        series: What runs.
        size_bytes: The size S of nccl-tests.
        time_us: NCCL's time for it, in microseconds.
    """
    shape = shape_of(series.cluster, series.num_ranks)
    cast = forecast(series.collective, np.array([size_bytes]), series.cluster, shape)
    spread = float(cast.spread[0])
    return cast.constants.source, (time_us / (1 + spread), time_us * (1 + spread))


def without_measured_site(
    series: Series, size_bytes: int, site: str
) -> tuple[float, tuple[float, float]]:
    """Return the time that constants without a site predict, and its 90% interval, in us.

    Args:
        series: A series of NCCL's own choice.
        size_bytes: The size S of nccl-tests.
        site: A site that the shipped constants are fitted to.
    """
    shape = shape_of(series.cluster, series.num_ranks)
    spec = spec_of(series.cluster, shape)
    labels = labels_in(spec, series.collective, shape.num_ranks, shape.num_nodes)
    redop = None if series.redop == "none" else series.redop
    tuning = tuning_of(series.call_name, series.dtype, redop, NcclOverrides.of_environment())
    cast = forecast(
        series.collective,
        np.array([size_bytes]),
        series.cluster,
        shape,
        without_site(labels._replace(site=site)),
        algorithms=tuning.algorithms,
        protocols=tuning.protocols,
        tuner_rows=tuning.tuner_rows,
    )
    time_us, spread = float(cast.found.times_us[0]), float(cast.spread[0])
    return time_us, (time_us / (1 + spread), time_us * (1 + spread))


# ---- series of a benchmark: one per combination of its lists, except size and form ----


@dataclass(frozen=True, slots=True)
class Series:
    """The rows that share everything but size and form.

    Attributes:
        cluster: The hardware.
        num_ranks: Ranks that take part.
        collective: Its name.
        algorithm: As asked for.
        options: Of the algorithm.
        dtype: Element type.
        redop: Reduce operation, or "none".
        root: Root rank, or -1.
        kernel: The Triton kernel that is the algorithm, or None.
    """

    cluster: Cluster
    num_ranks: int
    collective: str
    algorithm: str
    options: Mapping[str, int]
    dtype: str
    redop: str
    root: int
    kernel: KernelAlgorithm | None = None

    @property
    def title(self) -> str:
        """The title, for progress and timelines."""
        redop = "" if self.redop == "none" else f" {self.redop}"
        where = f"{self.num_ranks} ranks of {self.cluster.name}"
        root = "" if self.root < 1 else f" root {self.root}"
        return f"{self.collective} {self.algorithm} {self.dtype}{redop}{root} on {where}"

    @property
    def call_name(self) -> str:
        """The collective whose algorithms are used."""
        return call_name(self.collective)

    def cases(self, config: BenchConfig) -> list[Case]:
        """Return its sizes, each out of place and in place as configured."""
        forms = (False,) if self.collective in OUT_OF_PLACE else config.in_place
        num_elements = counts(self.collective, self.num_ranks, self.dtype, config.sizes_bytes)
        facts = (self.collective, self.num_ranks, self.dtype, self.redop, self.root)
        return [Case(*facts, count, in_place) for count in num_elements for in_place in forms]


def series_of(config: BenchConfig) -> Iterator[Series]:
    """Yield every combination of a benchmark's lists but size and form.

    Raises:
        ConfigError: No collective has an algorithm of a name, or it does not take an option.
        UnsupportedError: An algorithm is a Triton kernel, and triton is not installed.
    """
    has_kernels = any("kernel" in options for options in config.algorithms.values())
    if has_kernels and find_spec("triton") is None:
        raise UnsupportedError("triton is not installed; to fix: pip install triton")
    combinations = [
        (cluster, num_ranks, collective)
        for cluster in map(build_cluster, config.clusters)
        for num_ranks in config.num_ranks or (cluster.num_devices,)
        for collective in config.collectives
    ]
    calls = {(call_name(each), num_ranks) for _, num_ranks, each in combinations}
    config = _with_files(config, calls)
    _check(config, calls)
    for cluster in dict.fromkeys(cluster for cluster, _, _ in combinations):
        check_faults(config.faults, cluster)
    kernels = {name: _kernel(name, options) for name, options in config.algorithms.items()}
    for cluster, num_ranks, collective in combinations:
        redops = dict.fromkeys(redop_of(collective, redop) for redop in config.redops)
        given = range(num_ranks) if config.root is None else (config.root,)
        roots = dict.fromkeys(root_of(collective, root) for root in given)
        for (name, options), dtype, redop, root in itertools.product(
            config.algorithms.items(), config.dtypes, redops, roots
        ):
            kernel, facts = kernels[name], (dtype, redop, root)
            if kernel is not None:
                if kernel.collective == collective and redop in ("none", "sum"):
                    yield Series(cluster, num_ranks, collective, name, {}, *facts, kernel)
            elif name in ("auto", NCCL) or name in algorithms_for(call_name(collective), num_ranks):
                yield Series(cluster, num_ranks, collective, name, _integers(options), *facts)


def _with_files(config: BenchConfig, calls: set[tuple[str, int]]) -> BenchConfig:
    """Return the benchmark with files of algorithms (MSCCL's XML) in the table, by their names.

    Raises:
        ConfigError: A file cannot be read, or is of no algorithm that the benchmark calls.
        ScheduleError: It would wait forever, or does not compute its collective.
    """
    folder = Path() if config.source.path is None else config.source.path.parent
    named = {}
    for name, options in config.algorithms.items():
        if not name.endswith(SUFFIX):
            named[name] = options
            continue
        found = register_msccl(folder / name)
        if (found.collective, found.world_size) not in calls:
            each = sorted(calls)
            wanted = " or ".join(f"{collective} on {ranks} ranks" for collective, ranks in each)
            got = f"{found.collective} on {found.world_size} ranks"
            raise ConfigError(config.source.problem(("algorithms", name), wanted, got))
        named[found.name] = options
    return config.model_copy(update={"algorithms": named})


def call_name(collective: str) -> str:
    """Return the collective whose algorithms are used; messages have no choice."""
    return "all_to_all" if collective == "all_to_all_v" else collective


def _kernel(name: str, options: Mapping[str, object]) -> KernelAlgorithm | None:
    """Return the Triton kernel of an entry; None for schedules.

    Raises:
        ValueError, UnsupportedError: There is no such kernel, or it does not take an option.
    """
    if "kernel" not in options:
        return None
    from simrank.kernels.algorithms import KernelAlgorithm  # noqa: PLC0415 - it needs triton

    rest = {key: value for key, value in options.items() if key != "kernel"}
    return KernelAlgorithm(name, str(options["kernel"]), rest)


def _integers(options: Mapping[str, object]) -> Mapping[str, int]:
    return {name: value for name, value in options.items() if isinstance(value, int)}


def _check(config: BenchConfig, calls: set[tuple[str, int]]) -> None:
    """Raise ConfigError for an algorithm or option that does not exist, or sizes of nothing."""
    problems = []
    for name, options in config.algorithms.items():
        wrong = _wrong_with(name, options, calls)
        if wrong is not None:
            problems.append(config.source.problem(("algorithms", name), *wrong))
    if not any(config.sizes_bytes):
        problems.append(config.source.problem(("sizes",), "a size above 0 B", "0 B only"))
    if problems:
        raise ConfigError(*in_file_order(problems))


def _wrong_with(
    name: str, options: Mapping[str, object], calls: set[tuple[str, int]]
) -> tuple[str, str, str | None] | None:
    """Return the expected entry, the given one, and the cure.

    None if it is accepted as it is.
    """
    given = ", ".join(f"{key}: {value}" for key, value in options.items())
    if name in ("auto", NCCL):
        return (f"no options, as {name} chooses them", given, None) if options else None
    if "kernel" in options:
        return _wrong_with_kernel(name, options, {collective for collective, _ in calls})
    having = [call for call in sorted(calls) if name in algorithms_for(*call)]
    if not having:
        known = dict.fromkeys(other for call in sorted(calls) for other in algorithms_for(*call))
        choices = ["auto", NCCL, *known]
        near = closest(name, choices)
        return choice_text(choices), name, near and f"write `{near}`"
    if not all(type(value) is int for value in options.values()):
        return f"whole numbers as options of {name}", given, None
    try:
        for collective, num_ranks in having:
            build(Problem(collective, num_ranks, 1), name, options=dict(options))  # type: ignore[arg-type]
    except ValueError as error:
        return f"options of {name}", f"{given} ({error})", None
    return None


def _wrong_with_kernel(
    name: str, options: Mapping[str, object], collectives: set[str]
) -> tuple[str, str, str | None] | None:
    """Return the expected kernel entry, the given one, and the cure."""
    try:
        kernel = _kernel(name, options)
    except (ValueError, UnsupportedError) as error:
        return (
            "a module with a kernel, and options of kernels",
            f"{options['kernel']} ({error})",
            None,
        )
    assert kernel is not None, "it names one"
    if kernel.collective in collectives:
        return None
    expected = f"a kernel for {' or '.join(sorted(collectives))}"
    return expected, f"{options['kernel']}, which is for {kernel.collective}", None
