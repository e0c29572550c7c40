"""`simrank tune`: a file for NCCL's tuner plugin."""

from __future__ import annotations

from typing import Annotated

import typer

from simrank.cli.common import EXIT_STATUS, app, check_writable
from simrank.cli.prediction_options import (  # noqa: TC001 - typer reads annotations
    Calibration,
    Cluster,
    Nodes,
    NumRanks,
)
from simrank.config.files import write_text
from simrank.config.tuner import COLLECTIVES, tuner_text
from simrank.planning.tune import tune as tuned


@app.command(epilog=EXIT_STATUS)
def tune(
    collective: Annotated[
        list[str] | None, typer.Option(help="Collective, for example all_reduce; repeatable [all].")
    ] = None,
    cluster: Cluster = "hgx_h100",
    nodes: Nodes = None,
    num_ranks: NumRanks = None,
    calibration: Calibration = "auto",
    out: Annotated[str | None, typer.Option(help="CSV file to write [stdout].")] = None,
) -> None:
    """Write a CSV file for NCCL's example tuner plugin: the fastest choice per range of sizes.

    Times come from the constants that the cluster's file names, or from pooled ones.
    NCCL reads the file named by NCCL_TUNER_CONFIG_FILE; `simrank.predict(nccl_tuner=...)` and
    `simrank explain --tuner` read it as well.
    """
    check_writable(out)
    try:
        names = collective or list(COLLECTIVES.values())
        rows = tuned(names, num_ranks, cluster, nodes=nodes, calibration=calibration)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    text = tuner_text(rows)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_text(out, text)
    typer.echo(out)
