"""Check the subjects of commits: imperative, short, and in the field's words.

`python tests/check.py commits` checks the commits since this file was added, `python
tests/commits.py BASE` the commits after BASE.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.language import breaches_of_subject  # noqa: E402 - found from any folder


def first() -> str:
    """Return the commit that added this file: subjects of older commits follow no rule."""
    added = ["log", "--diff-filter=A", "--format=%h", "--", str(Path(__file__).relative_to(ROOT))]
    return git(*added).stdout.partition("\n")[0]


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in the project's folder."""
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True
    )


def main(arguments: list[str]) -> int:
    """Print each breach with its commit; return 1 if there is one, 2 if the base is unknown."""
    base = arguments[0] if arguments else first()
    found = git("log", "--no-merges", "--format=%h %s", f"{base}..HEAD")
    if not base or found.returncode:
        print(f"unknown base {base!r}: {found.stderr.strip()}\n  to fix: git fetch --unshallow")
        return 2
    subjects = [line.partition(" ")[::2] for line in found.stdout.splitlines()]
    breaches = [(name, each) for name, text in subjects for each in breaches_of_subject(text)]
    for name, breach in breaches:
        print(f"{name}: {breach}")
    print(f"{len(subjects)} commits since {base}, {len(breaches)} breaches")
    return bool(breaches)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
