"""`simrank check`, `simrank schema` and `simrank clusters`: configurations, read and listed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from simrank.bench.series import series_of
from simrank.cli.common import EXIT_STATUS, app
from simrank.config import builtin_clusters, check_file, load_bench_config, load_cluster_config
from simrank.config.check import KINDS
from simrank.config.check import schema as schema_of
from simrank.config.files import write_text
from simrank.config.locate import locate
from simrank.config.quantity import hint
from simrank.errors import ConfigError, ConfigProblem


@app.command(epilog=EXIT_STATUS)
def check(file: Annotated[str, typer.Argument(help="A YAML file of any kind.")]) -> None:
    """Validate a YAML file: a cluster or a benchmark."""
    summary = check_file(file)
    if summary.startswith("benchmark of") and not summary.startswith("benchmark of program"):
        num_series = len(list(series_of(load_bench_config(file))))
        summary += f", {num_series} series"
    typer.echo(f"{file}: {summary}")


@app.command(epilog=EXIT_STATUS)
def schema(
    kind: Annotated[
        str | None,
        typer.Argument(help="cluster, bench, sweep, plan, model, faults, measured or calibration."),
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="Folder to write files to.")] = None,
) -> None:
    """Write JSON Schemas of the YAML files, for editors: to stdout, or a folder."""
    kinds = KINDS if kind is None else (kind,)
    if kind is not None and kind not in KINDS:
        expected, to_fix = f"one of {', '.join(KINDS)}", hint(kind, KINDS)
        raise ConfigError(ConfigProblem("command line", None, "kind", expected, kind, to_fix))
    if to is None:
        schemas = {name: schema_of(name) for name in kinds}
        typer.echo(json.dumps(schemas if kind is None else schemas[kind], indent=1))
        return
    Path(to).mkdir(parents=True, exist_ok=True)
    for name in kinds:
        path = str(Path(to) / f"{name}.schema.json")
        write_text(path, json.dumps(schema_of(name), indent=1) + "\n")
        typer.echo(path)


@app.command(epilog=EXIT_STATUS)
def clusters(
    name: Annotated[str | None, typer.Argument(help="Print this cluster's file.")] = None,
) -> None:
    """List the built-in clusters, or print the YAML file of one, to copy and change."""
    if name is not None:
        known = builtin_clusters()
        if name not in known:
            expected, to_fix = "the name of a built-in cluster", hint(name, known)
            raise ConfigError(ConfigProblem("command line", None, "NAME", expected, name, to_fix))
        text = locate("clusters", name).read_text().partition("\n")[2]  # Without a schema's path.
        typer.echo(text, nl=False)
        return
    shown = Table(box=None, pad_edge=False)
    for column in ("cluster", "nodes", "devices", "device", "description"):
        shown.add_column(column, no_wrap=column != "description")
    for each in builtin_clusters():
        config = load_cluster_config(each)
        shown.add_row(
            each, str(config.nodes), str(config.num_devices), config.device.name, config.description
        )
    Console(width=None if sys.stdout.isatty() else 160).print(shown)
