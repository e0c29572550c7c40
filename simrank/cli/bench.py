"""`simrank bench`: collectives from a YAML file, or one with nccl-tests' options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import simrank
from simrank import units
from simrank.bench import table
from simrank.bench.run import Row, Series, run
from simrank.bench.sweep import run_sweep, sweep_header, sweep_line
from simrank.cli.common import (
    EXIT_STATUS,
    FAILED,
    app,
    check_writable,
    parse_ranks,
    progress_bar,
    write_text,
)
from simrank.config import BenchConfig, bench_config_from_mapping, load_bench_config
from simrank.config.locate import builtin_names
from simrank.config.names import COLLECTIVE_ALIASES, COLLECTIVES
from simrank.config.quantity import closest
from simrank.config.sweep import is_sweep, load_sweep
from simrank.errors import ConfigError, ConfigProblem
from simrank.trace import Timeline

if TYPE_CHECKING:
    from simrank.config.sweep import SweepConfig


@app.command(epilog=EXIT_STATUS)
def bench(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(help="A YAML file, a built-in benchmark, or a collective.")
    ],
    cluster: Annotated[str, typer.Option(help="Cluster, with a collective.")] = "hgx_h100",
    nodes: Annotated[int | None, typer.Option(help="Nodes of the cluster.")] = None,
    num_ranks: Annotated[
        int | None, typer.Option("-g", "--ngpus", "--num-ranks", help="Ranks [all devices].")
    ] = None,
    begin: Annotated[
        str, typer.Option("-b", "--minbytes", help="Smallest size; K, M, G are 1024-based.")
    ] = "8",
    end: Annotated[str, typer.Option("-e", "--maxbytes", help="Largest size.")] = "128M",
    factor: Annotated[
        int | None, typer.Option("-f", "--stepfactor", help="Factor between sizes [2].")
    ] = None,
    step: Annotated[
        str | None, typer.Option("-i", "--stepbytes", help="Step between sizes, not a factor.")
    ] = None,
    iters: Annotated[int, typer.Option("-n", "--iters", help="Timed iterations.")] = 20,
    warmup: Annotated[int, typer.Option("-w", "--warmup_iters", help="Warm-up iterations.")] = 1,
    dtype: Annotated[str, typer.Option("-d", "--datatype", help="Element type.")] = "float32",
    redop: Annotated[str, typer.Option("-o", "--op", help="Reduce operation.")] = "sum",
    root: Annotated[int, typer.Option("-r", "--root", help="Root rank.")] = 0,
    check: Annotated[int, typer.Option("-c", "--check", help="1 to check the data, 0 not to.")] = 1,
    algorithm: Annotated[str, typer.Option("-a", "--algorithm", help="Algorithm.")] = "auto",
    measured: Annotated[str | None, typer.Option(help="CSV of measured times.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random [0].")] = None,
    json_file: Annotated[str | None, typer.Option("--json", help="Write the rows.")] = None,
    csv_file: Annotated[str | None, typer.Option("--csv", help="Write the rows.")] = None,
    trace: Annotated[str | None, typer.Option(help="Write a timeline for Perfetto.")] = None,
    trace_ranks: Annotated[str | None, typer.Option(help="Only these ranks: 0,8.")] = None,
) -> None:
    """Benchmark collectives: from a YAML file, or one collective with nccl-tests' options."""
    if COLLECTIVE_ALIASES.get(target, target) in COLLECTIVES:
        config = bench_config_from_mapping(_mapping(context.params))
    else:
        _refuse_series_options(context)
        if is_sweep(target):
            _bench_program(load_sweep(target), context.params)
            return
        config = _config_of(target)
        if seed is not None:
            config = config.model_copy(update={"seed": seed})
    for path in (json_file, csv_file, trace):
        check_writable(path)
    timeline = None if trace is None else Timeline(parse_ranks(trace_ranks))
    rows = _run_shown(config, timeline)
    if json_file is not None:
        _write_json(json_file, rows, config)
    if csv_file is not None:
        _write_csv(csv_file, rows)
    if timeline is not None and trace is not None:
        timeline.write(trace)
    if any(row["num_wrong"] for row in rows):
        raise typer.Exit(FAILED)


def _config_of(target: str) -> BenchConfig:
    """Return the configuration of a file or a built-in benchmark.

    Raises:
        ConfigError: There is none; the word may be a collective that is spelled wrongly.
    """
    near = closest(target, COLLECTIVES)
    if near is not None and target not in builtin_names("bench") and not Path(target).exists():
        expected = "a YAML file, a built-in benchmark or a collective"
        to_fix = f"write `{near}`"
        raise ConfigError(ConfigProblem("command line", None, "target", expected, target, to_fix))
    return load_bench_config(target)


