"""`simrank accuracy`: errors of the cost models against measured times."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import simrank
from simrank.calibration.accuracy import DIRECT, builtin_tables, measured_series
from simrank.calibration.contribution import contribution
from simrank.calibration.cross_validation import FITS, FittedSeries
from simrank.calibration.hold_outs import (
    DEVICE,
    GROUP,
    NETWORK,
    ONE_SIZE,
    OPERATION,
    SITE,
    hold_outs,
    known_series,
    observed_of,
    score,
    without_its_site,
)
from simrank.calibration.page import accuracy_page, hold_outs_page, platforms_of, rows_of
from simrank.calibration.targets import groups
from simrank.cli.common import EXIT_STATUS, app, check_writable, progress_bar
from simrank.cli.measured_tables import (
    FORMATS,
    attention_errors,
    evidence_in,
    gemm_errors,
    show_accuracy,
    texts_of,
)
from simrank.cli.nccl_tests import bad_option
from simrank.cli.options import check_word
from simrank.collectives.nccl.evidence import shipped_pool
from simrank.collectives.nccl.size_classes import NAMES
from simrank.config.files import write_text
from simrank.config.project import POOLED
from simrank.config.yaml_source import read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from simrank.calibration.accuracy import SeriesErrors, TableSeries
    from simrank.calibration.hold_outs import LeftOut, Score
    from simrank.calibration.targets import TargetGroup
    from simrank.collectives.nccl.laws import Floats


# ---- errors and coverage of pooled constants on left-out machines, for `simrank accuracy` ----

_KINDS = (SITE, NETWORK, ONE_SIZE, DEVICE, OPERATION, GROUP)
_CELLS = "cells: MAE (of NCCL's own constants) +-half the 90% interval, coverage, in percent"
_LOOPS = (
    "loops of a framework: errors in percent, of NCCL's own constants in parentheses; its time "
    "around each call is measured but not predicted, so that no interval holds"
)
_TESTS = (
    "!: coverage of 85 % is rejected (binomial test over units), or the error is above that of "
    "NCCL's own constants (bootstrap over units)"
)


def show_hold_outs(show: Callable[[Table], None], json_file: str | None, html: str | None) -> None:
    """Show how well pooled constants predict what they were not fitted to."""
    observed = known_series()
    with progress_bar() as progress:
        task = progress.add_task("fits", total=None)
        left = list(hold_outs(observed, _KINDS, lambda _: progress.advance(task)))
    noises = shipped_pool().noises
    _finish(left, noises, show, json_file, html)
    typer.echo(f"\n{_CELLS}\n{_TESTS}")
    typer.echo("`--fit all` compares kinds of constants; docs/trust.md says what to believe")


def show_tables(
    series: Sequence[TableSeries],
    show: Callable[[Table], None],
    json_file: str | None,
    html: str | None,
) -> None:
    """Show how well pooled constants without their sites predict measured series."""
    noises = shipped_pool().noises
    found = [without_its_site(observed_of(each)) for each in series if each.mode == DIRECT]
    loops = [each for each in series if each.mode != DIRECT]
    shown = Table(box=None, pad_edge=False)
    for column in ("table, collective, ranks", "predicted as"):
        shown.add_column(column, overflow="fold")
    for column in NAMES:
        shown.add_column(column, justify="right", no_wrap=True)
    for left in found:
        ((words, _),) = rows_of([left])
        shown.add_row(left.observed.labels.series, words, *_pooled_cells([left], noises))
    for loop in loops:
        cells = [cell and cell.text_of_errors() for cell in _loop_scores(loop, noises)]
        name = f"{loop.table} {loop.measured.collective} {loop.measured.comm.shape.num_ranks}"
        shown.add_row(name, f"a loop of {loop.mode}", *(cell or "-" for cell in cells))
    show(shown)
    if found:
        typer.echo(f"\n{_CELLS}; the site is left out of the constants")
    if loops:
        typer.echo(f"\n{_LOOPS}")
    _say_unknown_launch(found)
    _write(found, noises, json_file, html)


def show_contribution(word: str | None, show: Callable[[Table], None], **said: Any) -> None:  # noqa: ANN401 - options
    """Show whether a table can be shipped, and what it would change."""
    if word is None:
        raise bad_option("--contribute", "a table or a log", "none")
    path = Path(word)
    found = contribution(path, read_text(path), **said)
    noises = shipped_pool().noises
    shown = Table(box=None, pad_edge=False)
    shown.add_column("series, constants", overflow="fold")
    for column in NAMES:
        shown.add_column(column, justify="right", no_wrap=True)
    for before, after in zip(found.left, found.again, strict=True):
        name = before.observed.labels.series
        shown.add_row(f"{name}, as shipped", *_pooled_cells([before], noises))
        cells = [score([after], noises, number) for number in range(len(NAMES))]
        errors = ["-" if each is None else each.text_of_errors() for each in cells]
        shown.add_row(f"{name}, fitted to it, too", *errors)
    show(shown)
    typer.echo(f"\n{_CELLS}\n")
    for name, (before_sites, after_sites) in found.evidence.items():
        typer.echo(f"sites with tables of {name}: {before_sites} -> {after_sites}")
    middle, most = (100 * float(np.quantile(found.shifts, share)) for share in (0.5, 1.0))
    typer.echo(
        f"predictions of {len(found.shifts)} shipped series change by {middle:.1f} % (median) to "
        f"{most:.1f} %"
    )
    for doubt in found.doubts:
        typer.echo(f"warning: {doubt}", err=True)
    if found.is_written:
        typer.echo(f"wrote {found.table}: the log as a table")
    machine = found.table.with_suffix(".yaml").name
    typer.echo(
        f"to contribute: a pull request with {found.table.name} and {machine} in configs/measured; "
        "the constants are fitted again there"
    )


def _loop_scores(loop: TableSeries, noises: Floats) -> list[Score | None]:
    left = without_its_site(observed_of(loop))
    return [score([left], noises, number) for number in range(len(NAMES))]


def _say_unknown_launch(found: Sequence[LeftOut]) -> None:
    """Say of which tables nothing tells whether ranks were processes or threads."""
    of = [
        each.observed.labels.series
        for each in found
        if each.observed.labels.network is not None
        and not each.observed.launch
        and (each.observed.classes == 0).any()
    ]
    if of:
        typer.echo(
            f"launch not stated: {', '.join(of)}: times up to 32 KiB between nodes depend on "
            "whether ranks are processes or threads; their intervals are half as wide again\n"
            "  to fix: `launch: processes` (mpirun, torchrun) or `launch: threads` (-t 8) in the "
            "table's YAML file"
        )


def _finish(
    left: Sequence[LeftOut],
    noises: Floats,
    show: Callable[[Table], None],
    json_file: str | None,
    html: str | None,
) -> None:
    show(scores_table("left out", rows_of(left), noises))
    typer.echo()
    show(scores_table("sites left out, by platform", platforms_of(left), noises))
    _write(left, noises, json_file, html)


def scores_table(title: str, rows: Sequence[tuple[str, list[LeftOut]]], noises: Floats) -> Table:
    """Return the scores of left-out series, a row per kind, as `simrank accuracy` prints them."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column(title, no_wrap=True)
    shown.add_column("units", justify="right")
    for column in NAMES:
        shown.add_column(column, justify="right", no_wrap=True)
    for words, mine in rows:
        shown.add_row(words, str(len({each.unit for each in mine})), *_pooled_cells(mine, noises))
    return shown


