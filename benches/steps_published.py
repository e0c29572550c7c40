"""Training steps beside published ones: error of the time, and of the peak of reserved memory.

Each row of `steps_published.csv` is a run of `llama_layouts.py` or `megatron_layouts.py` (which
needs `pip install megatron-core==0.16.1`) on the layout that its source publishes. No constant is
fitted to any of them. A step that is simulated too fast has a negative error. The interval of a
source is what 90 percent of the other sources' rows need, each source counting alike. The last two
columns of the table are the errors of the last run (`--update` writes them); where power or network
of a machine is not published (`machine_known`), they do not count for the interval that
`simrank plan` prints. `--table` prints intervals of the errors that the table has.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = {
    "titan-a100": "pytorch/torchtitan, docs/performance.md at 0413364, BSD-3",
    "titan-h100": "pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md at "
    "31a17bf, BSD-3",
    "titan-async-tp": "pytorch/torchtitan, benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md at "
    "c720cb8, vanilla tensor parallelism, BSD-3",
    "torchao": "pytorch/ao, torchao/float8/README.md at 9519beb, BSD-3",
    "korthikanti": "arXiv 2205.05198, tables 3 and 5: Megatron-LM without flash attention",
    "dgxc": "NVIDIA/dgxc-benchmarking, nemotron/README_15b.md at 0b71cfd, README_340b.md at "
    "143b90d, nemo_megatron/README_175b.md at 0b71cfd: NeMo, bfloat16, Apache-2.0",
    "titan-h200": "pytorch/torchtitan, benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md at "
    "4a61bd8, float8, BSD-3",
    "nemo-automodel": "NVIDIA-NeMo/Automodel, docs/performance-summary.mdx at cb97654, Apache-2.0",
    "mosaic-h100": "mosaicml/llm-foundry, scripts/train/benchmarking/README.md at 5e85bd6: FSDP1, "
    "torch 2.1, attention of Triton, Apache-2.0",
    "mosaic-a100": "the same table, A100 80 GB, torch 1.13",
    "ibm-fsdp": "pytorch.org, Maximizing training throughput using PyTorch FSDP, 13 March 2024",
}


def rows():
    """Return the published rows."""
    return list(csv.DictReader((HERE / "steps_published.csv").read_text().splitlines()))


def write(table):
    """Write the rows."""
    with (HERE / "steps_published.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


def measured():
    """Return the rows of known machines with the error of the last run."""
    known = [row for row in rows() if row["machine_known"] == "yes" and row["error_pct"]]
    return [{**row, "error": float(row["error_pct"]) / 100} for row in known]


def command(row):
    """Return the command that simulates a row."""
    cluster = row["cluster"]
    where = str(HERE / cluster) if cluster.endswith(".yaml") else cluster
    nodes = [] if cluster.startswith("hgx_") else ["--nnodes", str(int(row["gpus"]) // 8)]
    is_long = row["program"] == "megatron" or "--pp" in row["options"]
    return [
        sys.executable, "-m", "simrank", "run", "--shape-only", "--unknown", "1", "--fold", "all",
        "--cluster", where, *nodes, "--prefix", "none", "--summary", "json",
        str(HERE / f"{row['program']}_layouts.py"), *row["options"].split(),
        "--steps", "1" if is_long else "2",
    ]  # fmt: skip


def simulated(row):
    """Return tokens per second and GPU, the most GiB that a rank reserves, and the parts."""
    ended = subprocess.run(command(row), capture_output=True, text=True, check=False)
    rate = re.search(r"tokens/s/GPU ([0-9.]+)", ended.stdout)
    if rate is None:
        raise SystemExit(ended.stdout + ended.stderr)
    summary = json.loads(ended.stderr.splitlines()[-1])
    gib = max(rank["peak_reserved_bytes"] for rank in summary["ranks"]) / 2**30
    return float(rate[1]), gib, summary["steps"]


def interval(found, without=None):
    """Return the factors on a simulated step between which 90 percent of published ones are.

    Each source counts alike, and each end leaves out 5 percent.

    Args:
        found: Rows with `source` and `error`.
        without: A source that is left out.
    """
    counts = Counter(row["source"] for row in found if row["source"] != without)
    longer = sorted(
        (1 / (1 + row["error"]), 1 / counts[row["source"]] / len(counts))
        for row in found if row["source"] != without
    )  # fmt: skip
    return _quantile(longer), _quantile(longer[::-1])


def _quantile(weighted):
    """Return the first factor before which less than a twentieth of the weight is."""
    total = 0.0
    for factor, weight in weighted:
        total += weight
        if total > _TAIL:
            return factor
    raise ValueError("no rows")


_TAIL = 0.05 + 1e-9


def print_intervals(found):
    """Print the interval of all rows, and of each source that of the others."""
    for source in dict.fromkeys(row["source"] for row in found):
        low, high = interval(found, source) if len({r["source"] for r in found}) > 1 else (0, 0)
        own = [1 / (1 + row["error"]) for row in found if row["source"] == source]
        inside = sum(low <= factor <= high for factor in own)
        width = math.sqrt(high / low) - 1 if low else 0
        print(f"{source}: {SOURCES[source]}")
        found_by = f"x{low:.2f} to x{high:.2f} (+-{width:.0%})"
        print(f"    others: {found_by}, {inside} of {len(own)} inside")
    low, high = interval(found)
    print(
        f"all: x{low:.3f} to x{high:.3f} (+-{math.sqrt(high / low) - 1:.0%}) of the simulated step"
    )


def main():
    """Print a line for each row, and the mean errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="Write the rows to this file.")
    parser.add_argument("--rows", type=int, nargs="*", help="Only these rows, from 0.")
    parser.add_argument("--update", action="store_true", help="Write errors into the table.")
    parser.add_argument("--table", action="store_true", help="Run nothing.")
    options = parser.parse_args()
    if options.table:
        print_intervals(measured())
        return
    found, table = [], rows()
    for number, row in enumerate(table):
        if options.rows is not None and number not in options.rows:
            continue
        rate, gib, steps = simulated(row)
        error = float(row["tokens_per_s_per_gpu"]) / rate - 1
        published_gib = float(row["peak_reserved_gib"] or 0)
        memory = gib / published_gib - 1 if published_gib else None
        found.append(
            {**row, "simulated": rate, "error": error, "memory_error": memory, "steps": steps}
        )
        if options.update:
            row["error_pct"] = f"{error:+.1%}"[:-1]
            row["memory_error_pct"] = "" if memory is None else f"{memory:+.1%}"[:-1]
            write(table)
        shown = "" if memory is None else f", {gib:.1f} GiB {memory:+.1%}"
        print(
            f"{number:2} {row['source']:14} {row['machine']:36} {row['gpus']:>4} GPUs, "
            f"{row['options']}: {rate:.0f} tokens/s/GPU, step {error:+.1%}{shown}",
            flush=True,
        )
    print_intervals([row for row in found if row["machine_known"] == "yes"])
    for machine in dict.fromkeys(row["machine"] for row in found):
        errors = [row["error"] for row in found if row["machine"] == machine]
        mean = statistics.mean(map(abs, errors))
        print(f"{machine}: {len(errors)} rows, MAE {mean:.1%}, bias {statistics.mean(errors):+.1%}")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
