"""Outcomes of programs: in seeded simulated runs, and on real processes with random sleeps.

An outcome is the lines that ranks print, and how the program ends. Lines of different ranks have no
order.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrank import Context
from simrank.engine import TimeLimitError
from simrank.engine.delays import DEFAULT_MAX_PS, Delays
from simrank.errors import DeadlockError, LivelockError, SimrankError, SpawnException
from simrank.isolation.output import keep_lines
from simrank.multiprocessing.script import run_script

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Outcome = tuple[tuple[str, ...], str]
    Outcomes = dict[Outcome, list[str]]  # The runs that had it.

JITTER = "TIMING_JITTER_SEED"
LIMIT_S = 20.0  # Of a run on real processes that may be in a deadlock; a usual one takes 0.5 s.
_LONG_DELAY_PS = 50 * DEFAULT_MAX_PS  # As long as the longest sleep of `jitter`.
_LINE = re.compile(r"r(\w+): ?")
_ENDLESS = DeadlockError, LivelockError  # A run on real processes cannot tell them apart.
# Errors of the other ranks, once a rank has ended with its own.
_OF_PEERS = ("RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError")


def num_ranks(text: str) -> int:
    """Return the number of ranks of a program."""
    found = re.match(r"# ranks: (\d+)", text)
    assert found is not None, "the first line of a program states its ranks"
    return int(found[1])


def is_marked(text: str, mark: str) -> bool:
    """Return whether the first line of a program has a mark, such as "plain"."""
    return f"# {mark}" in text.partition("\n")[0]


def is_safe(text: str) -> bool:
    """Return whether a program says that its output does not depend on timing."""
    return "# timing: safe\n" in text


def has_endless_counts(text: str) -> bool:
    """Return whether a program prints the turns of a polling loop that timing can make endless."""
    counts = re.findall(r'say\("(?:polls|barrier)", (n\d+)\)', text)
    return any(not re.search(rf"while .* and {count} < ", text) for count in counts)


def outcome(text_of_stdout: str, end: str) -> Outcome:
    """Return the normal form of an outcome.

    Args:
        text_of_stdout: The lines of all ranks, each with its prefix `r<rank>:`.
        end: "returned", "deadlock", or an exception such as "AssertionError on rank 1".

    Returns:
        The lines sorted by rank, each rank's in its order, and the end. After an exception only the
        lines of its rank: how far the others came before they were ended is no outcome.
    """
    lines = [line for line in text_of_stdout.splitlines() if _LINE.match(line)]
    lines.sort(key=_rank_of)
    if " on rank " in end:
        failed = end.rpartition(" ")[2]
        lines = [line for line in lines if _rank_of(line) == failed]
    return tuple(lines), end


def _rank_of(line: str) -> str:
    found = _LINE.match(line)
    assert found is not None, "only lines of ranks are sorted"
    return found[1]


def _failure(kinds: dict[int, str], *, is_plain: bool) -> str:
    """Return the end of a run by the exceptions of its ranks."""
    causes = {rank: kind for rank, kind in kinds.items() if kind not in _OF_PEERS} or kinds
    rank = min(causes)
    return f"{causes[rank]} on rank {'main' if is_plain else rank}"


# ---- simulated runs ----


def by_seeds(program_text: str, seeds: Iterable[int], *, time_limit_s: float = 60.0) -> Outcomes:
    """Run a program with the delays and with the random sleeps of each seed; sometimes without.

    Returns:
        The runs of each outcome, for example "delays 17".
    """
    found: Outcomes = defaultdict(list)
    with _file(program_text) as path:
        for seed in seeds:
            max_ps = DEFAULT_MAX_PS if seed % 2 else _LONG_DELAY_PS
            delays = Delays(seed + 1, max_ps=max_ps)
            names = ["delays", "sleeps", *(["neither"] if seed % 10 == 0 else [])]
            for name in names:
                given: dict[str, Any] = {"seed": seed, "time_limit_s": time_limit_s}
                given |= {"delays": delays} if name == "delays" else {}
                with _sleeps(seed if name == "sleeps" else None):
                    found[simulated(program_text, path, **given)].append(f"{name} {seed}")
    return dict(found)


@contextmanager
def _sleeps(seed: int | None) -> Iterator[None]:
    """Have programs that run in the block sleep at random, unless the seed is None."""
    if seed is not None:
        os.environ[JITTER] = str(seed)
    try:
        yield
    finally:
        os.environ.pop(JITTER, None)


def simulated(program_text: str, path: Path, **settings: Any) -> Outcome:
    """Run a program once in a Context with these settings; return its outcome."""
    context = Context(**settings)
    lines = keep_lines(context.program)
    hidden = io.StringIO()
    end = "returned"
    try:
        with redirect_stdout(hidden), redirect_stderr(hidden), context:
            run_script(context.program, path, [], num_ranks(program_text))
    except TimeLimitError:
        end = "time limit"
    except SimrankError as error:
        end = simulated_end(error, is_plain=is_marked(program_text, "plain"))
    return outcome(text_of(lines()), end)


def text_of(lines: Mapping[tuple[int, str], Sequence[str]]) -> str:
    """Return the standard output of ranks and their processes."""
    return "".join("\n".join(each) for (_, stream), each in lines.items() if "stdout" in stream)


def simulated_end(error: SimrankError, *, is_plain: bool) -> str:
    if isinstance(error, _ENDLESS):
        return "deadlock"
    if isinstance(error, SpawnException) and error.errors:
        causes = {rank: type(each).__name__ for rank, each in error.errors.items()}
        if any(isinstance(each, _ENDLESS) for each in error.errors.values()):
            return "deadlock"
        return _failure(causes, is_plain=is_plain)
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


@contextmanager
def _file(text: str) -> Iterator[Path]:
    """Yield a file that has the text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(text)
        yield path


