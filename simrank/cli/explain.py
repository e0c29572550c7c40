"""`simrank explain`: why a collective takes as long as predicted."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from simrank import units
from simrank.cli.common import EXIT_STATUS, app, check_writable
from simrank.cli.debugging import show_surroundings
from simrank.cli.prediction_options import (
    Calibration,
    Changed,
    Cluster,
    CollectiveCommand,
    CollectiveName,
    Nodes,
    NumRanks,
    Ranks,
    Tuner,
    devices_of,
    with_changes,
)
from simrank.config.files import write_text
from simrank.planning.explain import crossover, explain_page
from simrank.planning.explain import explain as explained

if TYPE_CHECKING:
    from simrank.planning.explain import Explanation


@app.command(epilog=EXIT_STATUS, cls=CollectiveCommand)
def explain(
    collective: CollectiveName = "all_reduce",
    size: Annotated[str, typer.Option(help="Size as in nccl-tests, for example 16MiB.")] = "16MiB",
    cluster: Cluster = "hgx_h100",
    nodes: Nodes = None,
    changed: Changed = None,
    num_ranks: NumRanks = None,
    ranks: Ranks = None,
    nccl_tuner: Tuner = None,
    nccl_graph: Annotated[
        str | None, typer.Option("--graph", help="Graph XML of NCCL's topology search.")
    ] = None,
    calibration: Calibration = "auto",
    html: Annotated[
        str | None, typer.Option(help="Write an HTML page: candidate times over size.")
    ] = None,
) -> None:
    """Explain a predicted time: candidates, terms, constants and NCCL's choice.

    NCCL's choice is the first candidate. Each constant is listed with its source. The page (--html)
    adds NCCL's choice over sizes from 1 KiB to 8 GiB, with measured times.
    """
    check_writable(html)
    show_surroundings()
    try:
        size_bytes = units.parse_size_nccl(size)
        if not size_bytes:
            raise ValueError("expected a size of at least 1 byte")
        changed_cluster, group = with_changes(cluster, changed), devices_of(ranks)
        found = explained(
            collective,
            size_bytes,
            num_ranks,
            changed_cluster,
            nodes=nodes,
            ranks=group,
            nccl_tuner=nccl_tuner,
            nccl_graph=nccl_graph,
            calibration=calibration,
        )
        if html is not None:
            over_size = crossover(
                collective,
                num_ranks,
                changed_cluster,
                nodes=nodes,
                ranks=group,
                nccl_tuner=nccl_tuner,
                calibration=calibration,
            )
            write_text(html, explain_page(found, over_size))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(_headline(found, f"{size} B" if size.isdigit() else size))
    console.print(_uncertainties(found))
    console.print(_options(found))
    console.print(_terms(found))
    console.print(_constants(found))
    if found.replaced:
        console.print(_replaced(found))


def _headline(found: Explanation, size: str) -> str:
    shape, best = found.shape, found.options[0]
    nodes = "1 node" if shape.num_nodes == 1 else f"{shape.num_nodes} nodes"
    low, high = best.total / (1 + found.spread), best.total * (1 + found.spread)
    return (
        f"{found.collective} of {size} on {shape.num_ranks} ranks of {found.cluster} ({nodes}): "
        f"{best.total:.2f} us, {found.busbw_GBps:.1f} GB/s busbw\n"
        f"90% prediction interval: {low:.1f} to {high:.1f} us\n"
        f"constants: {found.rests_on}\n"
        f"NCCL chooses {best.algorithm} {best.protocol}: {found.reason}.\n"
    )


def _uncertainties(found: Explanation) -> Table:
    """Return the parts of the interval, the largest first."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("uncertainty")
    for column in ("share of variance", "alone, half the 90% interval"):
        shown.add_column(column, justify="right", no_wrap=True)
    for each in found.uncertainties:
        shown.add_row(each.what, f"{100 * each.share:.0f} %", f"{100 * each.half_width:.1f} %")
    shown.add_section()
    return shown


def _options(found: Explanation) -> Table:
    shown = Table(box=None, pad_edge=False)
    shown.add_column("algorithm")
    shown.add_column("protocol")
    for column in ("NCCL's estimate", "time", "L", "base", "D", "W", "ramp"):
        shown.add_column(f"{column} (us)", justify="right", no_wrap=True)
    for each in found.options:
        terms = (each.launch, each.base, each.latency, each.transfer, each.ramp)
        numbers = (each.estimate, each.total, *terms)
        shown.add_row(each.algorithm, each.protocol, *(f"{number:.2f}" for number in numbers))
    return shown


def _terms(found: Explanation) -> str:
    return (
        "\ntime = L + base + D + W + ramp, ramp = k sqrt(D W)\n"
        f"  D = {found.steps}\n  W = {found.volume}\n"
    )


def _constants(found: Explanation) -> Table:
    shown = Table(box=None, pad_edge=False)
    for column in ("constant", "value"):
        shown.add_column(column, no_wrap=True)
    shown.add_column("source")
    for each in found.constants:
        shown.add_row(each.name, each.value, each.source)
    return shown


def _replaced(found: Explanation) -> Table:
    """Return the values of a graph beside the replaced ones."""
    shown = Table(box=None, pad_edge=False)
    for column in ("\ngraph key", "\nvalue"):
        shown.add_column(column, no_wrap=True)
    for column in ("\nfrom", "\nreplaces"):
        shown.add_column(column)
    for each in found.replaced:
        before = f"{each.before}, {each.before_source}" if each.before_source else each.before
        shown.add_row(each.key, each.value, each.source, before)
    return shown
