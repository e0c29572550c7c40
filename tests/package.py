"""Build the wheel and the sdist, check their metadata, and use both in empty environments.

`python tests/check.py package` needs `pip install -e ".[package]"`. No compiler is used.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TYPED = """
import simrank
import simrank.distributed as dist


def work(rank: int, ctx: simrank.Context) -> None:
    dist.init_process_group("nccl")
    x = ctx.full((4,), float(rank))
    dist.all_reduce(x)
    assert x[0].item() == 1.0


with simrank.Context("hgx_h100") as ctx:
    ctx.multiprocessing.spawn(work, args=(ctx,), nprocs=2)
"""


def main() -> int:
    """Build and try; return 1 if a step fails."""
    with tempfile.TemporaryDirectory() as folder:
        dist, place = Path(folder, "dist"), Path(folder)
        run([sys.executable, "-m", "build", "--outdir", str(dist), str(ROOT)], ROOT)
        files = sorted(dist.iterdir())
        run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)], ROOT)
        for file in files:
            print(f"{file.name}: {file.stat().st_size / 2**20:.1f} MiB", flush=True)
            if file.suffix == ".whl":
                check_page(file)
            use(file, place / file.suffix[1:])
    return 0


def check_page(wheel: Path) -> None:
    """Raise if the page of a package index has a relative link."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        page = archive.read(name).decode().partition("\n\n")[2]
    links = re.findall(r"\]\((?!https?:)[^)]*\)", page)
    assert not links, links
    assert "# simrank" in page


def use(file: Path, folder: Path) -> None:
    """Install a file in an empty environment without a compiler, run it, and check its types."""
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv" / "bin" / "python")
    constraints = ["-c", str(ROOT / "constraints.txt")]
    run([python, "-m", "pip", "install", "-q", *constraints, str(file), "mypy"], folder)
    environment = {"CC": "/nonexistent/cc", "CXX": "/nonexistent/cxx"}
    (folder / "typed.py").write_text(TYPED)
    run([python, "typed.py"], folder, environment)
    run([python, "-m", "mypy", "--strict", "typed.py"], folder)
    run([python, "-m", "simrank", "bench", "all_reduce", "-b", "1M", "-e", "1M"], folder)
    run([python, "-m", "simrank", "clusters"], folder)


def run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    """Run a command; show its output and raise if it fails."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(
        command, cwd=folder, env=variables | (environment or {}), check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if found.returncode:
        print(found.stdout)
        raise SystemExit(f"failed: {' '.join(command)}")


if __name__ == "__main__":
    sys.exit(main())
