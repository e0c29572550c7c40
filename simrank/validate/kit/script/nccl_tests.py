"""nccl-tests, where it is installed: its own times beside those of torch."""

from __future__ import annotations

import re
import shutil
import time
from typing import Any

from simrank.validate.kit.script.machine import command
from simrank.validate.kit.script.rows import size_text

NCCL_TESTS = "nccl-tests"
BINARIES = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "alltoall": "alltoall_perf",
    "sendrecv": "sendrecv_perf",
}
SIZES_ASKED = ("-b", "1K", "-e", "256M", "-f", "4")
# Size, count, type, redop, root; time, two bandwidths and errors out of place; time in place.
LINE = re.compile(
    r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+([\d.e+]+)\s+\S+\s+\S+\s+\S+\s+([\d.e+]+)\s"
)
IN_PLACE = ("all_reduce",)  # As torch does.
EACH_S = 15.0


def nccl_tests(ranks: int, end: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Run the binaries that are in PATH, on as many GPUs of one process.

    Args:
        ranks: GPUs.
        end: On the clock of `time.monotonic`, when no further one is begun.

    Returns:
        Rows, and the binaries that gave none.
    """
    found: list[dict[str, Any]] = []
    failed = []
    for collective, binary in BINARIES.items():
        left_s = end - time.monotonic()
        if shutil.which(binary) is None or left_s < 1:
            continue
        text = command(binary, *SIZES_ASKED, "-g", str(ranks), limit_s=min(EACH_S, left_s))
        matches = [each for each in map(LINE.match, text.splitlines()) if each is not None]
        failed += [] if matches else [binary]
        for match in matches:
            size, time_us = int(match[1]), float(match[3 if collective in IN_PLACE else 2])
            name = f"{collective} of {ranks} ranks, {size_text(size)}"
            row = {"kind": "time", "phase": NCCL_TESTS, "name": name, "time_us": time_us}
            facts = {"collective": collective, "bytes": size, "ranks": ranks, "processes": 1}
            found.append({**row, **facts})
    return found, failed
