"""Run the checks of the project, in the order in which a mistake is cheapest to find.

`python tests/check.py` runs all of them, as the README and CI do, and `python tests/check.py lint
types` only these two. `--slow` adds all slow tests, the check `slow` is a tenth of them, another
with each commit. Four checks need torch:
`torch-types` checks types against torch's own, `torch` has the tests of torch programs,
`after-torch` all tests in processes that import torch first, `releases` what another release of
torch is tried with first. `foreign NAME` runs another project's suite (`tests/foreign`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

# A worker per core, each with whole files, so that fixtures of a module are made once. The limit is
# for tests that hang: none takes a minute, and a busy machine makes none fail.
PYTEST = [
    "pytest", "-q", "-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder",
    "--timeout", "600", "--durations", "10",
]  # fmt: skip
# `tests/conftest.py` imports torch before tests are collected, also those that do not use it.
AFTER_TORCH = ["SIMRANK_TEST_AFTER=torch", *PYTEST]

CHECKS = {
    "format": ["ruff", "format", "--check", "."],
    "lint": ["ruff", "check", "."],
    "types": ["mypy"],
    "imports": ["lint-imports", "--no-cache"],
    "house": ["python", "tests/house.py"],
    "guides": ["python", "tests/guide_types.py"],
    "docs": ["NO_MKDOCS_2_WARNING=1", "mkdocs", "build", "--strict", "--quiet"],
    "tests": PYTEST,
}
# With torch: not among all checks, which need none.
TORCH = {
    "torch-types": ["mypy"],  # `types` takes torch's classes for Any where it is not installed.
    # Once torch is imported ranks are threads: of `multiprocessing`, spawn says what this changes.
    "torch": [
        *AFTER_TORCH, "tests/torch", "tests/conformance", "tests/validate/test_this_worker.py",
        "tests/test_guides.py", "tests/test_examples.py", "tests/engine/test_carrier.py",
        "tests/multiprocessing/test_spawn.py", "tests/multiprocessing/test_carriers.py",
        "tests/equality", "tests/cli/test_equal.py", "tests/validate/kit",
        "tests/diagnose/test_torchs_analyser.py",
        "-k", "torch or examples or conformance or test_this_worker or test_carrier"
        " or multiprocessing or equal or kit",
    ],
    "after-torch": AFTER_TORCH,
    # Under a minute: what another release of torch is tried with first.
    "releases": [
        *AFTER_TORCH, "tests/torch/test_contacts.py", "tests/torch/test_releases.py",
        "tests/isolation/test_contracts.py",
    ],
}  # fmt: skip
# Installs packages from an index, and takes minutes: not among all checks either.
FOREIGN = {"foreign": ["python", "tests/foreign_suites.py"]}
# The subjects of commits need a clone with its history; packages are built and installed.
MORE = {"commits": ["python", "tests/commits.py"], "package": ["python", "tests/package.py"]}
SLOW = {"slow tests": [*PYTEST, "-m", "slow"]}
TENTH = "SIMRANK_SLOW_TENTH"  # `tests/conftest.py` leaves out the tests of the others.


def tenth() -> dict[str, list[str]]:
    """Return the check of a tenth of the slow tests: by the number of commits; 0 without git."""
    asked = os.environ.get(TENTH)
    if asked is None:
        counted = subprocess.run(
            ["git", "rev-list", "--count", "HEAD"], cwd=ROOT, check=False, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        ) if shutil.which("git") else None  # fmt: skip
        asked = counted.stdout.strip()[-1:] if counted and not counted.returncode else "0"
    return {"slow": [f"{TENTH}={asked}", *PYTEST, "-m", "slow"]}


def main(arguments: list[str]) -> int:
    """Run the checks that are named, or all of them; return 1 if one failed, 2 for a wrong name."""
    if arguments[:1] == ["foreign"]:  # With names of recipes, and its own options.
        command = [sys.executable, *FOREIGN["foreign"][1:], *arguments[1:]]
        return subprocess.run(command, check=False, cwd=ROOT).returncode
    names = [argument for argument in arguments if argument != "--slow"]
    known = CHECKS | TORCH | FOREIGN | MORE | tenth()
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no check is called {unknown[0]!r}; choices: {', '.join(known)}, --slow")
        return 2
    chosen = {name: known[name] for name in names or CHECKS}
    if "--slow" in arguments:
        chosen |= SLOW
    # Tests use all cores; the checks before them use one each, and run side by side.
    quick = {name: command for name, command in chosen.items() if "pytest" not in command}
    failed = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, found in zip(quick, pool.map(passes, quick.values()), strict=True):
            print(f"== {name}: {found.cost}\n{found.printed}", end="", flush=True)
            failed += [] if found.is_passed else [name]
    for name in (name for name in chosen if name not in quick):
        print(f"== {name}", flush=True)
        if name == "slow":
            again = f"{chosen[name][0]} python tests/check.py slow"
            print(
                f"one tenth of the slow tests, by the number of commits; again: {again}", flush=True
            )
        found = passes(chosen[name], shows=True)
        print(f"== {name}: {found.cost}", flush=True)
        failed += [] if found.is_passed else [name]
    print(f"== failed: {', '.join(failed)}" if failed else "== all checks passed", flush=True)
    return bool(failed)


class Passed(NamedTuple):
    """Whether a check passed, its output unless that was shown as it came, and its cost."""

    is_passed: bool
    printed: str
    cost: str


def passes(command: list[str], *, shows: bool = False) -> Passed:
    """Run one check: variables of its environment, a tool and its options."""
    variables = dict(word.split("=", 1) for word in command if word[:1].isupper())
    tool, *options = command[len(variables) :]
    environment = {"SIMRANK_TEST_ORDER": "1"} | os.environ  # No test depends on another.
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"} | variables
    environment["PYTHONDONTWRITEBYTECODE"] = ""  # Tests start processes, which would compile again.
    start = time.perf_counter()
    with subprocess.Popen(
        [str(BIN / tool), *options], cwd=ROOT, env=environment, text=True,
        stdout=None if shows else subprocess.PIPE, stderr=None if shows else subprocess.STDOUT,
    ) as check:  # fmt: skip
        printed = check.stdout.read() if check.stdout else ""
        _, status, used = os.wait4(check.pid, 0)
        check.returncode = os.waitstatus_to_exitcode(status)
    # A busy machine changes the wall time, a change that costs something both.
    cpu_s, wall_s = used.ru_utime + used.ru_stime, time.perf_counter() - start
    return Passed(not check.returncode, printed, f"{cpu_s:.0f} CPU s in {wall_s:.0f} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
