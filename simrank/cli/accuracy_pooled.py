"""Errors and coverage of pooled constants on left-out machines, for `simrank accuracy`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

import simrank
from simrank.bench.accuracy import DIRECT, builtin_tables, measured_series
from simrank.bench.accuracy_page import hold_outs_page, platforms_of, rows_of
from simrank.bench.hold_outs import (
    DEVICE,
    GROUP,
    NETWORK,
    ONE_SIZE,
    OPERATION,
    SITE,
    hold_outs,
    left_out,
    observed_of,
    score,
)
from simrank.cli.common import progress_bar
from simrank.cli.measured_tables import texts_of
from simrank.collectives.nccl.evidence import shipped_pool
from simrank.collectives.nccl.pool_files import pooled_tables
from simrank.collectives.nccl.pool_fit import fit_pool
from simrank.collectives.nccl.size_classes import NAMES
from simrank.config.files import write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.bench.accuracy import TableSeries
    from simrank.bench.hold_outs import LeftOut
    from simrank.collectives.nccl.laws import Floats
    from simrank.collectives.nccl.pool import Pool
    from simrank.collectives.nccl.pool_fit import Observed

_KINDS = (SITE, NETWORK, ONE_SIZE, DEVICE, OPERATION, GROUP)
_CELLS = "cells: MAE (of NCCL's own constants) +-half the 90% interval, coverage, in percent"
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


def known_series() -> list[Observed]:
    """Return the series that the pooled constants are fitted to."""
    series = measured_series(texts_of([*builtin_tables(), *pooled_tables()]))
    return [observed_of(each) for each in series if each.mode == DIRECT]


def show_tables(
    series: Sequence[TableSeries],
    show: Callable[[Table], None],
    json_file: str | None,
    html: str | None,
) -> None:
    """Show how well pooled constants without their sites predict measured series."""
    pool, known = shipped_pool(), known_series()
    pools: dict[str, Pool] = {}
    found = []
    for each in series:
        mine = observed_of(each)
        site = mine.labels.site
        if site not in pools:
            others = [other for other in known if other.labels.site != site]
            is_inside = len(others) < len(known)
            pools[site] = fit_pool(others, pool.source) if is_inside else pool
        found.append(left_out(mine, pools[site])._replace(unit=site))
    shown = Table(box=None, pad_edge=False)
    for column in ("table, collective, ranks", "predicted as"):
        shown.add_column(column, overflow="fold")
    for column in NAMES:
        shown.add_column(column, justify="right", no_wrap=True)
    for left in found:
        ((words, _),) = rows_of([left])
        shown.add_row(left.observed.labels.series, words, *_cells([left], pool.noises))
    show(shown)
    typer.echo(f"\n{_CELLS}; the site is left out of the constants")
    _write(found, pool.noises, json_file, html)


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
        shown.add_row(words, str(len({each.unit for each in mine})), *_cells(mine, noises))
    return shown


def _cells(left: Sequence[LeftOut], noises: Floats) -> list[str]:
    scores = [score(left, noises, number) for number in range(len(NAMES))]
    return ["-" if each is None else each.text() for each in scores]


def _write(
    left: Sequence[LeftOut], noises: Floats, json_file: str | None, html: str | None
) -> None:
    if json_file is not None:
        write_text(json_file, _json_text(left, noises))
    if html is not None:
        write_text(html, hold_outs_page(left, noises))


def _json_text(left: Sequence[LeftOut], noises: Floats) -> str:
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
