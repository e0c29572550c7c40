"""Build the wheel and the sdist, check their metadata, and use both in empty environments.

`python tests/check.py package` needs `pip install -e ".[package]"`. No compiler is used. With
`--dist FOLDER` the built files of a folder are used, as a release does, and with `--torch VERSION`
too a torch program runs on the library that the wheel carries; that needs no package but pip.
"""

from __future__ import annotations

import argparse
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

TORCH = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
x = torch.full((1024,), float(dist.get_rank()), device="cuda")
dist.all_reduce(x)
assert x.tolist() == [6.0] * 1024
if dist.get_rank() == 0:
    print(torch.__version__, torch.cuda.get_device_name())
"""
CARRIED = """
import simrank
from simrank.torch.cuda.library import installed_path

print(installed_path().relative_to(simrank.__path__[0]))
"""


def main(arguments: list[str]) -> int:
    """Build, or take the files of a folder, and try them; return 1 if a step fails."""
    parser = argparse.ArgumentParser(description="Try the packages in empty environments.")
    parser.add_argument("--dist", type=Path, help="folder of built files [build them]")
    parser.add_argument("--torch", help="version of torch to run a program with")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        files = sorted(given.dist.resolve().iterdir()) if given.dist else build(place / "dist")
        for file in files:
            print(f"{file.name}: {file.stat().st_size / 2**20:.1f} MiB", flush=True)
            use(file, place / file.suffix[1:])
            if file.suffix == ".whl":
                check_page(file)
                if given.torch:
                    use_torch(place / file.suffix[1:], given.torch)
    return 0


def build(dist: Path) -> list[Path]:
    """Build wheel and sdist, and check their metadata."""
    run([sys.executable, "-m", "build", "--outdir", str(dist), str(ROOT)], ROOT)
    files = sorted(dist.iterdir())
    run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)], ROOT)
    return files


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


def use_torch(folder: Path, version: str) -> None:
    """Run a torch program where a wheel is installed, on the library that the wheel carries."""
    python = str(folder / "venv" / "bin" / "python")
    run([python, "-m", "pip", "install", "-q", f"torch=={version}"], folder)
    (folder / "train.py").write_text(TORCH)
    environment = {"CXX": "/nonexistent/cxx", "SIMRANK_CACHE": str(folder / "cache")}
    command = [python, "-m", "simrank", "run", "--nproc-per-node", "4", "--summary", "none"]
    print(run([*command, "train.py"], folder, environment), end="", flush=True)
    carried = run([python, "-c", CARRIED], folder, environment)
    assert carried.startswith("torch/cuda/lib/"), carried
    print(f"library of torch {version}: {carried}", end="", flush=True)


def run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    """Run a command and return its output; show it and raise if the command fails."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(
        command, cwd=folder, env=variables | (environment or {}), check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if found.returncode:
        print(found.stdout)
        raise SystemExit(f"failed: {' '.join(command)}")
    return found.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
