"""Causes of hangs that `simrank diagnose` and torch's `torchfrtrace` name, on the same records.

Random programs with one fault of one rank leave records: all of them, each rank's last 20 calls,
one of ten records lost, no stacks. With `--gloo` jobs of four real processes leave them as well,
and right jobs that were cut. `torchfrtrace` names ranks per call: its first word counts.

    python -m benches.hangs --programs 100 --gloo
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import simrank
from simrank.diagnose import diagnose, read_records
from tests.diagnose import gloo_jobs, hung_jobs, torchs_analyser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AIM = 0.95  # Of the culprits, with all records.


class Case(NamedTuple):
    """Records of a job, and who is at fault."""

    folder: Path
    culprits: frozenset[int]


class Answer(NamedTuple):
    """Who is named, and an analyser's own error."""

    ranks: frozenset[int]
    error: str
    is_sure: bool = False


def said_here(folder: Path) -> Answer:
    """Return the answer of `simrank diagnose`, with its proof by replay."""
    found = diagnose(read_records([folder]))
    ranks = () if found.cause is None else found.cause.ranks
    return Answer(frozenset(ranks), "", found.confidence == "high")


def said_by_torch(folder: Path) -> Answer:
    """Return the answer of `torchfrtrace`."""
    found = torchs_analyser.said(folder)
    return Answer(frozenset(found.ranks), found.error)


def programs(seeds: range, place: Path) -> Iterator[Case]:
    """Run random programs, and yield the records of those that hang."""
    for seed in seeds:
        folder = place / str(seed)
        folder.mkdir()
        job = hung_jobs.job(seed, folder)
        if job is not None:
            yield Case(folder, frozenset([job.program.culprit]))


def varied(case: Case, kind: str, place: Path) -> Case:
    """Return the records of a job without a part of them."""
    folder = place / f"{case.folder.name} {kind}"
    shutil.copytree(case.folder, folder)
    keeps = 20 if kind == "last 20 calls" else None
    hung_jobs.changed(folder, keeps, stacks=kind != "no stacks")
    if kind == "a tenth lost":
        files = sorted(folder.iterdir())
        draw = np.random.default_rng(int(case.folder.name))
        for at in draw.choice(len(files), max(len(files) // 10, 1), replace=False):
            files[at].unlink()
    return Case(folder, case.culprits)


def of_gloo(place: Path, num_right: int) -> Iterator[tuple[str, Case]]:
    """Run the jobs of real processes."""
    for name, fault in gloo_jobs.FAULTS.items():
        folder = place / name / "records"
        folder.mkdir(parents=True)
        gloo_jobs.run(name, folder)
        yield "gloo", Case(folder, frozenset(fault.ranks))
    draw = np.random.default_rng(0)
    for number in range(num_right):
        folder = place / f"right {number}" / "records"
        folder.mkdir(parents=True)
        after_s = draw.uniform(0.2, 0.8, gloo_jobs.NUM_RANKS).tolist()
        gloo_jobs.run("none", folder, after_s)
        yield "gloo, right", Case(folder, frozenset())


def judged(case: Case, analyser: Callable[[Path], Answer]) -> Counter[str]:
    """Count what one analyser says of one job."""
    start_s = time.process_time()
    answer = analyser(case.folder)
    innocent = answer.ranks - case.culprits
    return Counter({
        "jobs": 1,
        "right": not answer.error and answer.ranks == case.culprits,
        "innocent": bool(innocent),
        "innocent, sure": bool(innocent) and answer.is_sure,
        "nothing": not answer.ranks and bool(case.culprits),
        "error": bool(answer.error),
        "cpu_s": time.process_time() - start_s,
    })  # fmt: skip


def main() -> int:
    """Print a table, and return 1 if too few culprits are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=100, help="number of random programs")
    parser.add_argument("--seed", type=int, default=0, help="of the first of them")
    parser.add_argument("--gloo", action="store_true", help="jobs of real processes, too: minutes")
    parser.add_argument("--right", type=int, default=6, help="number of right jobs with --gloo")
    parser.add_argument("--json", type=Path, help="where to store the counts")
    options = parser.parse_args()
    analysers = {"simrank diagnose": said_here}
    if importlib.util.find_spec("torch") is not None:
        analysers["torchfrtrace"] = said_by_torch
        importlib.import_module("torch")
    counts: dict[tuple[str, str], Counter[str]] = {}

    def count(kind: str, case: Case) -> None:
        for name, analyser in analysers.items():
            counts.setdefault((kind, name), Counter()).update(judged(case, analyser))

    with tempfile.TemporaryDirectory() as folder:
        for case in programs(range(options.seed, options.seed + options.programs), Path(folder)):
            count("all records", case)
            for kind in ("last 20 calls", "a tenth lost", "no stacks"):
                count(kind, varied(case, kind, Path(folder)))
        for kind, case in of_gloo(Path(folder), options.right) if options.gloo else ():
            count(kind, case)
    names = ("jobs", "right", "innocent", "innocent, sure", "nothing", "error")
    print(f"{'records':14} {'':17}" + "".join(f"{name:>15}" for name in names) + f"{'CPU s':>9}")
    for (kind, name), found in counts.items():
        numbers = "".join(f"{found[each]:15}" for each in names)
        print(f"{kind:14} {name:17}{numbers}{found['cpu_s']:9.2f}")
    if options.json:
        facts = {
            "seed": options.seed,
            "version": simrank.__version__,
            "machine": platform.platform(),
        }
        rows = {f"{kind}: {name}": dict(found) for (kind, name), found in counts.items()}
        options.json.write_text(json.dumps(facts | {"counts": rows}, indent=1) + "\n")
    whole = counts["all records", "simrank diagnose"]
    holds = whole["right"] >= AIM * whole["jobs"]
    print(f"at least {AIM:.0%} of the culprits named with all records: {'yes' if holds else 'NO'}")
    return not holds


if __name__ == "__main__":
    sys.exit(main())
