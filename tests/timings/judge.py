"""The search of every timing, judged by the outcomes of random programs in other runs.

python -m tests.timings.generator outcomes --seeds 100 --runs 5 0 500 --to FOLDER
python -m tests.timings.judge FOLDER
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import re
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simrank import Context
from simrank.engine import TimeLimitError
from simrank.errors import SimrankError
from simrank.isolation.output import keep_lines
from simrank.multiprocessing.script import run_script
from simrank.timings.run import MetAgainError, OtherWayError
from simrank.timings.search import TimingEnd, search
from tests.timings.outcomes import is_marked, is_safe, num_ranks, outcome, simulated_end, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.timings.run import TimingRun
    from simrank.timings.search import TimingVerdict

_PER_PROCESS = 10  # Memory of runs that were cut off stays.
MAX_RUNS, LIMIT_S = 300, 120.0  # Assumed: most of the programs end within.


class TooLongError(Exception):
    """The time for a program is over."""


def runner(path: Path) -> Callable[[TimingRun], TimingEnd]:
    """Return a function that runs a program in a timing."""
    text = path.read_text()

    def run(timing: TimingRun) -> TimingEnd:
        context = Context(timing=timing, races="report", time_limit_s=60.0)
        lines = keep_lines(context.program)
        end, hidden = "returned", io.StringIO()
        try:
            with redirect_stdout(hidden), redirect_stderr(hidden), context:
                run_script(context.program, path, [], num_ranks(text))
        except (MetAgainError, OtherWayError):
            raise
        except TimeLimitError:
            end = "time limit"
        except SimrankError as error:
            end = simulated_end(error, is_plain=is_marked(text, "plain"))
        return seen_of(outcome(text_of(lines()), end), tuple(map(str, context.races)))

    return run


def seen_of(found: tuple[Sequence[str], str], findings: tuple[str, ...] = ()) -> TimingEnd:
    """Return an outcome as the search compares it: lines by the rank that they begin with."""
    lines: dict[tuple[int, str], list[str]] = {}
    for line in found[0]:
        who = line[1:].partition(":")[0]
        lines.setdefault((0, who), []).append(line)
    return TimingEnd(found[1], lines, findings)


def judge(path: Path, max_runs: int, limit_s: float) -> dict[str, Any]:
    """Search a program; compare with the outcomes that are written beside it."""
    begun = time.monotonic()

    def on_progress(*_: int) -> None:
        if time.monotonic() - begun > limit_s:
            raise TooLongError

    text = path.read_text()
    kinds = re.search(r"^# kinds: (.*)$", text, re.MULTILINE)
    found: dict[str, Any] = {
        "name": path.stem, "is_safe": is_safe(text), "kinds": kinds[1] if kinds else ""
    }  # fmt: skip
    try:
        verdict = search(runner(path), max_runs, on_progress=on_progress)
    except TooLongError:
        return found | {"problems": [f"over {limit_s} s"], "missed": [], "num_runs": -1}
    found |= {"problems": verdict.problems, "missed": missed(path, verdict)}
    found |= {"num_runs": verdict.num_runs, "num_met": verdict.num_met}
    found["is_in_part"] = verdict.has_more_outputs
    return found | {"s": time.monotonic() - begun}


def missed(path: Path, verdict: TimingVerdict) -> list[Any]:
    """Return the outcomes of other runs that the search has not."""
    found = []
    for name in ("seeds", "processes"):
        file = path.with_suffix(f".{name}.json")
        found += [
            [name, each["end"], each["lines"], each["runs"]]
            for each in (json.loads(file.read_text()) if file.exists() else ())
            if not verdict.covers(seen_of((each["lines"], each["end"])))
        ]
    return found


def kind_of(found: dict[str, Any]) -> str:
    """Return the class of a judgement."""
    problems = found["problems"]
    if any("stopped" in each or "over" in each for each in problems):
        return "not ended"
    if any("a few rounds" in each for each in problems):
        return "counts rounds"
    if found["missed"]:
        return "listed in part" if found["is_in_part"] else "MISSED"
    if not problems:
        return "proved" if found["is_safe"] else "proved, though it may depend on timing"
    differs = any("different" in each for each in problems)
    if found["is_safe"]:
        return "FALSE ALARM" if differs else "refused"
    return "depends" if differs else "refused, of those that may depend"


def main() -> None:
    """Judge the programs of a folder, and print what was found."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--max-runs", type=int, default=MAX_RUNS)
    parser.add_argument("--limit-s", type=float, default=LIMIT_S)
    parser.add_argument("--only", default="*")
    given = parser.parse_args()
    paths = sorted(given.folder.glob(f"{given.only}.py"))
    counts: Counter[str] = Counter()
    tasks = [(path, given.max_runs, given.limit_s) for path in paths]
    spawn = multiprocessing.get_context("spawn")
    for first in range(0, len(tasks), _PER_PROCESS):
        with ProcessPoolExecutor(1, spawn) as pool:
            for found in pool.map(_judge, tasks[first : first + _PER_PROCESS]):
                kind = kind_of(found)
                counts[kind] += 1
                to = given.folder / f"{found['name']}.judged.json"
                to.write_text(json.dumps(found, indent=1))
                print(found["name"], kind, found["num_runs"], found["kinds"], flush=True)  # noqa: T201
    print(dict(counts))  # noqa: T201 - its purpose


def _judge(task: tuple[Path, int, float]) -> dict[str, Any]:
    return judge(*task)


if __name__ == "__main__":
    main()
