"""Steps of large models without values: CPU time and memory of this machine.

The reference is a loop of additions of small CPU tensors in plain torch, run before each row: a
rank executes about a thousand calls of torch for each layer and step.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

PROGRAM = str(Path(__file__).with_name("llama_layouts.py"))
NUM_CALLS = 300_000
LOOP = f"import torch; x = torch.ones(8)\nfor _ in range({NUM_CALLS}): x + x"


class Row(NamedTuple):
    """A run, and what it may cost.

    Attributes:
        nodes: Of 8 GPUs.
        options: Of the program.
        fold: What is folded.
        max_cpu_s: CPU seconds, of all steps together.
        max_gib: Memory of the process.
    """

    nodes: int
    options: str
    fold: str
    max_cpu_s: float
    max_gib: float


ROWS = (
    Row(1, "8b --seq 8192 --steps 3", "none", 30, 0.6),
    Row(16, "8b --seq 8192 --steps 2", "none", 200, 2),
    Row(32, "70b --tp 8 --ac full --loss-parallel --steps 2", "auto", 120, 1.5),
    Row(128, "405b --pp 16 --tp 8 --ac full --batch 16 --loss-parallel --steps 1", "all", 600, 8),
)


def measured(command):
    """Return the CPU seconds and the GiB of a process, and its output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    text = ["/usr/bin/env", "OMP_NUM_THREADS=1", sys.executable, *command]
    ended = subprocess.run(text, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s, ended.stdout + ended.stderr


def peak_gib(command):
    """Return CPU seconds, GiB and output of a process: the peak is that of a fresh parent."""
    code = (
        "import json, resource, subprocess, sys; e = subprocess.run(sys.argv[1:], "
        "capture_output=True, text=True); u = resource.getrusage(resource.RUSAGE_CHILDREN); "
        "cpu_s = u.ru_utime + u.ru_stime; "
        "print(json.dumps([e.returncode, cpu_s, u.ru_maxrss, e.stdout + e.stderr]))"
    )
    _, output = measured(["-c", code, sys.executable, *command])
    status, cpu_s, kib, text = json.loads(output)
    if status:
        raise SystemExit(text)
    return cpu_s, kib / 2**20, text


def main():
    """Print a line for each row, and end with status 1 where one costs too much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="Write the rows to this file.")
    parser.add_argument("--rows", type=int, nargs="*", help="Only these rows, from 0.")
    options = parser.parse_args()
    found, is_over = [], False
    for number, row in enumerate(ROWS):
        if options.rows is not None and number not in options.rows:
            continue
        loop_s, _ = measured(["-c", LOOP])
        command = ["-m", "simrank", "run", "--shape-only", "--unknown", "1", "--fold", row.fold]
        command += ["--cluster", "hgx_h100" if row.nodes == 1 else "h100_ib"]
        command += [] if row.nodes == 1 else ["--nnodes", str(row.nodes)]
        began = time.perf_counter()
        cpu_s, gib, text = peak_gib([*command, "--prefix", "none", PROGRAM, *row.options.split()])
        step = re.search(r"^ms .*?([0-9.]+)$", text, re.MULTILINE)
        running = re.search(r"[0-9]+ of [0-9]+ ranks run", text)
        is_over |= cpu_s > row.max_cpu_s or gib > row.max_gib
        found.append({**row._asdict(), "cpu_s": cpu_s, "gib": gib, "loop_s": loop_s})
        print(
            f"{row.nodes * 8:5} ranks, {row.options}: {cpu_s:.1f} CPU s (at most {row.max_cpu_s}), "
            f"{gib:.2f} GiB (at most {row.max_gib}), {cpu_s / loop_s:.0f} loops of {NUM_CALLS} "
            f"additions, {time.perf_counter() - began:.0f} s; "
            f"simulated step {step.group(1) if step else '?'} ms; "
            f"{running.group(0) if running else 'all ranks run'}",
            flush=True,
        )
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))
    sys.exit(is_over)


if __name__ == "__main__":
    main()
