"""The command line: `simrank run`, `bench`, `check` and `clusters`."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import simrank
from simrank import units
from simrank.bench import table
from simrank.bench.run import Row, Series, run, series_of
from simrank.config import (
    BenchConfig,
    bench_config_from_mapping,
    builtin_clusters,
    check_file,
    load_bench_config,
    load_cluster_config,
)
from simrank.config.names import COLLECTIVE_ALIASES, COLLECTIVES
from simrank.context import Context
from simrank.errors import ConfigError, ConfigProblem, SimrankError, UnsupportedError
from simrank.multiprocessing.script import run_script
from simrank.trace import Summary, Timeline, summary_json, summary_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from simrank.hardware.cluster import Cluster

EXIT_STATUS = "exit status: 0 finished; 1 program failed; 2 bad usage or config; 3 bug in simrank"
_FAILED, _BAD_CONFIG, _BUG = 1, 2, 3

app = typer.Typer(
    name="simrank",
    help="Run multi-GPU programs on simulated clusters, with real numbers and simulated time.",
    epilog=EXIT_STATUS,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"simrank {simrank.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run multi-GPU programs on simulated clusters, with real numbers and simulated time."""


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
        config = load_bench_config(target)
        if seed is not None:
            config = config.model_copy(update={"seed": seed})
    for path in (json_file, csv_file, trace):
        _check_writable(path)
    timeline = None if trace is None else Timeline(_ranks(trace_ranks))
    rows = _run_shown(config, timeline)
    if json_file is not None:
        _write_json(json_file, rows, config)
    if csv_file is not None:
        _write_csv(csv_file, rows)
    if timeline is not None and trace is not None:
        timeline.write(trace)
    if any(row["num_wrong"] for row in rows):
        raise typer.Exit(_FAILED)


def _mapping(given: dict[str, Any]) -> dict[str, Any]:
    """Return a benchmark as YAML would give it, from the options of the command line."""
    cluster, nodes, step = given["cluster"], given["nodes"], given["step"]
    sizes: dict[str, Any] = {"from": _size(given["begin"]), "to": _size(given["end"])}
    if step is not None:
        sizes["step"] = _size(step)
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
            expected = "this option beside the name of a collective only"
            got = "a YAML file, which says it itself"
            raise ConfigError(ConfigProblem("command line", None, option, expected, got))


def _size(text: str) -> str:
    """Return an nccl-tests size as the YAML form writes it."""
    try:
        return f"{units.parse_size_nccl(text)} B"
    except ValueError:
        expected = "a size such as 8, 4K, 64M or 8G"
        raise ConfigError(ConfigProblem("command line", None, "size", expected, text)) from None


def _ranks(text: str | None) -> list[int] | None:
    """Return ranks given as `0,8`."""
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        problem = ConfigProblem("command line", None, "--trace-ranks", "ranks such as 0,8", text)
        raise ConfigError(problem)
    return [int(part) for part in parts]


def _run_shown(config: BenchConfig, timeline: Timeline | None) -> list[dict[str, Any]]:
    """Run a benchmark and print its table as it grows, with a progress bar on a terminal."""
    with_measured = bool(config.measured)
    typed: list[Row] = []
    typer.echo(f"# simrank {simrank.__version__}, simulated time, seed {config.seed}")
    with _progress() as progress:
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

        found = run(config, timeline=timeline, on_rows=show_rows, on_progress=show_progress)
    typer.echo(table.footer(typed))
    return found


def _progress() -> AbstractContextManager[Progress]:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not console.is_terminal,
    )


def _write_json(path: str, rows: list[dict[str, Any]], config: BenchConfig) -> None:
    names = [cluster.name for cluster in config.clusters]
    document = {
        "simrank": simrank.__version__,
        "seed": config.seed,
        "cluster": names[0] if len(names) == 1 else names,
        "rows": rows,
    }
    _write(path, json.dumps(document, indent=1) + "\n")


def _write_csv(path: str, rows: list[dict[str, Any]]) -> None:
    lines = [",".join(rows[0])] if rows else []
    lines += [
        ",".join("" if value is None else str(value) for value in row.values()) for row in rows
    ]
    _write(path, "\n".join(lines) + "\n")


def _write(path: str, text: str) -> None:
    Path(path).write_text(text, encoding="utf-8", newline="")


def _check_writable(path: str | None) -> None:
    """Look before a long run whether its result can be written.

    Raises:
        ConfigError: It cannot.
    """
    if path is None:
        return
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        got = f"no folder {folder}"
    elif Path(path).is_dir():
        got = "a folder"
    elif not os.access(path if Path(path).exists() else folder, os.W_OK):
        got = "no permission to write it"
    else:
        return
    raise ConfigError(ConfigProblem(path, None, "", "a file that can be written", got))


