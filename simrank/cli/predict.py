"""`simrank predict`, `predict-gemm`, `predict-attention`: predicted times with intervals."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import simrank
from simrank import units
from simrank.cli.common import EXIT_STATUS, app, check_writable
from simrank.cli.nccl_tests import bad_option
from simrank.cli.prediction_options import (
    Calibration,
    Changed,
    Cluster,
    CollectiveCommand,
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
from simrank.errors import UnsupportedError
from simrank.hardware.attention import PHASES
from simrank.planning.predict import GEMM_DTYPES, predict_attention, predict_gemm
from simrank.planning.predict import predict as predicted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.planning.predict import KernelPrediction, Predicted

_COLUMNS = ("size", "time", "low", "high", "algbw", "busbw", "algorithm", "protocol")
_UNITS = ("(B)", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", "", "")


@app.command(epilog=EXIT_STATUS, cls=CollectiveCommand)
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
        ConfigError: It cannot be read.
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


# ---- `simrank predict-gemm` and `predict-attention`: single kernels with 90% intervals ----

_KERNEL_COLUMNS = ("time\n(us)", "low\n(us)", "high\n(us)", "rate\n(TFLOPS)", "rows")
_PRODUCT = re.compile(r"(\d+)x(\d+)x(\d+)")


@app.command("predict-gemm", epilog=EXIT_STATUS)
def gemm(
    products: Annotated[
        list[str], typer.Argument(metavar="MxNxK...", help="Sizes, for example 4096x8192x8192.")
    ],
    cluster: Cluster = "hgx_h100",
    changed: Changed = None,
    batch: Annotated[int, typer.Option(min=1, help="Products in one kernel.")] = 1,
    dtype: Annotated[
        str, typer.Option("-d", "--datatype", help=f"{', '.join(GEMM_DTYPES)}.")
    ] = "bfloat16",
    json_file: JsonFile = None,
) -> None:
    """Predict times of a library's matrix products, M x K by K x N, with 90% intervals.

    Times are of kernels in a CUDA graph; one that is launched alone starts later by what is printed
    below the table. fp8 and nvfp4 include quantising bfloat16 activations.
    """
    sizes = [_product(text) for text in products]
    device = with_changes(cluster, changed)
    _answer(
        products,
        lambda number: predict_gemm(device, *sizes[number], batch, dtype),
        {"kernel": "gemm", "cluster": cluster, "batch": batch, "dtype": dtype},
        "m x n x k",
        json_file,
    )


@app.command("predict-attention", epilog=EXIT_STATUS)
def attention(
    lengths: Annotated[
        list[int], typer.Argument(metavar="LENGTH...", min=1, help="Tokens of each sequence.")
    ],
    cluster: Cluster = "hgx_h100",
    changed: Changed = None,
    heads: Annotated[int, typer.Option(min=1, help="Heads of queries.")] = 32,
    kv_heads: Annotated[
        int | None, typer.Option(min=1, help="Heads of keys and values [--heads].")
    ] = None,
    head_dim: Annotated[int, typer.Option(min=1, help="Width of a head.")] = 128,
    batch: Annotated[int, typer.Option(min=1, help="Sequences.")] = 1,
    phase: Annotated[str, typer.Option(help=f"{', '.join(PHASES)}.")] = "prefill",
    json_file: JsonFile = None,
) -> None:
    """Predict times of a serving framework's attention in bfloat16, with 90% intervals.

    The fastest of FlashAttention-2 and -3, FlashInfer and TensorRT-LLM, in a CUDA graph.
    """
    device = with_changes(cluster, changed)
    shape = {"heads": heads, "kv_heads": kv_heads or heads, "head_dim": head_dim, "batch": batch}
    _answer(
        [str(length) for length in lengths],
        lambda number: predict_attention(device, length=lengths[number], phase=phase, **shape),
        {"kernel": "attention", "cluster": cluster, "phase": phase, **shape},
        "length",
        json_file,
    )


def _product(text: str) -> tuple[int, int, int]:
    """Return m, n and k of `4096x8192x8192`.

    Raises:
        ConfigError: It is not of this form.
    """
    match = _PRODUCT.fullmatch(text.strip().lower())
    if match is None:
        raise bad_option("MxNxK", "three sizes such as 4096x8192x8192", text)
    m, n, k = (int(part) for part in match.groups())
    return m, n, k


def _answer(
    sizes: Sequence[str],
    predict: Callable[[int], KernelPrediction],
    facts: dict[str, Any],
    column: str,
    json_file: str | None,
) -> None:
    """Predict each size and print a table, or write JSON."""
    check_writable(None if json_file == "-" else json_file)
    try:
        found = [predict(number) for number in range(len(sizes))]
    except (ValueError, UnsupportedError) as error:
        raise typer.BadParameter(str(error)) from None
    rows = [{"size": size, **asdict(each)} for size, each in zip(sizes, found, strict=True)]
    if only_json({"simrank": simrank.__version__, **facts, "rows": rows}, json_file):
        return
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(", ".join(f"{name} {value}" for name, value in facts.items()))
    shown = Table(box=None, pad_edge=False)
    for name in (column, *_KERNEL_COLUMNS):
        shown.add_column(name, justify="right", no_wrap=True)
    for size, each in zip(sizes, found, strict=True):
        numbers = (f"{part:.2f}" for part in (each.time_us, each.low_us, each.high_us))
        shown.add_row(size, *numbers, f"{each.tflops:.1f}", each.basis)
    console.print(shown)
    console.print("low and high: 90% prediction interval; without a CUDA graph, add ", end="")
    console.print(f"{found[0].launch_us:.2f} us\nrows: {found[0].source}", soft_wrap=True)
