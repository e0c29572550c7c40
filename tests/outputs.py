"""Compare what commands write, to the byte, with a commit: benchmark rows, timelines, reports.

`python tests/outputs.py COMMIT` runs the commands below in the working tree and in a clone of
COMMIT, and fails where a file differs. For changes that must not change a result.
"""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HANG = """
import simrank.distributed as dist

def work(rank, ctx):
    dist.init_process_group("nccl")
    x = ctx.ones(1024)
    dist.all_reduce(x)
    if rank != 2:
        dist.broadcast(x, src=0)
    dist.all_gather([ctx.empty(1024) for _ in range(4)], x)
    x[0].item()

import simrank
with simrank.Context("hgx_h100") as ctx:
    ctx.multiprocessing.spawn(work, args=(ctx,), nprocs=4)
"""
TORCH = """
import torch
import torch.distributed as dist

def work(rank):
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256, device="cuda"))
    for _ in range(3):
        layer(torch.ones(64, 256, device="cuda")).sum().backward()
    dist.all_reduce(torch.ones(1 << 20, device="cuda"))
    torch.cuda.synchronize()

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, nprocs=4)
"""
SIMRANK = ["-m", "simrank"]


def commands() -> dict[str, list[str]]:
    """Return the commands by name, as arguments of python; each runs in a folder of its own."""
    configs = sorted(path.stem for path in (ROOT / "configs" / "bench").glob("*.yaml"))
    files = ("benches/tp_mlp.yaml", "benches/kernels/all_reduce.yaml")
    rows = ["--json", "rows.json", "--trace", "timeline.json", "--trace-ranks", "0,1"]
    found = {name: [*SIMRANK, "bench", name, "--json", "rows.json"] for name in configs}
    found |= {Path(file).stem: [*SIMRANK, "bench", f"$ROOT/{file}", *rows] for file in files}
    found["all_to_all"] = [*SIMRANK, "bench", "all_to_all", "-b", "1M", "-e", "8M", *rows]
    found["accuracy"] = [*SIMRANK, "accuracy", "--json", "rows.json"]
    found["hang"] = ["-c", HANG]
    found["torch"] = [*SIMRANK, "run", "--trace", "timeline.json", "torch_program.py"]
    return found


def main(arguments: list[str]) -> int:
    """Compare with the commit that is named; return 1 if an output differs, 2 for bad usage."""
    if len(arguments) != 1:
        print("usage: python tests/outputs.py COMMIT")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        base, outputs = Path(folder, "base"), Path(folder, "outputs")
        subprocess.run(["git", "clone", "-q", str(ROOT), str(base)], check=True)
        subprocess.run(["git", "checkout", "-q", arguments[0]], cwd=base, check=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            differences = list(
                pool.map(lambda item: compare(*item, base, outputs), commands().items())
            )
    return any(differences)


def compare(name: str, command: list[str], base: Path, outputs: Path) -> bool:
    """Run a command in both trees; print and return whether its outputs differ."""
    folders = []
    for label, root in (("before", base), ("after", ROOT)):
        folder = outputs / name / label
        folder.mkdir(parents=True)
        run(command, root, folder)
        folders.append(folder)
    files = sorted({path.name for folder in folders for path in folder.iterdir()})
    _, different, missing = filecmp.cmpfiles(*folders, files, shallow=False)
    status = folders[1].joinpath("printed.txt").read_text().partition("\n")[0]
    verdict = f"differs in {', '.join(different + missing)}" if different or missing else "same"
    print(f"{name}: {verdict} ({', '.join(files)}; {status})", flush=True)
    return verdict != "same"


def run(command: list[str], root: Path, folder: Path) -> None:
    """Run one command of a tree in a folder, and leave what it prints there, paths made alike."""
    folder.joinpath("torch_program.py").write_text(TORCH)
    filled = [word.replace("$ROOT", str(root)) for word in command]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, *filled], cwd=folder, env=environment, check=False, capture_output=True
    )
    folder.joinpath("torch_program.py").unlink()
    printed = f"exit status {found.returncode}\n".encode() + found.stdout + found.stderr
    folder.joinpath("printed.txt").write_bytes(printed.replace(str(root).encode(), b"ROOT"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