@app.command(
    name="run",
    epilog=EXIT_STATUS,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def run_command(
    program: Annotated[str, typer.Argument(help="A Python file.")],
    args: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    cluster: Annotated[str, typer.Option(help="Cluster name or file.")] = "hgx_h100",
    nproc_per_node: Annotated[
        int | None,
        typer.Option("--nproc-per-node", "--nproc_per_node", help="Ranks per node [devices]."),
    ] = None,
    nnodes: Annotated[int | None, typer.Option("--nnodes", help="Nodes [the cluster's].")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    trace: Annotated[str | None, typer.Option(help="Write a timeline for Perfetto.")] = None,
    trace_ranks: Annotated[str | None, typer.Option(help="Only these ranks: 0,8.")] = None,
    summary: Annotated[str, typer.Option(help="text, json or none.")] = "text",
    rdzv_backend: Annotated[
        str | None, typer.Option("--rdzv-backend", "--rdzv_backend", hidden=True)
    ] = None,
    rdzv_endpoint: Annotated[
        str | None, typer.Option("--rdzv-endpoint", "--rdzv_endpoint", hidden=True)
    ] = None,
    rdzv_id: Annotated[str | None, typer.Option("--rdzv-id", "--rdzv_id", hidden=True)] = None,
    master_addr: Annotated[
        str | None, typer.Option("--master-addr", "--master_addr", hidden=True)
    ] = None,
    master_port: Annotated[
        str | None, typer.Option("--master-port", "--master_port", hidden=True)
    ] = None,
    races: Annotated[str, typer.Option(help="Races: off, report or error.")] = "off",
    strict: Annotated[bool, typer.Option(help="Leaked Works are errors.")] = False,
    shape_only: Annotated[bool, typer.Option(help="Large tensors have no values.")] = False,
) -> None:
    """Run PROGRAM once per simulated rank, all in this process, where torchrun would."""
    if any((rdzv_backend, rdzv_endpoint, rdzv_id, master_addr, master_port)):
        typer.echo("simrank: --rdzv* and --master* are ignored: ranks share a process", err=True)
    if races not in ("off", "report", "error"):
        expected = "off, report or error"
        raise ConfigError(ConfigProblem("command line", None, "--races", expected, races))
    if summary not in _SUMMARIES:
        expected = f"one of {', '.join(_SUMMARIES)}"
        raise ConfigError(ConfigProblem("command line", None, "--summary", expected, summary))
    _check_writable(trace)
    reference = cluster if nnodes is None else {"name": cluster, "nodes": nnodes}
    context = Context(reference, seed=seed, data=not shape_only, races=races, strict=strict)
    num_ranks = _num_ranks(context.cluster, nproc_per_node)
    timeline, added = Timeline(_ranks(trace_ranks)), Summary()
    context.observe(added)
    if trace is not None:
        context.observe(timeline)
    try:
        with context:
            run_script(context.program, program, args or [], num_ranks)
    finally:
        if trace is not None:
            timeline.write(trace)
    peaks = {device.index: device.memory.peak_bytes for device in context.devices}
    show = _SUMMARIES[summary]
    if show is not None:
        typer.echo(show(added, context.now_ps, peaks), err=True)
    if summary == "text":
        for finding in context.findings:
            typer.echo(finding, err=True)


_SUMMARIES: dict[str, Callable[[Summary, int, dict[int, int]], str] | None] = {
    "text": summary_text,
    "json": lambda *facts: json.dumps(summary_json(*facts)),
    "none": None,
}


def _num_ranks(cluster: Cluster, nproc_per_node: int | None) -> int:
    """Return how many ranks run: all devices, or the first ones of a single node."""
    if nproc_per_node is None:
        return cluster.num_devices
    if not 1 <= nproc_per_node <= cluster.devices_per_node:
        expected = f"1 to {cluster.devices_per_node}, the devices of a node of {cluster.name}"
        got = str(nproc_per_node)
        raise ConfigError(ConfigProblem("command line", None, "--nproc-per-node", expected, got))
    if cluster.num_nodes > 1 and nproc_per_node != cluster.devices_per_node:
        raise UnsupportedError(
            f"{nproc_per_node} of {cluster.devices_per_node} devices per node on "
            f"{cluster.num_nodes} nodes: ranks use the first devices of the cluster in order"
        )
    return nproc_per_node * cluster.num_nodes


@app.command(epilog=EXIT_STATUS)
def check(file: Annotated[str, typer.Argument(help="A YAML file of any kind.")]) -> None:
    """Validate a YAML file: a cluster or a benchmark."""
    found = check_file(file)
    if found.startswith("benchmark"):
        num_series = len(list(series_of(load_bench_config(file))))
        found += f", {num_series} series"
    typer.echo(f"{file}: {found}")


@app.command(epilog=EXIT_STATUS)
def clusters() -> None:
    """List the built-in clusters."""
    shown = Table(box=None, pad_edge=False)
    for column in ("cluster", "nodes", "devices", "device", "description"):
        shown.add_column(column, no_wrap=column != "description")
    for name in builtin_clusters():
        config = load_cluster_config(name)
        shown.add_row(
            name, str(config.nodes), str(config.num_devices), config.device.name, config.description
        )
    Console(width=None if sys.stdout.isatty() else 160).print(shown)


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit with its status; see `EXIT_STATUS`."""
    sys.exit(_guarded(lambda: app(args=args, prog_name="simrank", standalone_mode=True)))


def _guarded(command: Callable[[], Any]) -> int:
    """Run a command; errors of the user's become one message and a status, never a traceback."""
    try:
        command()
    except ConfigError as error:
        typer.echo(str(error), err=True)
        return _BAD_CONFIG
    except SimrankError as error:
        typer.echo(str(error), err=True)
        return _FAILED
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0
    except OSError as error:
        typer.echo(f"simrank: {error}", err=True)
        return _FAILED
    except Exception:  # noqa: BLE001 - shown whole, with a status that says whose fault it is
        typer.echo(traceback.format_exc(), err=True)
        typer.echo("simrank: this is a bug in simrank, please report it", err=True)
        return _BUG
    return 0


if __name__ == "__main__":
    main()
