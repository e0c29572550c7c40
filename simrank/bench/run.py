"""Run a benchmark: every combination of its lists is one row; start with `run`."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.bench.program import (
    BLOCKS,
    Case,
    TestData,
    checked_program,
    counts,
    redop_of,
    root_of,
    timed_program,
)
from simrank.collectives import Problem, algorithms_for, build
from simrank.collectives.bounds import busbw_factor
from simrank.collectives.problem import COLLECTIVES, REDUCING
from simrank.collectives.reference import count_wrong
from simrank.config import BenchConfig, bench_config_from_mapping, load_bench_config, load_measured
from simrank.config.quantity import choice_text, closest
from simrank.context import Context
from simrank.errors import ConfigError, ConfigProblem, UnsupportedError
from simrank.hardware.build import build_cluster
from simrank.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from simrank.hardware.cluster import Cluster
    from simrank.kernels.algorithms import KernelAlgorithm
    from simrank.trace import Timeline

# Larger sizes are timed shape-only: one rank's size, and what all ranks hold together.
CHECK_UP_TO_BYTES = 64 * 1024 * 1024
CHECK_UP_TO_TOTAL_BYTES = 1024 * 1024 * 1024


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
        error_pct: (time_us - measured_us) / measured_us in percent.
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
        """What it is, for progress and timelines."""
        redop = "" if self.redop == "none" else f" {self.redop}"
        where = f"{self.num_ranks} ranks of {self.cluster.name}"
        return f"{self.collective} {self.algorithm} {self.dtype}{redop} on {where}"

    def cases(self, config: BenchConfig) -> list[Case]:
        """Return its sizes, each out of place and in place as configured."""
        # As in nccl-tests, all_to_all has no in-place form.
        forms = (False,) if self.collective == "all_to_all" else config.in_place
        num_elements = counts(self.collective, self.num_ranks, self.dtype, config.sizes_bytes)
        facts = (self.collective, self.num_ranks, self.dtype, self.redop, self.root)
        return [Case(*facts, count, in_place) for count in num_elements for in_place in forms]


def run(
    config: str | Path | Mapping[str, Any] | BenchConfig,
    *,
    timeline: Timeline | None = None,
    on_rows: Callable[[Series, list[Row]], None] | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Run a benchmark and return its rows, as in the JSON file.

    Args:
        config: A YAML file, the name of a built-in benchmark, a mapping with the same keys, or a
            checked configuration.
        timeline: Records the timed iterations.
        on_rows: Called with each series when its rows are complete.
        on_progress: Called with (what runs, steps done, steps in all).

    Raises:
        ConfigError: Something in it is wrong.
    """
    if not isinstance(config, BenchConfig):
        is_mapping = not isinstance(config, str) and hasattr(config, "keys")
        config = bench_config_from_mapping(config) if is_mapping else load_bench_config(config)  # type: ignore[arg-type]
    measured = _measured(config)
    all_series = list(series_of(config))
    num_cases = sum(len(series.cases(config)) for series in all_series)
    rows: list[Row] = []
    for series in all_series:
        done = itertools.count(len(rows))

        def on_case(case: Case, series: Series = series, done: Iterator[int] = done) -> None:
            if on_progress is not None:
                what = f"{series.title}, {format_size(case.size_bytes)}"
                on_progress(what, next(done), num_cases)

        new_rows = _run_series(series, config, timeline, on_case)
        new_rows = [_with_measured(row, measured) for row in new_rows]
        rows += new_rows
        if on_rows is not None:
            on_rows(series, new_rows)
    return [as_columns(row, several_clusters=len(config.clusters) > 1) for row in rows]


def as_columns(row: Row, *, several_clusters: bool) -> dict[str, Any]:
    """Return a row as in the JSON file; only with several clusters it says which one."""
    columns = asdict(row)
    cluster = columns.pop("cluster")
    return {"cluster": cluster, **columns} if several_clusters else columns


