"""Compare the order of calls under two hash seeds: real ranks have a seed each.

A program that calls collectives in the order of a set hangs on real processes and passes here. One
more run, in a process with another `PYTHONHASHSEED`, makes other calls then.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrank.distributed.flight_recorder import PREFIX
from simrank.errors import SimrankError
from simrank.errors.base import place_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.distributed.flight_recorder import FlightRecorder

_VARIABLE = "PYTHONHASHSEED"


def check_hash_seeds(recorder: FlightRecorder, words: Sequence[str], num_ranks: int) -> None:
    """Run a program in a process with another hash seed, and compare the calls of each rank.

    Args:
        recorder: What recorded this run.
        words: Options of `simrank run`, the program and its arguments.
        num_ranks: The number of ranks.

    Raises:
        SimrankError: The calls differ, or the run with the other seed fails.
    """
    seed = "2" if os.environ.get(_VARIABLE) == "1" else "1"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "simrank", "run", "--checks", "off", "--summary", "none"]
        command += ["--flight-recorder", folder, *words]
        environment = {**os.environ, _VARIABLE: seed}
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", check=False
        )
        if ended.returncode:
            tail = "\n".join(ended.stderr.strip().splitlines()[-12:])
            raise SimrankError(f"with {_VARIABLE}={seed} the run fails (proved):\n{tail}")
        for rank in range(num_ranks):
            other = pickle.loads(Path(folder, f"{PREFIX}{rank}").read_bytes())
            difference = _difference(recorder.dump(rank)["entries"], other["entries"])
            if difference is not None:
                raise SimrankError(
                    f"calls depend on the hash seed (proved): rank {rank} {difference} "
                    f"with {_VARIABLE}={seed}; real ranks have a seed each\n"
                    "  to fix: sort what is iterated over, such as a set of names"
                )


def _difference(own: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> str | None:
    """Return the first call that two runs of a rank do not share; None: they are equal."""
    for mine, its in zip(own, other, strict=False):
        if _call_of(mine) != _call_of(its):
            return f"calls {_text(mine)}, and {_text(its)}"
    if len(own) != len(other):
        return f"makes {len(own)} calls, and {len(other)}"
    return None


def _call_of(entry: dict[str, Any]) -> tuple[object, ...]:
    """Return the facts of a call on which real ranks must agree."""
    names = ("process_group", "profiling_name", "input_sizes", "output_sizes", "input_dtypes")
    return tuple(str(entry.get(name)) for name in names)


def _text(entry: dict[str, Any]) -> str:
    """Return `nccl:all_reduce at train.py:12`."""
    name, frames = str(entry["profiling_name"]), entry.get("frames") or []
    if not frames:
        return name
    return f"{name} at {place_text(frames[0]['filename'], frames[0]['line'])}"
