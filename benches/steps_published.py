"""Training steps beside published ones: error of the time, and of the peak of reserved memory.

Each row of `steps_published.csv` is a run of `llama_layouts.py` or `megatron_layouts.py` (which
needs `pip install megatron-core==0.16.1`) on the layout that its source publishes. No constant is
fitted to any of them. A step that is simulated too fast has a negative error. The interval of a
source is what 90 percent of the other sources' rows need, each source counting alike. The last two
columns of the table are the errors of the last run of all rows; where power or network of a machine
is not published (`machine_known`), they do not count for the interval that `simrank plan` prints.
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


def half_widths(found):
    """Return for each source the logarithm of the factor that 90 percent of other rows need."""
    errors = {}
    for row in found:
        errors.setdefault(row["source"], []).append(abs(math.log1p(row["error"])))
    widths = {}
    for source in errors:
        others = [
            (error, 1 / len(rows)) for name, rows in errors.items() if name != source
            for error in rows
        ]  # fmt: skip
        total, reached = sum(weight for _, weight in others), 0.0
        for error, weight in sorted(others):
            reached += weight
            if reached >= 0.9 * total:
                widths[source] = error
                break
    return widths


def main():
    """Print a line for each row, and the mean errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="Write the rows to this file.")
    parser.add_argument("--rows", type=int, nargs="*", help="Only these rows, from 0.")
    options = parser.parse_args()
    found = []
    for number, row in enumerate(rows()):
        if options.rows is not None and number not in options.rows:
            continue
        rate, gib, steps = simulated(row)
        error = float(row["tokens_per_s_per_gpu"]) / rate - 1
        published_gib = float(row["peak_reserved_gib"] or 0)
        memory = gib / published_gib - 1 if published_gib else None
        found.append(
            {**row, "simulated": rate, "error": error, "memory_error": memory, "steps": steps}
        )
        shown = "" if memory is None else f", {gib:.1f} GiB {memory:+.1%}"
        print(
            f"{number:2} {row['source']:14} {row['machine']:36} {row['gpus']:>4} GPUs, "
            f"{row['options']}: {rate:.0f} tokens/s/GPU, step {error:+.1%}{shown}",
            flush=True,
        )
    widths = half_widths(found)
    for source in dict.fromkeys(row["source"] for row in found):
        own = [abs(math.log1p(row["error"])) for row in found if row["source"] == source]
        print(f"{source}: {SOURCES[source]}")
        if source in widths:
            inside = sum(error <= widths[source] for error in own)
            width = math.expm1(widths[source])
            print(f"    interval of the others +-{width:.0%}: {inside} of {len(own)} inside")
    for machine in dict.fromkeys(row["machine"] for row in found):
        errors = [row["error"] for row in found if row["machine"] == machine]
        mean = statistics.mean(map(abs, errors))
        print(f"{machine}: {len(errors)} rows, MAE {mean:.1%}, bias {statistics.mean(errors):+.1%}")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