def series_of(config: BenchConfig) -> Iterator[Series]:
    """Yield every combination of a benchmark's lists but size and form.

    Raises:
        ConfigError: No collective has an algorithm of a name, or it does not take an option.
    """
    combinations = [
        (cluster, num_ranks, collective)
        for cluster in map(build_cluster, config.clusters)
        for num_ranks in config.num_ranks or (cluster.num_devices,)
        for collective in config.collectives
    ]
    _check(config, {(collective, num_ranks) for _, num_ranks, collective in combinations})
    if not any(config.sizes_bytes):
        problem = (config.source_file, None, "sizes", "a size above 0 B", "0 B only")
        raise ConfigError(ConfigProblem(*problem))
    kernels = {name: _kernel(name, options) for name, options in config.algorithms.items()}
    for cluster, num_ranks, collective in combinations:
        redops = dict.fromkeys(redop_of(collective, redop) for redop in config.redops)
        root = root_of(collective, config.root)
        for (name, options), dtype, redop in itertools.product(
            config.algorithms.items(), config.dtypes, redops
        ):
            kernel, facts = kernels[name], (dtype, redop, root)
            if kernel is not None:
                if kernel.collective == collective and redop in ("none", "sum"):
                    yield Series(cluster, num_ranks, collective, name, {}, *facts, kernel)
            elif name == "auto" or name in algorithms_for(collective, num_ranks):
                yield Series(cluster, num_ranks, collective, name, _integers(options), *facts)


def _kernel(name: str, options: Mapping[str, object]) -> KernelAlgorithm | None:
    """Return the Triton kernel that an entry names, or None where it is a schedule.

    Raises:
        ValueError, UnsupportedError: There is none, or it does not take an option.
    """
    if "kernel" not in options:
        return None
    if find_spec("triton") is None:
        raise ValueError("triton installed: pip install simrank[triton]")
    from simrank.kernels.algorithms import KernelAlgorithm  # noqa: PLC0415 - it needs triton

    rest = {key: value for key, value in options.items() if key != "kernel"}
    return KernelAlgorithm(name, str(options["kernel"]), rest)


def _integers(options: Mapping[str, object]) -> Mapping[str, int]:
    return {name: value for name, value in options.items() if isinstance(value, int)}


def _check(config: BenchConfig, calls: set[tuple[str, int]]) -> None:
    """Raise ConfigError for a collective, algorithm or option that does not exist."""
    problems = []
    for index, collective in enumerate(config.collectives):
        if collective not in COLLECTIVES:
            expected = f"one of {', '.join(COLLECTIVES)}"
            key_path = f"collectives[{index}]"
            problems.append(ConfigProblem(config.source_file, None, key_path, expected, collective))
    for name, options in config.algorithms.items():
        wrong = None if problems else _wrong_with(name, options, calls)
        if wrong is not None:
            problems.append(ConfigProblem(config.source_file, None, f"algorithms.{name}", *wrong))
    if problems:
        raise ConfigError(*problems)


def _wrong_with(
    name: str, options: Mapping[str, object], calls: set[tuple[str, int]]
) -> tuple[str, str, str | None] | None:
    """Return what would have been accepted in place of an entry, what was found, and the cure.

    None if it is accepted as it is.
    """
    given = ", ".join(f"{key}: {value}" for key, value in options.items())
    if name == "auto":
        return ("no options, as auto chooses them", given, None) if options else None
    if "kernel" in options:
        return _wrong_with_kernel(name, options, {collective for collective, _ in calls})
    having = [call for call in sorted(calls) if name in algorithms_for(*call)]
    if not having:
        known = dict.fromkeys(other for call in sorted(calls) for other in algorithms_for(*call))
        near = closest(name, known)
        return choice_text(["auto", *known]), name, near and f"write `{near}`"
    try:
        for collective, num_ranks in having:
            build(Problem(collective, num_ranks, 1), name, options=dict(options))  # type: ignore[arg-type]
    except ValueError as error:
        return f"options of {name}", f"{given} ({error})", None
    return None


def _wrong_with_kernel(
    name: str, options: Mapping[str, object], collectives: set[str]
) -> tuple[str, str, str | None] | None:
    """Return the same of an entry that names a kernel."""
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


def _run_series(
    series: Series,
    config: BenchConfig,
    timeline: Timeline | None,
    on_case: Callable[[Case], None],
) -> list[Row]:
    cases = series.cases(config)
    wrong: dict[Case, int | None] = {}
    for case in cases:
        on_case(case)
        # torch's all_reduce, broadcast and reduce are in place either way: one run tells both.
        same = case if case.collective in BLOCKS else replace(case, in_place=False)
        if same not in wrong:
            wrong[same] = _num_wrong(series, same, config)
        wrong[case] = wrong[same]
    context = _context(series, config, data=series.kernel is not None)  # Kernels need values.
    if timeline is not None:
        timeline.begin_section(series.title)
        context.observe(timeline)
    times_us = [0.0] * len(cases)

    def report(_: int, index: int, time_us: float) -> None:
        times_us[index] += time_us / series.num_ranks

    iterations = (config.iterations.warmup, config.iterations.timed)
    with context:
        args = (context, cases, iterations, report, series.kernel)
        spawn = context.multiprocessing.spawn
        spawn(timed_program, args, nprocs=series.num_ranks, share_args=True)
    return [
        _row(series, case, time_us, wrong[case], context)
        for case, time_us in zip(cases, times_us, strict=True)
    ]


