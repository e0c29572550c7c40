"""`simrank bench`: collectives and programs from YAML files, or with nccl-tests' options."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simrank.bench.nccl_tests_writer import (
    INSPECTOR,
    NCCL_TESTS,
    inspector_text,
    machine_of,
    nccl_tests_text,
)
from simrank.bench.page import collectives_page, program_page
from simrank.bench.run import run
from simrank.bench.sweep import fingerprint, is_row, run_sweep, sweep_header, sweep_line
from simrank.cli import options  # noqa: TC001 - typer looks annotations up
from simrank.cli.common import EXIT_STATUS, FAILED, app, ended_by_sigterm, traced_ranks
from simrank.cli.debugging import show_surroundings
from simrank.cli.nccl_tests import NcclTestsCommand, bad_option, collective_of, mapping_of
from simrank.cli.results import GridResults, Results, Shown, ShownGrid
from simrank.config import BenchConfig, bench_config_from_mapping, load_bench_config
from simrank.config.locate import is_file, locate
from simrank.config.plan import is_plan
from simrank.config.sweep import ERROR, is_sweep, load_sweep
from simrank.config.yaml_source import read_yaml
from simrank.errors import ConfigError
from simrank.parallel import Part, Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from simrank.bench.nccl_tests_writer import Machine
    from simrank.bench.series import Row, Series
    from simrank.config.sweep import SweepConfig


# ---- benchmarks of programs on the command line: table, files, resumption ----


def bench_program(config: SweepConfig, given: dict[str, Any], workers: Workers) -> None:
    """Benchmark a program: print its table as it grows, and write the requested files.

    Raises:
        Exit: A run failed.
    """
    if given["trace"] is not None and not workers.are_here:
        raise bad_option("--trace", "runs in this process beside it", "--jobs or --backend")
    most = max(config.ranks_for(cell.cluster, cell.chosen) for cell in config.cells())
    traced_ranks(given["trace"], given["trace_ranks"], most)
    results = _Results(config, given)
    finished = {} if results.timeline is not None else results.finished(given["json_file"])
    watcher = _Shown(config, results, given["json_file"] if finished else None)
    with results.kept(), watcher.progress:
        part = Part(workers, finished)
        run_sweep(config, timeline=results.timeline, watcher=watcher, part=part)
    num_failed = sum(row[ERROR] is not None for row in results.rows)
    if num_failed:
        typer.echo(f"# {num_failed} of {len(results.rows)} runs failed")
        raise typer.Exit(FAILED)


class _Results(GridResults):
    """The rows of a benchmark; a file that was left half full is gone on with.

    Args:
        config: The benchmark.
        given: The options of the command line.
    """

    def __init__(self, config: SweepConfig, given: dict[str, Any]) -> None:
        self._facts = {"seed": config.seed, "program": config.program}
        super().__init__(given, self._facts, lambda *facts: program_page(config, self.rows, *facts))
        self._config = fingerprint(config)
        self._num_cells = len(config.cells())

    def to_resume(self) -> dict[str, Any]:
        """Return the key of a run to resume: its runs and their dependencies."""
        return {"config": self._config, "cells": sorted(self.by_cell)}

    def finished(self, path: str | None) -> Mapping[int, dict[str, Any]]:
        """Return the rows, by run, of a file that the same benchmark left when it ended early."""
        found = self.earlier(path)
        expected = {**self._facts, "config": self._config}
        if "partial" not in found or any(found.get(name) != it for name, it in expected.items()):
            return {}
        cells, rows = found.get("cells"), found.get("rows")
        if not isinstance(cells, list) or not isinstance(rows, list) or len(cells) != len(rows):
            return {}  # The file is not as it was written.
        are_right = all(
            type(index) is int and index in range(self._num_cells) and is_row(row)
            for index, row in zip(cells, rows, strict=True)
        )
        return dict(zip(cells, rows, strict=True)) if are_right else {}


class _Shown(ShownGrid):
    """Prints the table as it grows, under a progress bar.

    Args:
        config: The benchmark.
        results: As of `ShownGrid`.
        resumed: As of `ShownGrid`.
    """

    def __init__(self, config: SweepConfig, results: GridResults, resumed: str | None) -> None:
        super().__init__(results, resumed)
        self._config = config

    def on_start(self) -> None:
        """Print the first lines, and the head of the table."""
        super().on_start()
        typer.echo(sweep_header(self._config))

    def on_row(self, row: dict[str, Any], report: str | None) -> None:
        """Print a row, and before it the whole text of an error that is new."""
        self._report(row[ERROR], report)
        self._say(sweep_line(row))


# ---- `simrank bench`: collectives from a YAML file, or one with nccl-tests' options ----


@app.command(epilog=EXIT_STATUS, cls=NcclTestsCommand)
@ended_by_sigterm()
def bench(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(help="A YAML file, a built-in benchmark, or a collective.")
    ],
    cluster: Annotated[str, typer.Option(help="Cluster of a collective.")] = "hgx_h100",
    nodes: Annotated[int | None, typer.Option(help="Nodes of the cluster.")] = None,
    num_ranks: Annotated[
        int | None, typer.Option("-g", "--ngpus", "--num-ranks", help="Ranks [all devices].")
    ] = None,
    nthreads: options.Nthreads = None,
    begin: Annotated[
        str, typer.Option("-b", "--minbytes", help="Smallest size; K, M, G are 1024-based.")
    ] = "8",
    end: Annotated[str, typer.Option("-e", "--maxbytes", help="Largest size.")] = "128M",
    factor: Annotated[
        int | None, typer.Option("-f", "--stepfactor", help="Factor between sizes [2].")
    ] = None,
    step: Annotated[
        str | None,
        typer.Option("-i", "--stepbytes", help="Step between sizes instead of a factor."),
    ] = None,
    iters: Annotated[int, typer.Option("-n", "--iters", help="Timed iterations.")] = 20,
    warmup: Annotated[int, typer.Option("-w", "--warmup_iters", help="Warm-up iterations.")] = 1,
    dtype: Annotated[
        str, typer.Option("-d", "--datatype", help="Element type, or all.")
    ] = "float32",
    redop: Annotated[str, typer.Option("-o", "--op", help="Reduce operation, or all.")] = "sum",
    root: Annotated[str, typer.Option("-r", "--root", help="Root rank; -1: all in turn.")] = "0",
    check: Annotated[
        int, typer.Option("-c", "--check", min=0, help="1: check the data; 0: skip the check.")
    ] = 1,
    average: Annotated[
        str, typer.Option("-a", "--average", help="Ranks' time: 0 rank 0, 1 mean, 2 min, 3 max.")
    ] = "1",
    blocking: Annotated[
        int, typer.Option("-z", "--blocking", min=0, max=1, help="1: wait after each iteration.")
    ] = 0,
    timeout: options.SeriesTimeout = 0,
    algorithm: Annotated[str, typer.Option(help="Algorithm.")] = "auto",
    measured: Annotated[
        str | None, typer.Option(help="Measured times, in a format of simrank accuracy.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random choices [0].")] = None,
    jobs: options.Jobs = None,
    backend: options.Backend = None,
    json_file: Annotated[str | None, typer.Option("--json", help="Write rows as JSON.")] = None,
    csv_file: Annotated[str | None, typer.Option("--csv", help="Write rows as CSV.")] = None,
    html_file: Annotated[str | None, typer.Option("--html", help="Write a chart page.")] = None,
    nccl_tests_file: options.NcclTestsFile = None,
    inspector_file: options.InspectorFile = None,
    trace: Annotated[str | None, typer.Option(help="Write a timeline for Perfetto.")] = None,
    trace_ranks: Annotated[str | None, typer.Option(help="Only these ranks: 0,8.")] = None,
) -> None:
    """Benchmark collectives: from a YAML file, or one collective with nccl-tests' options."""
    collective = collective_of(target)
    if collective is not None:
        _refuse_options(context, _OF_PROGRAMS, _NO_PROGRAM)
        config = bench_config_from_mapping(mapping_of(collective, context.params))
        _bench_collectives(config, context.params)
        return
    _refuse_series_options(context)
    changes = {} if seed is None else {"seed": seed}
    if is_sweep(target):
        _refuse_options(context, _OF_COLLECTIVES, _NO_COLLECTIVE)
        workers = Workers(jobs, backend)
        bench_program(load_sweep(target).model_copy(update=changes), context.params, workers)
    else:
        _refuse_options(context, _OF_PROGRAMS, _NO_PROGRAM)
        _bench_collectives(load_bench_config(target).model_copy(update=changes), context.params)