# ---- real processes ----


def by_processes(program_text: str, runs: Iterable[int], *, limit_s: float = LIMIT_S) -> Outcomes:
    """Run a program on real processes with the random sleeps of each seed in `runs`.

    Returns:
        The runs of each outcome. A run of which no rank has ended is a deadlock after `limit_s`.
    """
    found: Outcomes = defaultdict(list)
    run = _run_plain if is_marked(program_text, "plain") else _run_ranks
    with _file(program_text) as path:
        for seed in runs:
            text, end = run(path, num_ranks(program_text), seed, limit_s)
            found[outcome(text, end)].append(f"processes {seed}")
    return dict(found)


def _run_plain(path: Path, _: int, seed: int, limit_s: float) -> tuple[str, str]:
    """Run a program that starts its own processes."""
    environment = os.environ | {JITTER: str(seed)}
    environment.pop("PYTHONUNBUFFERED", None)  # It would write the parts of a line one by one.
    with subprocess.Popen(
        [sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            text, errors = process.communicate(timeout=limit_s + 20)  # Each process imports torch.
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return process.communicate()[0], "deadlock"
    end = _failure({0: _kind_of(errors)}, is_plain=True) if process.returncode else "returned"
    return text, end


def _run_ranks(path: Path, size: int, seed: int, limit_s: float) -> tuple[str, str]:
    """Run a program on ranks with torchrun's environment, forked from a process with torch."""
    from torch.distributed import TCPStore

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", __name__])
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # As torchrun's agent.
    folder = path.parent
    processes = [
        context.Process(target=_rank, args=(path, rank, size, store.port, seed))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    deadline = time.monotonic() + limit_s
    while any(each.exitcode is None for each in processes) and time.monotonic() < deadline:
        if any(each.exitcode for each in processes):
            break
        time.sleep(0.01)
    codes = [each.exitcode for each in processes]
    for process in processes:
        process.kill()
        process.join()
    text = "".join((folder / f"stdout{rank}").read_text() for rank in range(size))
    failed = {
        rank: _kind_of((folder / f"stderr{rank}").read_text())
        for rank, code in enumerate(codes)
        if code
    }
    if failed:
        return text, _failure(failed, is_plain=False)
    return text, "deadlock" if None in codes else "returned"


def _rank(path: Path, rank: int, size: int, port: int, seed: int) -> None:
    """Run the program as a rank, in its process."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(path.parent / f"{name}{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
        JITTER: str(seed),
    }  # fmt: skip
    runpy.run_path(str(path), run_name="__main__")


def _kind_of(errors: str) -> str:
    """Return the type of the exception at the end of a process's errors."""
    found = re.findall(r"^([A-Za-z_.]+)(?::|$)", errors, re.MULTILINE)
    kinds = [name for name in found if name.endswith(("Error", "Exception", "Empty"))]
    return kinds[-1].rpartition(".")[2] if kinds else "killed"


# ---- a folder of outcomes ----


def write_outcomes(folder: Path, name: str, text: str, num_seeds: int, num_runs: int) -> None:
    """Write a program, and the outcomes of its simulated and real runs, to files of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    if num_seeds:
        _write(folder / f"{name}.seeds.json", by_seeds(text, range(num_seeds)))
    if num_runs and not is_marked(text, "simulated only"):
        _write(folder / f"{name}.processes.json", by_processes(text, range(1, num_runs + 1)))


def _write(path: Path, outcomes: Outcomes) -> None:
    entries = [
        {"lines": lines, "end": end, "count": len(runs), "runs": runs[:5]}
        for (lines, end), runs in sorted(outcomes.items())
    ]
    path.write_text(json.dumps(entries, indent=1) + "\n")
