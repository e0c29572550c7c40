"""Run every check of the project, in the order in which a mistake is cheapest to find.

`python tests/check.py` is what the README, the hooks and CI run; `--slow` adds the slow tests.
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
SLOW = {"slow tests": ["pytest", "-q", "-m", "slow"]}


def main(arguments: list[str]) -> int:
    """Run the checks; return 1 if one failed."""
    checks = CHECKS | (SLOW if "--slow" in arguments else {})
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    failed = []
    for name, (tool, *options) in checks.items():
        print(f"== {name}", flush=True)
        command = [str(BIN / tool), *options]
        if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
            failed.append(name)
    print(f"== failed: {', '.join(failed)}" if failed else "== all checks passed", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
