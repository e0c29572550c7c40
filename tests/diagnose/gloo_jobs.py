"""Jobs of real gloo processes with one planted fault each, and the records that they leave."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from simrank.distributed.flight_recorder import PREFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

NUM_RANKS = 4
PROGRAM = """
import os, signal, sys, threading, time
import torch, torch.distributed as dist
from torch._C import _distributed_c10d as c10d

fault, folder, store, after_s = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)

def dump():
    with open(folder + "/nccl_trace_rank_" + str(rank), "wb") as file:
        file.write(c10d._dump_fr_trace())
    os._exit(0)

groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
mine = groups[rank // 2]
x, y, z = torch.ones(8), torch.ones(3), torch.ones(5)
dist.barrier()
timer = threading.Timer(float(after_s), dump)
timer.daemon = True
timer.start()

def bad(name, on):
    return fault == name and rank == on and step == 4

try:
    for step in range(6 if fault != "none" else 10**9):
        if bad("exit", 1):
            break
        if fault == "none":
            time.sleep(0.01 * ((rank * 7 + step * 3) % 5))  # Batches of different sizes.
        dist.all_reduce(x)  # @first
        if bad("sleep", 3):
            time.sleep(99)  # @sleep
        if bad("raise", 0):
            raise ValueError("a bad batch")
        if bad("dead", 2):
            os._exit(9)
        if bad("stopped", 1):
            os.kill(os.getpid(), signal.SIGSTOP)
        if bad("store", 2):
            dist.distributed_c10d._get_default_store().wait(["a key that is never set"])  # @store
        if not bad("skip", 2):
            dist.broadcast(y, 0)  # @broadcast
        if bad("extra", 1):
            dist.all_reduce(y)  # @extra
        if bad("swap", 0):
            dist.all_reduce(x)  # @swap
            dist.all_reduce(x, group=mine)
        else:
            dist.all_reduce(x, group=mine)  # @pair
            dist.all_reduce(x)  # @all
        if bad("op", 3):
            dist.barrier()  # @op
        elif bad("size", 3):
            dist.all_gather([torch.zeros(5) for _ in range(world)], z)  # @size
        elif bad("dtype", 1):
            dist.all_gather([torch.zeros(3).double() for _ in range(world)], y.double())  # @dtype
        else:
            dist.all_gather([torch.zeros(3) for _ in range(world)], y)  # @gather
        if rank == 1 and not bad("unsent", 1):
            dist.send(y, 0)  # @send
        if rank == 0:
            dist.recv(y, 1)  # @recv
    if fault == "uneven" and rank == 2:
        dist.all_reduce(x)  # @more
    if fault == "ring":
        dist.recv(y, (rank - 1) % world)  # @ring
        dist.send(y, (rank + 1) % world)
    if not (fault == "pairskip" and rank == 1):
        dist.all_reduce(y, group=mine)  # @last
    dist.barrier()  # @end
except Exception as error:
    print(rank, type(error).__name__, error, flush=True)
time.sleep(99)
"""


class Fault(NamedTuple):
    """What a job does wrong, and what is right to say of it.

    Attributes:
        ranks: The culprits.
        kinds: Of the causes that are right.
        tag: Of the line to name; "" where none is.
    """

    ranks: tuple[int, ...]
    kinds: frozenset[str]
    tag: str = ""


def _fault(ranks: tuple[int, ...], kinds: str, tag: str = "") -> Fault:
    return Fault(ranks, frozenset(kinds.split(", ")), tag)


FAULTS = {
    "exit": _fault((1,), "absent, order"),
    "sleep": _fault((3,), "absent"),
    "raise": _fault((0,), "absent, no record"),
    "dead": _fault((2,), "no record"),
    "skip": _fault((2,), "skipped, order", "broadcast"),
    "extra": _fault((1,), "additional, size", "extra"),
    "swap": _fault((0,), "order", "swap"),
    "op": _fault((3,), "op", "op"),
    "uneven": _fault((2,), "additional, absent, op", "more"),
    "pairskip": _fault((1,), "skipped, absent, order", "last"),
    "stopped": _fault((1,), "no record"),
    "store": _fault((2,), "absent"),
    "size": _fault((3,), "size", "size"),
    "dtype": _fault((1,), "dtype", "dtype"),
    "unsent": _fault((0,), "absent"),  # It waits for a message, which gloo does not record.
    "ring": _fault((), "none"),  # Likewise: no recorded call is unfinished.
}


def run(name: str, folder: Path, after_s: Sequence[float] = (4,) * NUM_RANKS) -> None:
    """Run the job of a fault; its ranks write their records into a folder.

    One that was killed, stopped or has raised before writes none.

    Args:
        name: Of the fault; "none" is a right job that does not end.
        folder: For the records.
        after_s: When each rank writes its own, in seconds from the first step on.
    """
    (folder.parent / "job.py").write_text(PROGRAM)
    with tempfile.TemporaryDirectory() as place:
        store = str(Path(place) / "store")
        command = [sys.executable, str(folder.parent / "job.py"), name, str(folder), store]
        processes = [
            subprocess.Popen(
                [*command, str(after_s[rank])],
                env=os.environ | {"RANK": str(rank), "WORLD_SIZE": str(NUM_RANKS)},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
            for rank in range(NUM_RANKS)
        ]  # fmt: skip
        try:
            for rank, process in enumerate(processes):
                if (name, rank) != ("stopped", 1):
                    process.communicate(timeout=60 + after_s[rank])
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def line(tag: str) -> int:
    """Return the number of a tagged line in the program."""
    return next(n for n, text in enumerate(PROGRAM.splitlines(), 1) if text.endswith(f"# @{tag}"))


def files(folder: Path) -> list[Path]:
    """Return the records that a job has left."""
    return sorted(folder.glob(f"{PREFIX}*"))