def _refuse_plan(target: str) -> None:
    """Raise ConfigError for a plan, which has a command of its own."""
    if Path(target).suffix in (".yaml", ".yml") and is_file(Path(target)):
        source = read_yaml(target)
        if is_plan(source.data):
            expected, to_fix = "a benchmark", f"simrank plan {target}"
            raise ConfigError(source.problem(("command",), expected, "a plan", to_fix))


def _bench_collectives(config: BenchConfig, given: dict[str, Any]) -> None:
    """Benchmark collectives: print the table as it grows, and write the requested files.

    Raises:
        Exit: Something was wrong with the data.
    """
    counts = config.num_ranks or [cluster.num_devices for cluster in config.clusters]
    traced_ranks(given["trace"], given["trace_ranks"], max(counts))
    show_surroundings()
    names = [cluster.name for cluster in config.clusters]
    head = {"seed": config.seed, "cluster": names[0] if len(names) == 1 else names}
    found: list[tuple[Series, list[Row]]] = []
    others = _others(config, given, found)
    results = Results(given, head, partial(collectives_page, config, found), others)
    shown = Shown(config, results, found)
    with results.kept(), shown.shown():
        limit_s = given["timeout"] or None
        run(config, timeline=results.timeline, watcher=shown, time_limit_s=limit_s)
    if any(row["num_wrong"] for row in results.rows):
        raise typer.Exit(FAILED)


