"""`simrank calibrate`: the constants of NCCL's laws, fitted to measured times."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from simrank.calibration.accuracy import (
    DIRECT,
    TableSeries,
    builtin_tables,
    measured_series,
    table_series,
)
from simrank.calibration.calibrate import Calibrated
from simrank.calibration.calibrate import calibrate as fitted
from simrank.calibration.hold_outs import KIND_WORDS, fit_tables, observed_of, score, write_left_out
from simrank.cli.common import EXIT_STATUS, app, check_writable
from simrank.cli.measured_tables import (
    FORMATS,
    calibrate_attention,
    calibrate_gemm,
    cluster_of,
    show,
    texts_of,
)
from simrank.cli.nccl_tests import bad_option
from simrank.collectives.nccl import size_classes
from simrank.collectives.nccl.pool import pooled_tables, write_pool
from simrank.config.files import write_text

if TYPE_CHECKING:
    from collections.abc import Sequence


_TEXTS = ("left-out sites", "sizes")
_LEFT_OUT = (*_TEXTS, "sites", "mean error", "NCCL's constants", "covered", "half interval")
_MAX_SITE_SIZES, _MAX_SITE_BYTES = 3, 1 << 20
_Collective = Annotated[
    str | None, typer.Option(help="Collective, if nccl-tests' output does not name it.")
]

_Nodes = Annotated[
    int | None, typer.Option(min=1, help="Number of nodes, if the output lists no hosts.")
]


@app.command(epilog=EXIT_STATUS)
def calibrate(
    measured: Annotated[
        list[str] | None, typer.Argument(help=f"Measured times: {FORMATS}.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="Measured cluster [the table's].")] = None,
    collective: _Collective = None,
    num_ranks: Annotated[
        int | None,
        typer.Option("-g", "--num-ranks", min=2, help="Number of ranks, if the output lists none."),
    ] = None,
    nodes: _Nodes = None,
    library: Annotated[str, typer.Option(help="NCCL or RCCL with its version.")] = "unknown",
    site: Annotated[
        bool, typer.Option("--site", help="Check that there are one to three small sizes.")
    ] = False,
    pool: Annotated[
        bool,
        typer.Option("--pool", help="Fit all shipped tables together, and those that are named."),
    ] = False,
    gemm: Annotated[
        bool,
        typer.Option("--gemm", help="Refit the rule of matrix products; --out names a folder."),
    ] = False,
    attention: Annotated[
        bool, typer.Option("--attention", help="Refit attention's law; --out names a folder.")
    ] = False,
    out: Annotated[
        str | None, typer.Option(help="File to write: YAML [stdout], JSON with --pool.")
    ] = None,
) -> None:
    """Fit the constants of NCCL's laws to measured times of one cluster.

    The pooled constants of all shipped tables are the start: one small size is enough, and what the
    times do not tell stays as uncertain as at an unknown site.

    --gemm fits the rule of matrix products to all shipped rows instead, in under two minutes. The
    format is detected. Files of NCCL Inspector, one per process, are read together.
    `simrank.predict(calibration=...)` and `simrank explain --calibration` read the written file.
    """
    if gemm or attention:
        _calibrate_kernels(out, is_alone=not (measured or site or pool), gemm=gemm, both=attention)
        return
    _check_out(out, measured or [])
    if pool:
        _pool(
            measured or [], out, is_alone=not (site or cluster or collective or num_ranks or nodes)
        )
        return
    if not measured:
        raise typer.BadParameter("name measured tables, or take --pool for all built-in ones")
    texts, place = texts_of(measured), cluster or cluster_of(measured[0])
    series = measured_series(texts, place, collective=collective, num_ranks=num_ranks, nodes=nodes)
    if site:
        _check_site(series)
    try:
        found = fitted(series, library=library)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    _show_errors(found, console)
    for doubt in filter(None, found.doubts):
        typer.echo(f"warning: {doubt}", err=True)
    if out is None:
        typer.echo("\n" + found.text().partition("\n")[2], nl=False)
        return
    write_text(out, found.text())
    typer.echo(f"\n{out}")


def _check_out(out: str | None, measured: Sequence[str]) -> None:
    """Check that a file can be written, and takes the place of no table and no machine file.

    Raises:
        ConfigError: It cannot, or does.
    """
    check_writable(out)
    for table in measured if out is not None else ():
        mine, its = Path(out or "").resolve(), Path(table).resolve()
        if mine == its:
            raise bad_option("--out", "another file than the measured table", str(out))
        if mine == its.with_suffix(".yaml"):
            expected = f"another name: beside {Path(table).name} it would say how that was measured"
            raise bad_option("--out", expected, str(out))


def _calibrate_kernels(out: str | None, *, is_alone: bool, gemm: bool, both: bool) -> None:
    """Fit matrix products or attention to the shipped rows, and write into a folder."""
    if not is_alone or out is None or not Path(out).is_dir() or (gemm and both):
        name = "--gemm" if gemm else "--attention"
        raise typer.BadParameter(f"{name} takes no tables, and --out with a folder to write to")
    show(calibrate_gemm(Path(out)) if gemm else calibrate_attention(Path(out)))


def _pool(named: Sequence[str], out: str | None, *, is_alone: bool) -> None:
    """Fit all built-in tables, and further ones; show how left-out sites were predicted."""
    if not is_alone:
        raise typer.BadParameter("--pool takes tables and --out alone")
    if out is None or Path(out).suffix != ".json":
        raise typer.BadParameter("--pool writes three files: name the first with --out FILE.json")
    check_writable(*(str(Path(out).with_suffix(each)) for each in (".npy", ".jsonl")))
    names = [*builtin_tables(), *pooled_tables(), *named]
    series = [each for name in names for each in table_series(name)]
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    with console.status("fit") as status:
        pool, left = fit_tables(series, status.update)
        write_pool(pool, Path(out))
        write_left_out([observed_of(each) for each in series if each.mode == DIRECT], Path(out))
    shown = Table(box=None, pad_edge=False)
    for column in _LEFT_OUT:
        shown.add_column(column, no_wrap=True, justify="left" if column in _TEXTS else "right")
    for kind, words in KIND_WORDS.items():
        mine = [each for each in left if each.kind == kind]
        for number, size in enumerate(size_classes.NAMES):
            found = score(mine, pool.noises, number)
            if found is not None:
                shown.add_row(words, size, *found.cells())
    console.print(shown)
    typer.echo(f"{pool.source}\n\n{out}")


def _check_site(series: Sequence[TableSeries]) -> None:
    """Check that there are few sizes, and small ones."""
    sizes = [int(size) for each in series for size in each.measured.size_bytes]
    if len(sizes) > _MAX_SITE_SIZES or max(sizes) > _MAX_SITE_BYTES:
        raise typer.BadParameter("--site takes one to three sizes up to 1 MiB")


def _show_errors(found: Calibrated, console: Console) -> None:
    """Show what the fit leaves, and how certain predictions with it are."""
    shown = Table(box=None, pad_edge=False)
    for column in ("residual errors", "collective", "ranks"):
        shown.add_column(column, no_wrap=True)
    for column in size_classes.NAMES:
        shown.add_column(column, no_wrap=True, justify="right")
    for each in found.errors:
        cells = [
            "-" if part is None else f"{100 * part[0]:.0f} % ({100 * part[1]:+.0f})"
            for part in each.by_class()
        ]
        shown.add_row(each.table, each.collective, str(each.num_ranks), *cells)
    for each, widths, measured in zip(found.errors, found.intervals, found.measured, strict=True):
        cells = [
            f"+-{100 * width:.0f} %{'' if is_known else ' *'}"
            for width, is_known in zip(widths, measured, strict=True)
        ]
        shown.add_row("90 % interval", each.collective, str(each.num_ranks), *cells)
    console.print(shown)
    if not found.measured.all():
        console.print("* no such size was measured: it rests on other machines")
