"""`simrank accuracy`: how far the cost models are from what was measured."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.table import Table

from simrank.cli.common import EXIT_STATUS, app
from simrank.config.locate import builtin_names, locate
from simrank.hardware.gemm import load_gemm_rows, size_class_errors

group = typer.Typer(
    help="How far the cost models are from what was measured.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(group, name="accuracy")


@group.callback()
def _accuracy() -> None:
    """How far the cost models are from what was measured."""


@group.command(epilog=EXIT_STATUS)
def gemm() -> None:
    """Matrix products: mean and largest error per device, dtype and size class.

    Each row is left out of the fit that predicts it. Rows in f32 ran as TF32 and are shown beside
    the others; float32 products of simulated programs do not use them.
    """
    shown = Table(box=None, pad_edge=False)
    for column in ("table", "dtype", "m, n, k", "rows", "mean error", "largest"):
        shown.add_column(column, no_wrap=True)
    for name in builtin_names("gemm"):
        for dtype, rows in load_gemm_rows(str(locate("gemm", name))).items():
            for size_class, errors in size_class_errors(rows).items():
                shown.add_row(
                    name,
                    dtype,
                    size_class,
                    str(len(errors)),
                    f"{sum(errors) / len(errors):.1%}",
                    f"{max(errors):.1%}",
                )
    Console(width=None if sys.stdout.isatty() else 160).print(shown)
