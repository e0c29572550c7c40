"""Run the checks of the project, in the order in which a mistake is cheapest to find.

`python tests/check.py` runs all of them, as the README and CI do, and `python tests/check.py lint
types` only these two. `--slow` adds the slow tests; `torch` is for an environment with torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent

CHECKS = {
    "format": ["ruff", "format", "--check", "."],
    "lint": ["ruff", "check", "."],
    "types": ["mypy"],
    "imports": ["lint-imports", "--no-cache"],
    "tests": ["pytest", "-q"],
}
# With torch: not among all checks, which need none.
TORCH = {
    "torch": [
        "pytest", "-q", "tests/torch", "tests/conformance", "tests/validate/test_groups.py",
        "tests/test_guides.py", "-k", "torch or conformance or test_groups",
    ],
}  # fmt: skip
SLOW = {"slow tests": ["pytest", "-q", "-m", "slow"]}


def main(arguments: list[str]) -> int:
    """Run the checks that are named, or all of them; return 1 if one failed, 2 for a wrong name."""
    names = [argument for argument in arguments if argument != "--slow"]
    known = CHECKS | TORCH
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no check is called {unknown[0]!r}; choices: {', '.join(known)}, --slow")
        return 2
    chosen = {name: known[name] for name in names or CHECKS}
    failed = []
    for name, command in (chosen | SLOW if "--slow" in arguments else chosen).items():
        print(f"== {name}", flush=True)
        if not passes(command):
            failed.append(name)
    print(f"== failed: {', '.join(failed)}" if failed else "== all checks passed", flush=True)
    return bool(failed)


def passes(command: list[str]) -> bool:
    """Run one check."""
    tool, *options = command
    environment = {"SIMRANK_TEST_ORDER": "1"} | os.environ  # No test depends on another.
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    found = subprocess.run([str(BIN / tool), *options], cwd=ROOT, env=environment, check=False)
    return not found.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
