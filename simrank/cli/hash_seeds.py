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
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.cli.common import ended_by_sigterm
from simrank.distributed.flight_recorder import PREFIX
from simrank.errors import SimrankError
from simrank.errors.base import place_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.distributed.flight_recorder import FlightRecorder

_VARIABLE = "PYTHONHASHSEED"
_MAX_RUNS = 4  # Assumed: of two names in a set, one run in eight misses the other order.
_NUM_REPEATS = 2  # Assumed: of two seeds that differ; the system's random numbers differ in one.


class _Ran(NamedTuple):
    """A run in a process of its own.

    Attributes:
        seed: Its hash seed.
        failure: The end of its error output; None where it passed.
        calls: The calls of each rank.
    """

    seed: str
    failure: str | None
    calls: list[Sequence[dict[str, Any]]]


def check_hash_seeds(recorder: FlightRecorder, words: Sequence[str], num_ranks: int) -> str | None:
    """Run a program in a process with another hash seed, and compare the calls of each rank.

    Where they differ from this run's, further seeds are tried: only what differs between two of
    them, and not between runs with one of them, is due to the seed, else to something that an
    earlier run has left, such as a file, or to random numbers of the system.

    Args:
        recorder: What recorded this run.
        words: Options of `simrank run`, the program and its arguments.
        num_ranks: The number of ranks.

    Returns:
        A remark where the program differs from run to run, but not with the seed; or None.

    Raises:
        SimrankError: The calls differ, or the run with one seed fails and that with another not.
    """
    used = os.environ.get(_VARIABLE)
    seeds = [str(seed) for seed in range(1, _MAX_RUNS + 2) if str(seed) != used][:_MAX_RUNS]
    calls = [recorder.dump(rank)["entries"] for rank in range(num_ranks)]
    first = _run(words, num_ranks, seeds[0])
    if first.failure is None and _differing(calls, first.calls) is None:
        return None
    for seed in seeds[1:]:
        other = _run(words, num_ranks, seed)
        text = _dependence(first, other)
        if text is None:
            continue
        repeated = (ran for _ in range(_NUM_REPEATS) for ran in (first, other))
        if all(_dependence(ran, _run(words, num_ranks, ran.seed)) is None for ran in repeated):
            raise SimrankError(text)
        return (
            "further runs of the program make other calls even with one hash seed, as with random "
            "numbers of the system or a file of the run before; hash seeds were not compared"
        )
    did = "makes other calls" if first.failure is None else "fails"
    return (
        f"a further run of the program {did}, with every hash seed: something is left of the "
        "run before, such as a file; hash seeds were not compared with this run"
    )


def _dependence(one: _Ran, other: _Ran) -> str | None:
    """Return the difference of two runs as the text of an error; None: they are equal."""
    if (one.failure is None) != (other.failure is None):
        failed, passed = (one, other) if other.failure is None else (other, one)
        return (
            f"with {_VARIABLE}={failed.seed} the run fails (proved), with {passed.seed} it "
            f"does not:\n{failed.failure}"
        )
    difference = _differing(one.calls, other.calls)
    return difference and (
        f"calls depend on the hash seed (proved): with {_VARIABLE}={one.seed} "
        f"{difference} with {other.seed}; real ranks have a seed each\n"
        "  to fix: sort what is iterated over, such as a set of names"
    )


def _run(words: Sequence[str], num_ranks: int, seed: str) -> _Ran:
    """Run a program in a process with a hash seed."""
    with ended_by_sigterm(), tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "simrank", "run", "--checks", "off", "--summary", "none"]
        command += ["--flight-recorder", folder, *words]
        environment = {**os.environ, _VARIABLE: seed}
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", check=False
        )
        if ended.returncode:
            return _Ran(seed, "\n".join(ended.stderr.strip().splitlines()[-12:]), [])
        paths = [Path(folder, f"{PREFIX}{rank}") for rank in range(num_ranks)]
        return _Ran(seed, None, [pickle.loads(path.read_bytes())["entries"] for path in paths])


def _differing(
    calls: Sequence[Sequence[dict[str, Any]]], others: Sequence[Sequence[dict[str, Any]]]
) -> str | None:
    """Return the first difference between two runs, with its rank; None: they are equal."""
    for rank, (own, other) in enumerate(zip(calls, others, strict=False)):
        difference = _difference(own, other)
        if difference is not None:
            return f"rank {rank} {difference}"
    return None


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