def _others(
    config: BenchConfig, given: dict[str, Any], found: list[tuple[Series, list[Row]]]
) -> dict[str, Callable[[], str]]:
    """Return the writers of files for other tools, by their paths.

    Raises:
        ConfigError: A form has no words for the benchmark.
    """
    others: dict[str, Callable[[], str]] = {}
    for form, name, text in (
        (NCCL_TESTS, "nccl_tests_file", nccl_tests_text),
        (INSPECTOR, "inspector_file", inspector_text),
    ):
        if given[name] is not None:
            machine = machine_of(config, form)
            others[given[name]] = partial(_written, text, found, machine)
    return others


def _written(
    text: Callable[[Sequence[Row], Machine], str],
    found: list[tuple[Series, list[Row]]],
    machine: Machine,
) -> str:
    return text([row for _, rows in found for row in rows], machine)


_OF_PROGRAMS = {"jobs", "backend"}
_NO_PROGRAM = "a program benchmark with this option", "a benchmark of collectives"
_OF_COLLECTIVES = {"nccl_tests_file", "inspector_file"}
_NO_COLLECTIVE = "a benchmark of collectives", "a program benchmark"
_NO_SERIES = "the name of a collective with this option", "a YAML file, which has its own keys"
_OF_FILES = {"json_file", "csv_file", "html_file", "trace", "trace_ranks"}
_FOR_ANY_TARGET = {"target", "seed"} | _OF_FILES | _OF_COLLECTIVES | _OF_PROGRAMS


def _refuse_series_options(context: typer.Context) -> None:
    """Raise ConfigError for options that a YAML file would silently win over, and for a plan."""
    _refuse_plan(context.params["target"])
    names = {parameter.name or "" for parameter in context.command.params}
    path = locate("bench", context.params["target"])
    to_fix = f"change the keys of a copy of {path}, or run `simrank bench COLLECTIVE` with options"
    _refuse_options(context, names - _FOR_ANY_TARGET, (*_NO_SERIES, to_fix))


def _refuse_options(context: typer.Context, names: set[str], why: Sequence[str]) -> None:
    """Raise ConfigError for options that mean nothing here."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            raise bad_option(parameter.opts[-1], *why)
