"""A worker: one rank of one phase, in a process of its own, or a rank that torchrun started."""

from __future__ import annotations

import os
import time
import warnings
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from simrank.validate.kit.script.children import READY
from simrank.validate.kit.script.collectives import collectives, pairs
from simrank.validate.kit.script.device_work import (
    attentions,
    copies,
    launches,
    products,
    surviving,
    warm,
)
from simrank.validate.kit.script.kernels import kernels
from simrank.validate.kit.script.machine import clocks, machine
from simrank.validate.kit.script.own import own_kernels, own_program
from simrank.validate.kit.script.programs import hang, programs
from simrank.validate.kit.script.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SINGLE: dict[str, Callable[[Rows], None]] = {
    "launches": launches,
    "copies": copies,
    "products": products,
    "attention": attentions,
    "kernels": kernels,
    "own kernels": own_kernels,
}
TOGETHER: dict[str, Callable[[Rows], None]] = {
    "collectives": collectives,
    "pairs": pairs,
    "programs": programs,
    "own program": own_program,
}


def work(phase: str, to: Path | None, limit_s: float, *, is_cold: bool = False) -> Rows:
    """Run a phase on this rank, and return its rows; cold: without a warm-up of its clocks."""
    rank = int(os.environ.get("RANK", "0"))
    rows = Rows(to, limit_s, is_writing=rank == 0)
    if phase == "machine":
        rows.add("fact", phase, values=machine())
        return rows
    warnings.simplefilter("ignore", FutureWarning)  # Newer torch has newer names as well.
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    if phase in SINGLE:
        if not is_cold:
            with surviving(rows, phase, "warm-up"):
                warm()
        SINGLE[phase](rows)
        clocks(rows)
        return rows
    dist.init_process_group("nccl", device_id=device)
    if phase in TOGETHER:
        TOGETHER[phase](rows)
        if rank == 0:
            clocks(rows)
        dist.destroy_process_group()
        return rows
    dist.barrier()
    rows.add_of_each(READY, phase, rank=rank)
    hang(phase, lambda call: rows.add_of_each("call", phase, rank=rank, call=call))
    rows.add_of_each("end", phase, rank=rank)
    time.sleep(2 * limit_s)  # The end of its process would wake the others with an error.
    return rows
