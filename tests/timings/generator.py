"""Random programs of torch.distributed, threads and processes, and their outcomes in many runs.

`program(seed)` is the text of a program as a user would write it. Its outcomes are collected from
seeded simulated runs (`by_seeds`, in `outcomes.py`) and from real processes with random sleeps
(`by_processes`). A search for all outcomes of a program must find each of them.

A program is a sequence of steps. A step has code for some ranks, and completes once these ranks
have come to it and all earlier steps are complete. So each order of steps that keeps the order
within each scenario is free of deadlocks, but for those that are planted.

    python -m tests.timings.generator SEED [--cuda]
    python -m tests.timings.generator outcomes --seeds 100 FIRST COUNT --to FOLDER
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from tests.timings.outcomes import by_processes, by_seeds, is_safe, outcome, write_outcomes
from tests.timings.processes import Processes
from tests.timings.ranks import Ranks

__all__ = ["by_processes", "by_seeds", "is_safe", "outcome", "program"]


def program(seed: int, *, cuda: bool = False) -> str:
    """Return the text of a random program.

    Its first line has the number of ranks, "# plain" if it starts its processes itself, and
    "# simulated only" if real gloo, whose p2p handles complete only in `wait`, may not end it. Its
    second line is "# timing: safe" if its output does not depend on timing.
    """
    rng = random.Random(f"{seed} {cuda}")
    is_safe = rng.random() < 0.4
    if not cuda and rng.random() < 0.15:
        return Processes(rng, is_safe=is_safe).text()
    return Ranks(rng, is_safe=is_safe, cuda=cuda).text()


def main() -> None:
    """Print a program, or write programs and their outcomes to a folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("what", help="the seed of a program to print, or 'outcomes'")
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("count", type=int, nargs="?", default=1)
    parser.add_argument("--seeds", type=int, default=100, help="simulated runs of each kind")
    parser.add_argument("--runs", type=int, default=0, help="runs on real processes")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--to", type=Path, default=Path("outcomes"))
    given = parser.parse_intermixed_args()
    if given.what != "outcomes":
        print(program(int(given.what), cuda=given.cuda), end="")  # noqa: T201 - its purpose
        return
    for seed in range(given.first, given.first + given.count):
        text = program(seed, cuda=given.cuda)
        name = f"{'cuda' if given.cuda else 'program'}{seed:04}"
        write_outcomes(given.to, name, text, given.seeds, given.runs)


if __name__ == "__main__":
    main()
