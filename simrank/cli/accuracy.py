"""`simrank accuracy`: how far the cost models are from what was measured."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from simrank.bench.accuracy import (
    AIMED,
    AIMS_PCT,
    SeriesErrors,
    TableSeries,
    builtin_tables,
    fitted_errors,
    held_out_errors,
    mean_errors,
    measured_series,
)
from simrank.bench.size_classes import NAMES
from simrank.cli.common import EXIT_STATUS, app, check_writable, write_text
from simrank.cli.measured import FORMATS, texts_of
from simrank.config.locate import builtin_names, locate
from simrank.hardware.gemm import load_gemm_rows, size_class_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@app.command(epilog=EXIT_STATUS)
def accuracy(
    table: Annotated[
        str | None,
        typer.Argument(help=f"Measured times: {FORMATS} [all built-in tables]; or: gemm."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="What to predict [the cluster beside the table].")
    ] = None,
    fit: Annotated[
        str, typer.Option(help="Constants: none (NCCL's), all or halves (every second size).")
    ] = "none",
    collective: Annotated[
        str | None, typer.Option(help="What ran, where nccl-tests' output does not say it.")
    ] = None,
    num_ranks: Annotated[
        int | None,
        typer.Option("-g", "--num-ranks", min=2, help="Ranks, where the output lists none."),
    ] = None,
    json_file: Annotated[str | None, typer.Option("--json", help="Write every row.")] = None,
) -> None:
    """How far the cost models are from what was measured.

    Collectives: NCCL's closed forms beside published tables, per size class the mean error without
    its sign, and with it; negative is too fast. The constants are NCCL's own; or fitted to each
    table (all), which flatters them; or fitted to every second size and tried on the others
    (halves).

    gemm: matrix products, mean and largest error per device, dtype and size class. Each row is left
    out of the fit that predicts it. Rows in f32 ran as TF32 and are shown beside the others;
    float32 products of simulated programs do not use them.
    """
    check_writable(json_file)
    if table == "gemm":
        _show(_gemm_table())
        return
    if fit not in _FITS:
        raise typer.BadParameter(f"--fit {fit}: expected one of {', '.join(_FITS)}")
    names = builtin_tables() if table is None else [table]
    found = measured_series(texts_of(names), cluster, collective=collective, num_ranks=num_ranks)
    if fit != "none":  # What loops of frameworks add is no constant of NCCL's; two sizes are few.
        found = [each for each in found if each.mode == "back_to_back" and each.is_fittable]
    series = [_FITS[fit](each) for each in found]
    if not series:
        raise typer.BadParameter(f"--fit {fit}: no table has enough sizes")
    _show(_collectives_table(series, fit))
    if json_file is not None:
        write_text(json_file, json.dumps([each.to_json() for each in series], indent=1) + "\n")


_FITS: dict[str, Callable[[TableSeries], SeriesErrors]] = {
    "none": lambda series: series.errors(),
    "all": fitted_errors,
    "halves": held_out_errors,
}


def _show(shown: Table) -> None:
    Console(width=None if sys.stdout.isatty() else 160).print(shown)


def _collectives_table(series: Sequence[SeriesErrors], fit: str) -> Table:
    shown = Table(box=None, pad_edge=False)
    for column in ("table", "cluster", "collective", "ranks", "nodes"):
        shown.add_column(column, no_wrap=True)
    for column in NAMES:
        shown.add_column(column, no_wrap=True, justify="right")
    for each in series:
        facts = (each.table, each.cluster, each.collective, str(each.num_ranks))
        shown.add_row(*facts, str(each.num_nodes), *_cells(each.by_class()))
    if len(series) > 1:
        _add_means(shown, series, fit)
    return shown


def _add_means(shown: Table, series: Sequence[SeriesErrors], fit: str) -> None:
    direct = [each for each in series if each.mode == "back_to_back"]
    aimed = [each for each in direct if each.collective in AIMED]
    others = [each for each in direct if each.collective not in AIMED]
    loops = [each for each in series if each.mode != "back_to_back"]
    shown.add_section()
    for title, mine in (
        (f"mean: {', '.join(AIMED)}", aimed),
        ("mean: other collectives", others),
        ("mean: loops of torch and XLA", loops),
    ):
        if mine:
            shown.add_row(title, "", "", "", "", *_cells(mean_errors(mine)))
        if mine is aimed and aimed and fit in AIMS_PCT:
            aims = (f"{aim:.0f} %       " for aim in AIMS_PCT[fit])
            shown.add_row("aim", "", "", "", "", *aims)


def _cells(errors: Sequence[tuple[float, float] | None]) -> list[str]:
    return [
        "-" if each is None else f"{100 * each[0]:.0f} % ({100 * each[1]:+4.0f})" for each in errors
    ]


def _gemm_table() -> Table:
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
    return shown
