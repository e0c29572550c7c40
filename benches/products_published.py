"""Simulated beside published times of products of groups, of 8 bits, and of packed sequences.

`python benches/products_published.py` prints, by kind and kernel, how far the charge for torch's
operator is from what was measured: 246 rows of 24 sources (`products_published.csv`, each row with
its address). Few kernels are torch's own; the charge is that of torch's operator for the same
shapes. H800 stands for H100. Rows that their source or their arithmetic make doubtful are left out,
and those of attention below 0.2 ms, which hosts limit. Groups and sequences are even.

Fitted to rows of this table are `_GROUPED_TIMES`, the median over sources (with the median of all
others each source is as far off as the second table says), `_INTEGER_TIMES` and the share of eight
bits in attention on Hopper; nothing else is.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from simrank.hardware.load import load_cluster
from simrank.torch.cuda.operations import DeviceOperation, Operand, OperationFlag
from simrank.torch.devices.costs import cost_of
from simrank.torch.devices.products import multiplied

if TYPE_CHECKING:
    from simrank.hardware.spec import DeviceSpec

ROWS = Path(__file__).with_suffix(".csv")
AIM_PCT = 25.0  # Mean error of each kind but int8, which is fitted to its ten rows.
DTYPES = {"bfloat16": 15, "float16": 5, "float8_e4m3fn": 24, "int8": 1}
BFLOAT16, INT32 = 15, 3
NAMES = {
    "grouped": "_grouped_mm", "scaled grouped": "_scaled_grouped_mm", "scaled": "_scaled_mm",
    "int8": "_int_mm", "varlen attention": "_flash_attention_forward",
}  # fmt: skip


@cache
def device(cluster: str) -> DeviceSpec:
    """Return the device of a built-in cluster."""
    return load_cluster(cluster).device


def operand(dtype: int, *sizes: int, is_written: bool = False) -> Operand:
    """Return a contiguous operand."""
    strides, step = [], 1
    for size in reversed(sizes):
        strides.insert(0, step)
        step *= size
    return Operand(0, dtype, sizes, tuple(strides), is_written)


def lengths(text: str) -> list[int]:
    """Return the lengths of sequences: `1024*4;512`."""
    pairs = (part.partition("*") for part in text.split(";"))
    return [int(length) for length, _, times in pairs for _ in range(int(times or 1))]


def operation_of(row: dict[str, str]) -> DeviceOperation:
    """Return torch's operator for a row."""
    dtype, flags = DTYPES[row["dtype"]], OperationFlag.CUDNN
    if row["kind"] == "varlen attention":
        queries, keys, heads = (
            lengths(row["seqlens_q"]),
            lengths(row["seqlens_k"]),
            int(row["heads"]),
        )
        width, made = int(row["head_dim_qk"]), int(row["head_dim_v"])
        inputs = [
            operand(dtype, sum(queries), heads, width), operand(dtype, sum(keys), heads, width),
            operand(dtype, sum(keys), heads, made), operand(INT32, len(queries) + 1),
        ]  # fmt: skip
        output = operand(dtype, sum(queries), heads, made, is_written=True)
        flags |= OperationFlag.CAUSAL if row["is_causal"] == "1" else OperationFlag(0)
    else:
        m, n, k, groups = int(row["m"]), int(row["n"]), int(row["k"]), int(row["groups"] or 1)
        a, b, out = {
            "": ((m, k), (k, n), (m, n)),
            "rows": ((m, k), (groups, k, n), (m, n)),
            "inner": ((m, k), (k, n), (groups, m, n)),
            "batched": ((groups, m, k), (groups, k, n), (groups, m, n)),
        }[row["layout"]]
        inputs = [operand(dtype, *a), operand(dtype, *b)]
        output = operand(BFLOAT16, *out, is_written=True)
    return DeviceOperation(NAMES[row["kind"]], 0, 0, 0, flags, tuple(inputs), (output,))


def main() -> int:
    """Print the errors by kind and kernel; return 1 if those of a kind are too large."""
    errors: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    ratios: defaultdict[str, list[float]] = defaultdict(list)  # Of groups, without their factor.
    with ROWS.open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        made = operation_of(row)
        measured_us = float(row["time_us"])
        charged_us = cost_of(device(row["cluster"]), made).duration_ps / 1e6
        errors[row["kind"], row["kernel"], row["device"]].append(
            100 * (charged_us / measured_us - 1)
        )
        if "grouped" in row["kind"]:
            plain_us = charged_us / multiplied(made)[0].times
            ratios[row["source"].partition("/commit")[0]].append(measured_us / plain_us)
    print(f"{'kind':17} {'kernel':52} {'device':15} {'rows':>5} {'MAE %':>7} {'bias %':>7}")
    by_kind: defaultdict[str, list[float]] = defaultdict(list)
    for (kind, kernel, name), found in sorted(errors.items()):
        mean = statistics.fmean(map(abs, found))
        bias = statistics.fmean(found)
        print(f"{kind:17} {kernel[:52]:52} {name:15} {len(found):5} {mean:7.1f} {bias:+7.1f}")
        by_kind[kind] += found
    medians = {source: statistics.median(found) for source, found in ratios.items()}
    print("\ntimes of grouped kernels over cuBLAS's rule: median by source, and left out:")
    for source, own in sorted(medians.items()):
        others = statistics.median(value for key, value in medians.items() if key != source)
        left = statistics.fmean(abs(others / value - 1) for value in ratios[source])
        print(f"  {source[:60]:60} {own:5.2f}  MAE {100 * left:5.1f} %")
    print()
    means = {kind: statistics.fmean(map(abs, found)) for kind, found in by_kind.items()}
    for kind, mean in means.items():
        print(f"{kind}: {len(by_kind[kind])} rows, MAE {mean:.1f} %")
    holds = all(mean <= AIM_PCT for kind, mean in means.items() if kind != "int8")
    print(f"at most {AIM_PCT:.0f} % for each kind but int8: {'yes' if holds else 'NO'}")
    return not holds


if __name__ == "__main__":
    sys.exit(main())
