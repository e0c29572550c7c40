"""Check the types of the programs in the guides, as the tools of their readers do.

Under `mypy --strict`. Untyped may be what Triton leaves untyped: the decorator and the function
of a kernel. Where torch is not installed, its classes count as of any type.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.test_guides import GUIDES, sections  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTIONS = ["--strict", "--allow-untyped-decorators", "--ignore-missing-imports"]
# What torch's own types lack: exports of torch.distributed, a device that is a text, classes.
OF_TORCH = ["--implicit-reexport", "--allow-untyped-calls"]
WITHOUT_TORCH = ["--allow-subclassing-any"]
KERNEL = re.compile(r"(@triton\.jit\ndef .*):\n")
UNTYPED = r"\1:  # type: ignore[no-untyped-def]\n"


def programs() -> Iterator[tuple[str, str]]:
    """Yield the programs of each section: its name, and the text of a program."""
    for guide in GUIDES:
        for section, _, blocks in sections(guide):
            code = [block for block in blocks if block.language == "python"]
            slug = re.sub(r"\W+", "_", section)
            shared = [] if all(block.name for block in code) else ["\n".join(b.body for b in code)]
            for number, text in enumerate(shared or [block.body for block in code]):
                yield f"{slug}_{number}", f"# {section}\n{KERNEL.sub(UNTYPED, text)}"


def main() -> int:
    """Check all of them at once; return mypy's status."""
    folder = ROOT / ".mypy_cache" / "guides"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.py"):
        old.unlink()
    has_torch = "torch" in packages_distributions()  # Not tests/torch, which is on the path.
    for name, text in programs():
        (folder / f"{name}.py").write_text(text)
    files = sorted(str(path) for path in folder.glob("*.py"))
    command = [
        sys.executable,
        "-m",
        "mypy",
        *OPTIONS,
        *(OF_TORCH if has_torch else WITHOUT_TORCH),
        *files,
    ]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