def _bench_program(config: SweepConfig, given: dict[str, Any]) -> None:
    """Benchmark a program: print its table as it grows, and write what was asked for."""
    if given["seed"] is not None:
        config = config.model_copy(update={"seed": given["seed"]})
    for name in ("json_file", "csv_file", "trace"):
        check_writable(given[name])
    timeline = None if given["trace"] is None else Timeline(parse_ranks(given["trace_ranks"]))
    typer.echo(f"# simrank {simrank.__version__}, simulated time, seed {config.seed}")
    typer.echo(sweep_header(config))
    with progress_bar() as progress:
        task = progress.add_task("", total=None)

        def show_progress(title: str, done: int, total: int) -> None:
            progress.update(task, description=title, completed=done, total=total)

        def show_row(row: dict[str, Any]) -> None:
            progress.stop()  # The table goes to stdout, between two bars on stderr.
            typer.echo(sweep_line(row))
            progress.start()

        rows = run_sweep(config, timeline=timeline, on_row=show_row, on_progress=show_progress)
    document = {"simrank": simrank.__version__, "seed": config.seed, "program": config.program}
    if given["json_file"] is not None:
        write_text(given["json_file"], json.dumps({**document, "rows": rows}, indent=1) + "\n")
    if given["csv_file"] is not None:
        _write_csv(given["csv_file"], rows)
    if timeline is not None:
        timeline.write(given["trace"])


def _mapping(given: dict[str, Any]) -> dict[str, Any]:
    """Return a benchmark as YAML would give it, from the options of the command line."""
    cluster, nodes, step = given["cluster"], given["nodes"], given["step"]
    sizes: dict[str, Any] = {
        "from": _size(given["begin"], "--minbytes"),
        "to": _size(given["end"], "--maxbytes"),
    }
    if step is not None:
        sizes["step"] = _size(step, "--stepbytes")
    if given["factor"] is not None or step is None:
        sizes["factor"] = 2 if given["factor"] is None else given["factor"]
    mapping: dict[str, Any] = {
        "cluster": cluster if nodes is None else {"name": cluster, "nodes": nodes},
        "collectives": [given["target"]],
        "algorithms": given["algorithm"].split(","),
        "dtypes": given["dtype"].split(","),
        "redops": given["redop"].split(","),
        "root": given["root"],
        "sizes": sizes,
        "iterations": {"warmup": given["warmup"], "timed": given["iters"]},
        "check": bool(given["check"]),
    }
    optional = {name: given[name] for name in ("num_ranks", "measured", "seed")}
    return mapping | {name: value for name, value in optional.items() if value is not None}


_FOR_ANY_TARGET = {"target", "seed", "json_file", "csv_file", "trace", "trace_ranks"}


def _refuse_series_options(context: typer.Context) -> None:
    """Raise ConfigError for options that a YAML file would silently win over."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in _FOR_ANY_TARGET and source is not None and source.name == "COMMANDLINE":
            option = parameter.opts[-1]
            expected = "the name of a collective beside this option"
            got = "a YAML file, whose own keys decide"
            raise ConfigError(ConfigProblem("command line", None, option, expected, got))


def _size(text: str, option: str) -> str:
    """Return an nccl-tests size as the YAML form writes it."""
    try:
        return f"{units.parse_size_nccl(text)} B"
    except ValueError:
        expected = "a size such as 8, 4K, 64M or 8G"
        raise ConfigError(ConfigProblem("command line", None, option, expected, text)) from None


def _run_shown(config: BenchConfig, timeline: Timeline | None) -> list[dict[str, Any]]:
    """Run a benchmark and print its table as it grows, with a progress bar on a terminal."""
    with_measured = bool(config.measured)
    typed: list[Row] = []
    typer.echo(f"# simrank {simrank.__version__}, simulated time, seed {config.seed}")
    with progress_bar() as progress:
        task = progress.add_task("", total=None)

        def show_progress(title: str, done: int, total: int) -> None:
            progress.update(task, description=title, completed=done, total=total)

        def show_rows(series: Series, rows: list[Row]) -> None:
            typed.extend(rows)
            progress.stop()  # The table goes to stdout, between two bars on stderr.
            typer.echo(table.header(series, with_measured=with_measured))
            for line in table.lines(rows, with_measured=with_measured):
                typer.echo(line)
            errors = table.errors_line(rows)
            if errors is not None:
                typer.echo(errors)
            progress.start()

        all_rows = run(config, timeline=timeline, on_rows=show_rows, on_progress=show_progress)
    typer.echo(table.footer(typed))
    return all_rows


def _write_json(path: str, rows: list[dict[str, Any]], config: BenchConfig) -> None:
    names = [cluster.name for cluster in config.clusters]
    document = {
        "simrank": simrank.__version__,
        "seed": config.seed,
        "cluster": names[0] if len(names) == 1 else names,
        "rows": rows,
    }
    write_text(path, json.dumps(document, indent=1) + "\n")


def _write_csv(path: str, rows: list[dict[str, Any]]) -> None:
    lines = [",".join(rows[0])] if rows else []
    lines += [
        ",".join("" if value is None else str(value) for value in row.values()) for row in rows
    ]
    write_text(path, "\n".join(lines) + "\n")
