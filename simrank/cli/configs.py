"""`simrank check` and `simrank clusters`: configurations, read and listed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from simrank.bench.series import series_of
from simrank.cli.common import EXIT_STATUS, app
from simrank.config import builtin_clusters, check_file, load_bench_config, load_cluster_config


@app.command(epilog=EXIT_STATUS)
def check(file: Annotated[str, typer.Argument(help="A YAML file of any kind.")]) -> None:
    """Validate a YAML file: a cluster or a benchmark."""
    summary = check_file(file)
    if summary.startswith("benchmark of") and not summary.startswith("benchmark of program"):
        num_series = len(list(series_of(load_bench_config(file))))
        summary += f", {num_series} series"
    typer.echo(f"{file}: {summary}")


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
