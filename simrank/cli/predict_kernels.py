"""`simrank predict-gemm` and `predict-attention`: single kernels with 90% intervals."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import simrank
from simrank.bench.predict_kernels import GEMM_DTYPES, predict_attention, predict_gemm
from simrank.cli.common import EXIT_STATUS, app, check_writable
from simrank.cli.nccl_tests import bad_option
from simrank.cli.prediction_options import Changed, Cluster, JsonFile, only_json, with_changes
from simrank.errors import UnsupportedError
from simrank.hardware.attention import PHASES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.bench.predict_kernels import KernelPrediction

_COLUMNS = ("time\n(us)", "low\n(us)", "high\n(us)", "rate\n(TFLOPS)", "rows")
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
    for name in (column, *_COLUMNS):
        shown.add_column(name, justify="right", no_wrap=True)
    for size, each in zip(sizes, found, strict=True):
        numbers = (f"{part:.2f}" for part in (each.time_us, each.low_us, each.high_us))
        shown.add_row(size, *numbers, f"{each.tflops:.1f}", each.basis)
    console.print(shown)
    console.print("low and high: 90% prediction interval; without a CUDA graph, add ", end="")
    console.print(f"{found[0].launch_us:.2f} us\nrows: {found[0].source}", soft_wrap=True)
