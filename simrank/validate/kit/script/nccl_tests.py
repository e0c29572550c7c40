"""nccl-tests, where it is installed: its own times beside those of torch."""

from __future__ import annotations

import re
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
# Size, count, type, redop, root, and the time out of place.
LINE = re.compile(r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+([\d.]+)\s")


def nccl_tests(ranks: int) -> list[dict[str, Any]]:
    """Return rows of the binaries that are in PATH, on as many GPUs of one process."""
    found: list[dict[str, Any]] = []
    for collective, binary in BINARIES.items():
        text = command(binary, *SIZES_ASKED, "-g", str(ranks), limit_s=15)
        for match in map(LINE.match, text.splitlines()):
            if match is None:
                continue
            size, time_us = int(match[1]), float(match[2])
            name = f"{collective} of {ranks} ranks, {size_text(size)}"
            row = {"kind": "time", "phase": NCCL_TESTS, "name": name, "time_us": time_us}
            found.append(row | {"collective": collective, "bytes": size, "ranks": ranks})
    return found