def _pooled_cells(left: Sequence[LeftOut], noises: Floats) -> list[str]:
    scores = [score(left, noises, number) for number in range(len(NAMES))]
    return ["-" if each is None else each.text() for each in scores]


def _write(
    left: Sequence[LeftOut], noises: Floats, json_file: str | None, html: str | None
) -> None:
    if json_file is not None:
        write_text(json_file, _pooled_json_text(left, noises))
    if html is not None:
        write_text(html, hold_outs_page(left, noises))


def _pooled_json_text(left: Sequence[LeftOut], noises: Floats) -> str:
    def scores(mine: Sequence[LeftOut]) -> dict[str, Any]:
        found = {name: score(mine, noises, number) for number, name in enumerate(NAMES)}
        return {name: each.to_json() for name, each in found.items() if each is not None}

    data = {
        "simrank": simrank.__version__,
        "hold_outs": [{"left_out": words, "scores": scores(mine)} for words, mine in rows_of(left)],
        "platforms": [
            {"platform": words, "scores": scores(mine)} for words, mine in platforms_of(left)
        ],
    }
    return json.dumps(data, indent=1) + "\n"


# ---- `simrank accuracy`: errors of the cost models against measured times ----

_ALL = "all"
_Cells = list[tuple[float, float] | None]


