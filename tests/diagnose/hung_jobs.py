"""Records of random programs with one fault of one rank, and what `diagnose` says of them."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, NamedTuple

from simrank.diagnose import diagnose, read_records
from simrank.distributed.flight_recorder import PREFIX, FlightRecorder
from tests.distributed import odd_programs

if TYPE_CHECKING:
    from pathlib import Path

    from simrank.diagnose import Diagnosis

FAULTS = (*odd_programs.FAULTS, *odd_programs.MORE_FAULTS)
KINDS = {  # Of the causes that are right for a fault; what a rank does next decides between them.
    "skip": {"skipped", "absent", "message", "order"},
    "continue": {"skipped", "absent", "message", "order", "op", "size"},
    "break": {"skipped", "absent", "message", "order", "op", "size"},
    "extra": {"additional", "op", "size", "order"},
    "swap": {"order", "skipped", "op", "size", "message"},
    "other": {"op", "size", "additional", "order"},
    "size": {"size"},
    "dtype": {"dtype"},
    "return": {"absent", "message"},
}


class Job(NamedTuple):
    """A job that hung.

    Attributes:
        program: What it ran.
        folder: Its records.
    """

    program: odd_programs.Program
    folder: Path


def job(seed: int, folder: Path) -> Job | None:
    """Run the program of a seed; None if its fault does no harm."""
    fault = FAULTS[seed % len(FAULTS)]
    program = odd_programs.draw(seed, fault)
    records = FlightRecorder(str(folder / PREFIX))
    if odd_programs.failure(program, f"p{seed}.py", records) is None:
        return None
    records.write()
    return Job(program, folder)


def changed(folder: Path, keeps: int | None = None, *, stacks: bool = True) -> None:
    """Leave out a part of a job's records.

    Args:
        folder: Of the records.
        keeps: How many of the last calls are kept; None: all.
        stacks: Whether lines are.
    """
    for path in sorted(folder.iterdir()):
        record = pickle.loads(path.read_bytes())
        record["entries"] = record["entries"][-(keeps or 10**6) :]
        for entry in record["entries"]:
            entry["frames"] = entry["frames"] if stacks else []
        path.write_bytes(pickle.dumps(record))


def said(found: Job, *, replay: bool = False) -> Diagnosis:
    """Return the diagnosis of a job."""
    return diagnose(read_records([found.folder]), replay=replay)
