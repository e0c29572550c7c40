"""Training steps beside published ones: error of the time, and of the peak of reserved memory.

Each row of `steps_published.csv` is a run of `llama_layouts.py` on the layout that its source
publishes. No constant is fitted to any of them. A step that is simulated too fast has a negative
error.
"""

from __future__ import annotations

import argparse
import csv
import json
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
    "ibm-fsdp": "pytorch.org, Maximizing training throughput using PyTorch FSDP, 13 March 2024",
}


def rows():
    """Return the published rows."""
    return list(csv.DictReader((HERE / "steps_published.csv").read_text().splitlines()))


def command(row):
    """Return the command that simulates a row."""
    cluster = row["cluster"]
    where = str(HERE / cluster) if cluster.endswith(".yaml") else cluster
    nodes = [] if cluster == "hgx_h100" else ["--nnodes", str(int(row["gpus"]) // 8)]
    return [
        sys.executable, "-m", "simrank", "run", "--shape-only", "--unknown", "1", "--fold", "all",
        "--cluster", where, *nodes, "--prefix", "none", str(HERE / "llama_layouts.py"),
        *row["options"].split(), "--steps", "2",
    ]  # fmt: skip


def simulated(row):
    """Return tokens per second and GPU, and the GiB that are reserved at most."""
    ended = subprocess.run(command(row), capture_output=True, text=True, check=False)
    text = ended.stdout + ended.stderr
    rate = re.search(r"tokens/s/GPU ([0-9.]+)", text)
    if rate is None:
        raise SystemExit(text)
    return float(rate[1]), float(re.search(r"reserved ([0-9.]+)", text)[1])


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
        rate, gib = simulated(row)
        error = float(row["tokens_per_s_per_gpu"]) / rate - 1
        published_gib = float(row["peak_reserved_gib"] or 0)
        memory = gib / published_gib - 1 if published_gib else None
        found.append({**row, "simulated": rate, "error": error, "memory_error": memory})
        shown = "" if memory is None else f", {gib:.1f} GiB {memory:+.1%}"
        print(
            f"{number:2} {row['source']:14} {row['machine']:36} {row['gpus']:>4} GPUs, "
            f"{row['options']}: {rate:.0f} tokens/s/GPU, step {error:+.1%}{shown}",
            flush=True,
        )
    for source in dict.fromkeys(row["source"] for row in found):
        print(f"{source}: {SOURCES[source]}")
    for machine in dict.fromkeys(row["machine"] for row in found):
        errors = [row["error"] for row in found if row["machine"] == machine]
        mean = statistics.mean(map(abs, errors))
        print(f"{machine}: {len(errors)} rows, MAE {mean:.1%}, bias {statistics.mean(errors):+.1%}")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