@app.command(epilog=EXIT_STATUS)
def accuracy(
    table: Annotated[
        str | None,
        typer.Argument(help=f"Measured times: {FORMATS} [all]; or: gemm, attention."),
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="Cluster to predict [the table's].")] = None,
    fit: Annotated[
        str | None,
        typer.Option(help=f"Cross-validation mode: pooled, {', '.join(FITS)}, all [pooled]."),
    ] = None,
    collective: Annotated[
        str | None, typer.Option(help="Collective, if nccl-tests' output does not name it.")
    ] = None,
    num_ranks: Annotated[
        int | None,
        typer.Option("-g", "--num-ranks", min=2, help="Number of ranks, if the output lists none."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="Number of nodes, if the output lists no hosts."),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", help="Write means, targets and rows as JSON.")
    ] = None,
    html: Annotated[str | None, typer.Option(help="Write an HTML page of charts.")] = None,
    contribute: Annotated[
        bool,
        typer.Option("--contribute", help="Check a table to ship, and say what it would change."),
    ] = False,
) -> None:
    """Compare predicted times with measured tables: errors and coverage per size class.

    By default, the pooled constants that predictions use: fitted to all tables but those of a site,
    a network, a device, an operation or a group size, and compared with what was left out. A TABLE
    is predicted by constants that were not fitted to its site. A negative bias is too fast.

    Other cross-validation modes (--fit) print MAE and bias. none: NCCL's own constants. table:
    fitted to the table itself (optimistic). halves: to every second size, for the others. site: to
    a table of another site with the same topology; site-one: and one small size. nodes: to another
    number of nodes. collective: to all_reduce, for the others. all: a line per mode, in a minute.

    gemm: errors of matrix products per dtype, device and size class, in half a minute: MAE, bias,
    share of the rows inside the 90% interval, and half of the interval. `own`: each (n, k) pair is
    predicted by the device's other pairs; `sibling`: by another of the architecture; `no relative`:
    by a rule with constants of other architectures. attention: likewise, by phase.

    --contribute: check TABLE or a log and the YAML file beside it (cluster, nodes, library, mode,
    site, launch), say which evidence it adds and by how much predictions would change.
    kit.json (`simrank compare --kit`): the errors of the predictions that were in the kit.
    """
    if contribute:
        _refuse(cluster=cluster, fit=fit, nodes=nodes, json=json_file, html=html)
        return show_contribution(table, _show, collective=collective, num_ranks=num_ranks)
    if table in ("gemm", "attention"):
        given = {"collective": collective, "num_ranks": num_ranks, "html": html}
        _refuse(cluster=cluster, fit=fit, nodes=nodes, json=json_file, **given)
        return _show(gemm_errors() if table == "gemm" else attention_errors())
    check_writable(json_file, html)
    evidence = None if fit else evidence_in(table)
    if evidence is not None:
        _refuse(cluster=cluster, collective=collective, num_ranks=num_ranks, nodes=nodes, html=html)
        return show_accuracy(evidence, json_file)
    name = fit or POOLED
    check_word("--fit", name, (POOLED, *FITS, _ALL))
    if name == POOLED and table is None:
        return show_hold_outs(_show, json_file, html)
    bench = _bench(table, cluster, collective=collective, num_ranks=num_ranks, nodes=nodes)
    if name == POOLED:
        return show_tables(bench.tried, _show, json_file, html)
    return _show_fits(name, bench, json_file, html)


def _show_fits(name: str, bench: FittedSeries, json_file: str | None, html: str | None) -> None:
    """Show the errors of one cross-validation mode, or of all."""
    found = _errors(list(FITS) if name == _ALL else [name], bench)
    if not any(found.values()):
        raise typer.BadParameter(f"--fit {name}: no table has enough sizes or a matching table")
    grouped = {each: groups(each, series) for each, series in found.items()}
    if name == _ALL:
        _show(_overview(grouped))
    else:
        _show(_series_table(found[name], grouped[name]))
    _show_missed(grouped)
    if json_file is not None:
        write_text(json_file, _json_text(found, grouped))
    if html is not None:
        write_text(html, accuracy_page(found, grouped))


def _refuse(**options: object) -> None:
    """Raise ConfigError for options that would change nothing beside such a table."""
    for name, value in options.items():
        if value is not None:
            expected = "no such option with gemm, attention, --contribute or a kit's result"
            raise bad_option(f"--{name.replace('_', '-')}", expected, str(value))


