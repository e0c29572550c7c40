"""`simrank predict`: predicted times with their intervals, as a table or JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import simrank
from simrank import units
from simrank.bench.predict import predict as predicted
from simrank.cli.common import EXIT_STATUS, app, check_writable
from simrank.cli.nccl_tests import bad_option
from simrank.cli.prediction_options import (
    Calibration,
    Changed,
    Cluster,
    CollectiveName,
    JsonFile,
    Nodes,
    NumRanks,
    Ranks,
    Tuner,
    devices_of,
    only_json,
    with_changes,
)

if TYPE_CHECKING:
    from simrank.bench.predict import Predicted

_COLUMNS = ("size", "time", "low", "high", "algbw", "busbw", "algorithm", "protocol")
_UNITS = ("(B)", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", "", "")


@app.command(epilog=EXIT_STATUS)
def predict(
    collective: CollectiveName = "all_reduce",
    cluster: Cluster = "hgx_h100",
    nodes: Nodes = None,
    changed: Changed = None,
    num_ranks: NumRanks = None,
    ranks: Ranks = None,
    size: Annotated[
        list[str] | None, typer.Option(help="A size as in nccl-tests; repeatable.")
    ] = None,
    minbytes: Annotated[
        str, typer.Option("-b", "--minbytes", help="Smallest size; K, M, G are 1024-based.")
    ] = "8",
    maxbytes: Annotated[str, typer.Option("-e", "--maxbytes", help="Largest size.")] = "8G",
    stepfactor: Annotated[
        int, typer.Option("-f", "--stepfactor", min=2, help="Factor between sizes.")
    ] = 2,
    dtype: Annotated[
        str, typer.Option("-d", "--datatype", help="For example bfloat16, int8.")
    ] = "float32",
    redop: Annotated[str, typer.Option("-o", "--op", help="sum, prod, min, max, avg.")] = "sum",
    nccl_algo: Annotated[
        str | None, typer.Option("--algo", help="As NCCL_ALGO, for example Ring,Tree.")
    ] = None,
    nccl_proto: Annotated[
        str | None, typer.Option("--proto", help="As NCCL_PROTO, for example ^LL128.")
    ] = None,
    nccl_tuner: Tuner = None,
    calibration: Calibration = "auto",
    json_file: JsonFile = None,
) -> None:
    """Predict nccl-tests' times with 90% intervals; nothing runs.

    `simrank bench` adds the start of nccl-tests' loop: 2 us over the number of its iterations.

    `simrank explain` takes one size apart; `simrank accuracy` says how well such predictions hold.
    """
    check_writable(None if json_file == "-" else json_file)
    try:
        found = predicted(
            collective,
            [_size("--size", text) for text in size or ()]
            or _sizes(minbytes, maxbytes, stepfactor),
            num_ranks,
            with_changes(cluster, changed),
            nodes=nodes,
            ranks=devices_of(ranks),
            dtype=dtype,
            redop=redop,
            nccl_algo=nccl_algo,
            nccl_proto=nccl_proto,
            nccl_tuner=nccl_tuner,
            calibration=calibration,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    _show(found, json_file)


def _show(found: Predicted, json_file: str | None) -> None:
    if only_json(_data(found), json_file):
        return
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(f"{found.collective} on {found.num_ranks} ranks of {found.cluster}")
    console.print(_table(found))
    constants = found.calibration or "NCCL's own, not fitted to a machine"
    console.print(f"low and high: 90% prediction interval\nconstants: {constants}", soft_wrap=True)
    if found.unknown:
        names = ", ".join(found.unknown)
        console.print(f"not known: no measured table of {names}; the interval is the range of all")


def _sizes(first: str, last: str, factor: int) -> list[int]:
    """Return sizes from the first to the last, each `factor` times the one before.

    Raises:
        ConfigError: A size is wrong, or the last is below the first.
    """
    bounds = [_size("--minbytes", first), _size("--maxbytes", last)]
    if not 1 <= bounds[0] <= bounds[1]:
        raise bad_option("--maxbytes", f"a size of at least --minbytes {first}", last)
    sizes = [bounds[0]]
    while sizes[-1] * factor <= bounds[1]:
        sizes.append(sizes[-1] * factor)
    return sizes


def _size(option: str, text: str) -> int:
    """Return the bytes of a size as in nccl-tests.

    Raises:
        ConfigError: It is none.
    """
    try:
        return units.parse_size_nccl(text)
    except ValueError:
        raise bad_option(option, "a size as in nccl-tests, for example 16M", text) from None


def _data(found: Predicted) -> dict[str, Any]:
    """Return a prediction as plain data."""
    columns = {
        "size_bytes": found.size_bytes,
        "time_us": found.time_us,
        "low_us": found.low_us,
        "high_us": found.high_us,
        "algbw_GBps": found.algbw_GBps,
        "busbw_GBps": found.busbw_GBps,
        "algorithm": found.algorithm,
        "protocol": found.protocol,
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return {
        "simrank": simrank.__version__,
        "cluster": found.cluster,
        "collective": found.collective,
        "num_ranks": found.num_ranks,
        "calibration": found.calibration,
        "unknown": list(found.unknown),
        "rows": [dict(zip(columns, row, strict=True)) for row in rows],
    }


def _table(found: Predicted) -> Table:
    shown = Table(box=None, pad_edge=False)
    for column, unit in zip(_COLUMNS, _UNITS, strict=True):
        is_text = column in ("algorithm", "protocol")
        shown.add_column(f"{column}\n{unit}", justify="left" if is_text else "right", no_wrap=True)
    numbers = np.stack(
        [found.time_us, found.low_us, found.high_us, found.algbw_GBps, found.busbw_GBps], axis=1
    )
    for size, row, *names in zip(
        found.size_bytes, numbers, found.algorithm, found.protocol, strict=True
    ):
        shown.add_row(str(size), *(f"{number:.2f}" for number in row), *names)
    return shown
