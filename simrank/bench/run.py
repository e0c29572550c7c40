"""Run a benchmark: every combination of its lists is one row; start with `run`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.bench.program import ON_TARGET, Case, TestData, checked_program, timed_program
from simrank.bench.series import (
    NCCL,
    Row,
    as_columns,
    predicted_rows,
    prediction_interval,
    series_of,
    timed_row,
    without_measured_site,
)
from simrank.calibration.hold_outs import is_fitted_to, site_of
from simrank.calibration.measured_text import UNKNOWN_DTYPE, rows_by_file
from simrank.collectives.nccl.constants import P2P, SIMPLE
from simrank.collectives.nccl.evidence import uses_pool
from simrank.collectives.problem import REDUCING
from simrank.collectives.reference import count_wrong
from simrank.config import BenchConfig, bench_config_from_mapping, load_bench_config
from simrank.config.yaml_source import read_text
from simrank.context import Context
from simrank.distributed.planner import NO_OVERRIDES, NcclOverrides, tuning_of
from simrank.errors import ConfigError
from simrank.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from simrank.bench.series import Series
    from simrank.trace import Timeline

# Larger sizes are timed shape-only: one rank's size, and what all ranks hold together.
CHECK_UP_TO_BYTES = 64 * 1024 * 1024
CHECK_UP_TO_TOTAL_BYTES = 1024 * 1024 * 1024


class Watcher:
    """Listener of a running benchmark; does nothing by default."""

    def on_start(self) -> None:
        """Nothing is wrong with the configuration; the first series begins."""

    def on_progress(self, what: str, done: int, total: int) -> None:
        """Report the running step, the number of finished steps and the total."""

    def on_rows(self, series: Series, rows: list[Row]) -> None:
        """Report the rows of one size, out of place and in place, when both are complete."""


def run(
    config: str | Path | Mapping[str, Any] | BenchConfig,
    *,
    timeline: Timeline | None = None,
    watcher: Watcher | None = None,
    time_limit_s: float | None = None,
) -> list[dict[str, Any]]:
    """Run a benchmark and return its rows, as in the JSON file.

    Args:
        config: A YAML file, the name of a built-in benchmark, a mapping with the same keys, or a
            checked configuration.
        timeline: Records the timed iterations.
        watcher: Gets the start, progress and rows.
        time_limit_s: Wall-clock seconds that a series may take.

    Raises:
        ConfigError: The benchmark is invalid; raised before any call of `watcher`.
        TimeLimitError: A series takes too long.
    """
    if not isinstance(config, BenchConfig):
        is_mapping = not isinstance(config, str) and hasattr(config, "keys")
        config = bench_config_from_mapping(config) if is_mapping else load_bench_config(config)  # type: ignore[arg-type]
    watcher = watcher or Watcher()
    measured = _measured(config)
    all_series = list(series_of(config))
    num_cases = sum(len(series.cases(config)) for series in all_series)
    if all_series and not num_cases:
        expected = f"a size that holds an element of {all_series[0].dtype} for each rank"
        largest = format_size(max(config.sizes_bytes))
        raise ConfigError(config.source.problem(("sizes",), expected, f"at most {largest}"))
    if NcclOverrides.of_environment() is not NO_OVERRIDES:  # They leave something to each series?
        for series in (each for each in all_series if each.algorithm != NCCL):
            _chosen(series, series.cases(config)[0], _context(series, config, data=False))
    rows: list[Row] = []

    def on_case(series: Series, case: Case, new_rows: list[Row]) -> None:
        rows.extend(new_rows)
        what = f"{series.title}, {format_size(case.size_bytes)}"
        watcher.on_progress(what, len(rows), num_cases)
        if new_rows:
            watcher.on_rows(series, new_rows)

    watcher.on_start()
    for series in all_series:
        if series.algorithm == NCCL:
            _predict(series, config, measured, on_case)
        else:
            _Run(series, config, measured, on_case).run(timeline, time_limit_s)
    return [as_columns(row, several_clusters=len(config.clusters) > 1) for row in rows]


def _predict(
    series: Series,
    config: BenchConfig,
    measured: Mapping[_MeasuredKey, _Measured],
    on_case: Callable[[Series, Case, list[Row]], None],
) -> None:
    """Report the rows of a series that needs no run, size by size."""
    of_size: list[Row] = []
    found = predicted_rows(series, config)
    for index, (case, row) in enumerate(found):
        of_size.append(_with_measured(row, series, measured))
        following = found[index + 1 : index + 2]
        if not following or following[0][0].count != case.count:
            on_case(series, case, of_size)
            of_size = []


class _Run:
    """Runs one series.

    Args:
        series: Which.
        config: Its benchmark.
        measured: Published times.
        on_case: Called with a case when the one before is complete, with the rows of a size when
            they are.
    """

    def __init__(
        self,
        series: Series,
        config: BenchConfig,
        measured: Mapping[_MeasuredKey, _Measured],
        on_case: Callable[[Series, Case, list[Row]], None],
    ) -> None:
        self._series = series
        self._config = config
        self._measured = measured
        self._on_case = on_case
        self._cases = series.cases(config)
        self._times_us: dict[int, float] = {}  # Of the current case, by rank.
        self._wrong: dict[Case, int | None] = {}
        self._rows: list[Row] = []  # Of the current size.

    def run(self, timeline: Timeline | None, time_limit_s: float | None) -> None:
        """Time its cases one after the other, on the same ranks."""
        if not self._cases:
            return
        series, config = self._series, self._config
        with_data = series.kernel is not None  # Kernels need values.
        context = _context(series, config, data=with_data, time_limit_s=time_limit_s)
        if timeline is not None:
            timeline.begin_section(series.title)
            context.observe(timeline)

        def report(rank: int, index: int, time_us: float) -> None:
            self._times_us[rank] = time_us
            if len(self._times_us) == series.num_ranks:
                self._complete(index, context)

        self._on_case(series, self._cases[0], [])
        with context:
            args = (context, self._cases, config.iterations, report, series.kernel)
            spawn = context.multiprocessing.spawn
            spawn(timed_program, args, nprocs=series.num_ranks, share_args=True)

    def _complete(self, index: int, context: Context) -> None:
        """Make the row of a case that all ranks have timed; ranks wait while data are checked."""
        case = self._cases[index]
        time_us = averaged(self._times_us, self._config.average)
        self._times_us = {}
        row = _row(self._series, case, time_us, self._num_wrong(case), context)
        self._rows.append(_with_measured(row, self._series, self._measured))
        following = self._cases[index + 1 : index + 2]
        rows: list[Row] = []
        if not following or following[0].count != case.count:
            rows, self._rows = self._rows, rows
        self._on_case(self._series, (following or [case])[0], rows)

    def _num_wrong(self, case: Case) -> int | None:
        # Calls that are in place either way: one run tells both.
        same = replace(case, in_place=False) if case.collective in ON_TARGET else case
        if same not in self._wrong:
            self._wrong = {same: _num_wrong(self._series, same, self._config)}
        return self._wrong[same]


def averaged(times_us: Mapping[int, float], average: str) -> float:
    """Return the time of an iteration from the ranks' times, as nccl-tests' -a.

    Args:
        times_us: By rank.
        average: "rank0", "avg", "min" or "max".
    """
    if average == "rank0":
        return times_us[0]
    if average == "avg":
        return sum(time_us / len(times_us) for time_us in times_us.values())
    return (min if average == "min" else max)(times_us.values())


def _context(
    series: Series, config: BenchConfig, *, data: bool, time_limit_s: float | None = None
) -> Context:
    named = "auto" if series.kernel is not None else series.algorithm
    forced = {series.call_name: (named, series.options)} if named != "auto" else None
    return Context(
        series.cluster,
        seed=config.seed,
        data=data,
        algorithms=forced,
        faults=config.faults,
        time_limit_s=time_limit_s,
    )


def is_too_large(size_bytes: int, num_ranks: int) -> bool:
    """Return whether the data of a case is too large to be checked."""
    return size_bytes > CHECK_UP_TO_BYTES or size_bytes * num_ranks > CHECK_UP_TO_TOTAL_BYTES


def _num_wrong(series: Series, case: Case, config: BenchConfig) -> int | None:
    """Run a case once on real numbers; return how many elements are wrong."""
    if is_too_large(case.size_bytes, case.num_ranks) or not config.check:
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


class _Chosen(NamedTuple):
    """The algorithm of a row, the source of its time, and its channels."""

    algorithm: str
    protocol: str | None
    level: str
    channels: int


def _chosen(series: Series, case: Case, context: Context) -> _Chosen:
    """Return the algorithm of a row."""
    if series.kernel is not None:
        channels = int(series.kernel.options["num_channels"])
        return _Chosen(series.algorithm, None, "programs", channels)
    if series.collective == "sendrecv":
        return _messages(series, case, context)
    redop = None if case.redop == "none" else case.redop
    tuning = tuning_of(series.call_name, case.dtype, redop, NcclOverrides.of_environment())
    choice = context.comm_library.choose(case.problem, np.arange(case.num_ranks), tuning)
    channels, nccl = choice.schedule.num_channels, series.cluster.nccl
    if choice.level == NCCL and nccl is not None:
        channels = nccl.channels
    return _Chosen(choice.algorithm, choice.protocol, choice.level, channels)


def _messages(series: Series, case: Case, context: Context) -> _Chosen:
    """Return a function that sends a message to the next rank."""
    library = context.comm_library
    level, pair = library.chooser.nccl, (0, min(1, series.num_ranks - 1))
    if level is None or level.message(pair, case.size_bytes, series.num_ranks) is None:
        return _Chosen(P2P, None, library.cost.level, 1)
    return _Chosen(P2P, SIMPLE, NCCL, 1)


def _row(
    series: Series, case: Case, time_us: float, num_wrong: int | None, context: Context
) -> Row:
    chosen = _chosen(series, case, context)
    fitted, interval_us = None, None
    if chosen.level == NCCL:
        fitted, interval_us = prediction_interval(series, case.size_bytes, time_us)
    num_nodes = int(series.cluster.node_of(np.arange(case.num_ranks)).max()) + 1
    return timed_row(
        case,
        series.cluster.name,
        num_nodes,
        time_us,
        algorithm=chosen.algorithm,
        protocol=chosen.protocol,
        num_wrong=num_wrong,
        cost_level=chosen.level,
        calibration=fitted,
        interval_us=interval_us,
        channels=chosen.channels,
    )


_MeasuredKey = tuple[tuple[str, int, int], str]


class _Measured(NamedTuple):
    """A measured time, and its site."""

    time_us: float
    site: str


def _measured(config: BenchConfig) -> dict[_MeasuredKey, _Measured]:
    """Return measured times by (collective, ranks, bytes) and dtype; "" without a reduction.

    Raises:
        ConfigError: There are several clusters: a table was measured on one.
    """
    if config.measured and len(config.clusters) > 1:
        got = f"{len(config.clusters)} clusters"
        expected = "a single cluster with measured times"
        raise ConfigError(config.source.problem(("measured",), expected, got))
    texts = {str(path): read_text(path) for path in config.measured}
    return {
        ((row.collective, row.num_ranks, row.size_bytes), _reduced(row.collective, row.dtype)):
        _Measured(row.time_us, site_of(Path(file)))
        for file, rows in rows_by_file(texts).items() for row in rows
    }  # fmt: skip


def _reduced(collective: str, dtype: str) -> str:
    """Return the dtype where it matters: bytes that are only copied cost the same."""
    return dtype if collective in REDUCING else ""


def _with_measured(row: Row, series: Series, measured: Mapping[_MeasuredKey, _Measured]) -> Row:
    """Return a row with its measured time, and its error with the measured site left out."""
    size = row.collective, row.num_ranks, row.size_bytes
    dtypes = _reduced(row.collective, row.dtype), UNKNOWN_DTYPE
    found = next((measured[size, of] for of in dtypes if (size, of) in measured), None)
    if found is None:
        return row
    if row.cost_level == NCCL and uses_pool(series.cluster) and is_fitted_to(found.site):
        time_us, interval_us = without_measured_site(series, row.size_bytes, found.site)
        row = replace(
            row, left_out=found.site, left_out_us=time_us, left_out_interval_us=interval_us
        )
    predicted_us = row.time_us if row.left_out_us is None else row.left_out_us
    error_pct = 100 * (predicted_us - found.time_us) / found.time_us
    return replace(row, measured_us=found.time_us, error_pct=error_pct)