def _bench(table: str | None, cluster: str | None, **said: Any) -> FittedSeries:  # noqa: ANN401
    """Return the tested series, and the series whose constants are used."""
    built_in = measured_series(texts_of(builtin_tables()))
    if table is None:
        return FittedSeries(built_in, built_in)
    tried = measured_series(texts_of([table]), cluster, **said)
    names = {each.table for each in tried}
    return FittedSeries(tried, [*tried, *(each for each in built_in if each.table not in names)])


def _errors(names: Sequence[str], bench: FittedSeries) -> dict[str, list[SeriesErrors]]:
    found = {}
    with progress_bar() as progress:
        task = progress.add_task("fits", total=len(names))
        for name in names:
            found[name] = FITS[name].errors(bench)
            progress.advance(task)
    return found


def _show(shown: Table) -> None:
    Console(width=None if sys.stdout.isatty() else 200).print(shown)


def _overview(grouped: Mapping[str, Sequence[TargetGroup]]) -> Table:
    """Return a line for each kind of fit and each group of series, with the aims."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("--fit", no_wrap=True)
    shown.add_column("constants and evaluation")
    shown.add_column("series", justify="right")
    for column in NAMES:
        shown.add_column(column, no_wrap=True, justify="right")
    for name, mine in grouped.items():
        shown.add_section()
        shown.add_row(name, FITS[name].what)
        for group in mine:
            cells = _aimed_cells(group.means, group.aims_pct)
            shown.add_row("", f"  {group.title}", str(len(group.series)), *cells)
    return shown


def _aimed_cells(means: _Cells, aims_pct: Sequence[float] | None) -> list[str]:
    cells = []
    for index, (mean, cell) in enumerate(zip(means, _cells(means), strict=True)):
        if mean is None or aims_pct is None:
            cells.append(cell + " " * (5 if aims_pct is None else 0))
        else:
            sign = ">" if 100 * mean[0] > aims_pct[index] else "<"
            cells.append(f"{cell} {sign} {aims_pct[index]:2.0f}")
    return cells


def _show_missed(grouped: Mapping[str, Sequence[TargetGroup]]) -> None:
    said = [
        (name, line)
        for name, mine in grouped.items()
        for group in mine
        for missed in group.missed()
        for line in missed.lines()
    ]
    has_aims = any(group.aims_pct for mine in grouped.values() for group in mine)
    if said:
        typer.echo("\nMissed targets, by table:")
    elif has_aims:
        typer.echo("\nAll targets are met.")
    for name, line in said:
        typer.echo(f"  {name}, {line}" if line.startswith(NAMES) else f"      {line}")


def _json_text(
    found: Mapping[str, Sequence[SeriesErrors]], grouped: Mapping[str, Sequence[TargetGroup]]
) -> str:
    fits = [
        {
            "fit": name,
            "what": FITS[name].what,
            "groups": [group.to_json() for group in grouped[name]],
            "series": [each.to_json() for each in series],
        }
        for name, series in found.items()
    ]
    return json.dumps({"simrank": simrank.__version__, "fits": fits}, indent=1) + "\n"


def _series_table(series: Sequence[SeriesErrors], grouped: Sequence[TargetGroup]) -> Table:
    """Return a line for each series, or pair of them, and their means."""
    are_pairs = any(each.fitted_to not in ("", each.table) for each in series)
    shown = Table(box=None, pad_edge=False)
    columns = ("table", "fitted to" if are_pairs else "cluster", "collective", "ranks", "nodes")
    for column in columns:  # Names are folded on a narrow terminal, numbers are kept whole.
        shown.add_column(column, no_wrap=column in ("ranks", "nodes"), overflow="fold")
    for column in NAMES:
        shown.add_column(column, no_wrap=True, justify="right")
    for each in series:
        facts = (each.table, each.fitted_to if are_pairs else each.cluster, each.collective)
        numbers = str(each.num_ranks), str(each.num_nodes)
        shown.add_row(*facts, *numbers, *_cells(each.by_class()))
    if len(series) > 1:
        _add_means(shown, grouped, len(columns) - 1)
    return shown


def _add_means(shown: Table, grouped: Sequence[TargetGroup], num_empty: int) -> None:
    shown.add_section()
    empty = [""] * num_empty
    for group in grouped:
        shown.add_row(f"mean: {group.title}", *empty, *_cells(group.means))
        if group.aims_pct is not None:
            shown.add_row("target", *empty, *(f"{aim:.0f} %       " for aim in group.aims_pct))


def _cells(errors: _Cells) -> list[str]:
    return [
        "-" if each is None else f"{100 * each[0]:.0f} % ({100 * each[1]:+4.0f})" for each in errors
    ]