def _context(series: Series, config: BenchConfig, *, data: bool) -> Context:
    named = "auto" if series.kernel is not None else series.algorithm
    forced = {series.collective: (named, series.options)}
    faults = config.faults
    return Context(series.cluster, seed=config.seed, data=data, algorithms=forced, faults=faults)


def _num_wrong(series: Series, case: Case, config: BenchConfig) -> int | None:
    """Run a case once on real numbers; return how many elements are wrong."""
    total_bytes = case.size_bytes * case.num_ranks
    too_large = case.size_bytes > CHECK_UP_TO_BYTES or total_bytes > CHECK_UP_TO_TOTAL_BYTES
    if too_large or not config.check:
        return None
    data = TestData(case.num_inputs, case.num_ranks, case.dtype, case.redop, config.seed)
    outputs: list[Any] = [None] * case.num_ranks
    with _context(series, config, data=True) as context:
        args = (context, case, data, outputs, series.kernel)
        spawn = context.multiprocessing.spawn
        spawn(checked_program, args, nprocs=case.num_ranks, share_args=True)
    inputs = [data.of(rank, case.num_inputs) for rank in range(case.num_ranks)]
    redop = "sum" if case.redop == "none" else case.redop
    return count_wrong(case.problem, inputs, outputs, reduce_op=redop)


def _chosen(series: Series, case: Case, context: Context) -> tuple[str, str, int]:
    """Return what ran, where its time comes from, and its channels."""
    if series.kernel is not None:
        return series.algorithm, "programs", int(series.kernel.options["num_channels"])
    choice = context.comm_library.choose(case.problem, np.arange(case.num_ranks))
    return choice.algorithm, choice.level, choice.schedule.num_channels


def _row(
    series: Series, case: Case, time_us: float, num_wrong: int | None, context: Context
) -> Row:
    algorithm, level, channels = _chosen(series, case, context)
    algbw = case.size_bytes / time_us / 1e3 if time_us else 0.0
    factor = busbw_factor(case.collective, case.num_ranks)
    nodes = series.cluster.node_of(np.arange(case.num_ranks))
    return Row(
        cluster=series.cluster.name,
        collective=case.collective,
        algorithm=algorithm,
        protocol=None,
        num_ranks=case.num_ranks,
        num_nodes=int(nodes.max()) + 1,
        in_place=case.in_place,
        redop=case.redop,
        root=case.root,
        dtype=case.dtype,
        size_bytes=case.size_bytes,
        time_us=time_us,
        algbw_GBps=algbw,
        busbw_GBps=algbw * factor,
        num_wrong=num_wrong,
        cost_level=level,
        calibration=None,
        interval_us=None,
        channels=channels,
        measured_us=None,
        error_pct=None,
    )


_MeasuredKey = tuple[str, int, int, str]


def _measured(config: BenchConfig) -> dict[_MeasuredKey, float]:
    """Return published times by (collective, ranks, bytes, dtype; "" where nothing is reduced).

    Raises:
        ConfigError: There are several clusters: a table was measured on one.
    """
    if config.measured and len(config.clusters) > 1:
        got = f"{len(config.clusters)} clusters"
        whole_file = (config.source_file, None, "measured")
        raise ConfigError(ConfigProblem(*whole_file, "a single cluster beside measured times", got))
    rows = [row for path in config.measured for row in load_measured(path)]
    return {
        (row.collective, row.num_ranks, row.size_bytes, _reduced(row.collective, row.dtype)):
        row.time_us for row in rows
    }  # fmt: skip


def _reduced(collective: str, dtype: str) -> str:
    """Return the dtype where it matters: bytes that are only copied cost the same."""
    return dtype if collective in REDUCING else ""


def _with_measured(row: Row, measured: Mapping[_MeasuredKey, float]) -> Row:
    dtype = _reduced(row.collective, row.dtype)
    measured_us = measured.get((row.collective, row.num_ranks, row.size_bytes, dtype))
    if measured_us is None:
        return row
    return replace(
        row, measured_us=measured_us, error_pct=100 * (row.time_us - measured_us) / measured_us
    )
