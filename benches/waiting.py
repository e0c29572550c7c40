"""What users wait for: whole commands, their stages, and peers that do the same, in CPU seconds.

Each command is a process of its own; its CPU time is that of all its descendants, also of those
that it leaves behind. `--against FOLDER` runs each also with the simrank of another checkout, in
turns, and prints the ratios. Values are medians: of three rounds, unless `--rounds` says otherwise.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PR_SET_CHILD_SUBREAPER = 36
AIMS = {"run of DDP": 0.70, "equal, two layouts": 0.60, "plan, four rows": 0.60}

ALL_REDUCE = """
    import torch
    import torch.distributed as dist

    dist.init_process_group({backend!r})
    x = torch.ones(1024{device})
    for _ in range(10):
        dist.all_reduce(x)
    dist.destroy_process_group()
"""
TESTS = """
    import pytest
    import torch
    import torch.distributed as dist

    import simrank

    def program(rank, seed):
        dist.init_process_group("gloo")
        torch.manual_seed(seed)
        x = torch.randn(16)
        dist.all_reduce(x)
        assert x.shape == (16,)
        dist.destroy_process_group()

    @pytest.mark.parametrize("seed", range(20))
    def test_sums(seed):
        simrank.multiprocessing.spawn(program, (seed,), 2)
"""
THREADED = """
    import torch
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import MultiThreadedTestCase

    class TestSums(MultiThreadedTestCase):
        @property
        def world_size(self):
            return 2

        def setUp(self):
            super().setUp()
            self._spawn_threads()

        def check(self, seed):
            x = torch.randn(16, generator=torch.Generator().manual_seed(seed))
            dist.all_reduce(x)
            assert x.shape == (16,)

    for seed in range(20):
        setattr(TestSums, f"test_{seed}", lambda self, seed=seed: self.check(seed))
"""
PLAN = """
    command: {program}
    clusters: [hgx_h100]
    parameters: {{nproc_per_node: [1, 2, 3, 4]}}
"""


def write(folder: Path) -> None:
    """Write the programs of the commands."""
    ddp = (ROOT / "examples" / "ddp_step.py").read_text()
    on_host = ddp.replace('"nccl"', '"gloo"').replace("torch.cuda.set_device(device)", "pass")
    on_host = re.sub(r"device = torch\.device\(.*\)", 'device = torch.device("cpu")', on_host)
    tutorial = (ROOT / "docs" / "tutorials" / "equal.md").read_text()
    found = re.search(r"```python train\.py\n(.*?)```", tutorial, re.DOTALL)
    assert found is not None, "the tutorial has it"
    files = {
        "nothing.py": "",
        "import_torch.py": "import torch\n",
        "ddp.py": ddp,
        "ddp_on_host.py": on_host.replace("device_ids=[device]", "device_ids=None"),
        "all_reduce.py": ALL_REDUCE.format(backend="nccl", device=', device="cuda"'),
        "all_reduce_on_host.py": ALL_REDUCE.format(backend="gloo", device=""),
        "test_sums.py": TESTS,
        "test_threaded.py": THREADED,
        "train.py": found[1],
        "plan.yaml": PLAN.format(program=folder / "ddp.py"),
    }
    for name, text in files.items():
        (folder / name).write_text(textwrap.dedent(text))


PYTHON = [sys.executable]
SIMRANK = [*PYTHON, "-m", "simrank"]
RUN = [*SIMRANK, "run", "--nproc-per-node", "2"]
TORCHRUN = [*PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
PYTEST = [*PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
# Stages add up: each line does what the one before does, and more.
STAGES = {
    "python": [*PYTHON, "-c", "pass"],
    "the command line": [*SIMRANK, "--version"],
    "ranks, without torch": [*RUN, "nothing.py"],
    "import torch in ranks": [*RUN, "import_torch.py"],
    "run of all_reduce": [*RUN, "all_reduce.py"],
    "run of DDP": [*RUN, "ddp.py"],
}
COMMANDS = {
    "pytest, 20 tests of two ranks": [*PYTEST, "test_sums.py"],
    "equal, two layouts": [*SIMRANK, "equal", "train.py", "--layout", "tp=2", "--layout", "tp=4"],
    "plan, four rows": [*SIMRANK, "plan", "plan.yaml"],
}
BARE = [*PYTHON, "import_torch.py"]
PEERS = {
    "run of all_reduce": ("torchrun, gloo", [*TORCHRUN, "all_reduce_on_host.py"]),
    "run of DDP": ("torchrun, gloo", [*TORCHRUN, "ddp_on_host.py"]),
    "pytest, 20 tests of two ranks": ("torch's threads", [*PYTEST, "test_threaded.py"]),
}


def cpu_s(command: list[str], folder: Path, simrank: Path) -> tuple[float, float]:
    """Return the CPU time of a command and its descendants, and the time until it ended."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(simrank), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # Users keep compiled modules.
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    wall_s = time.perf_counter() - start
    if ended.returncode not in (0, 1):  # The layouts of the tutorial differ.
        raise SystemExit(f"{command}: status {ended.returncode}\n{ended.stderr}")
    with suppress(ChildProcessError):
        while True:
            os.wait()  # What it left behind is this process's child now.
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall_s


def measured(
    commands: dict[str, list[str]], rounds: int, folder: Path, checkouts: list[Path]
) -> dict[str, dict[Path, list[tuple[float, float]]]]:
    """Return the times of each command by checkout, in turns so that all see the same machine."""
    times: dict[str, dict[Path, list[tuple[float, float]]]] = {
        name: {each: [] for each in checkouts} for name in commands
    }
    for _ in range(rounds):
        for name, command in commands.items():
            for each in checkouts:
                times[name][each].append(cpu_s(command, folder, each))
    return times


def median(times: list[tuple[float, float]], which: int = 0) -> float:
    """Return the median of CPU times, or of wall times (1)."""
    return statistics.median(each[which] for each in times)


def main() -> None:
    """Print the tables, and whether the aims hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="a checkout of another version")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    checkouts = [ROOT, *([asked.against.resolve()] if asked.against else [])]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        own = measured({**STAGES, **COMMANDS}, asked.rounds, folder, checkouts)
        peers = {name: command for name, (_, command) in PEERS.items()}
        others = measured({"bare": BARE, **peers}, asked.rounds, folder, checkouts[:1])
    bare = median(others.pop("bare")[ROOT])
    print(f"a bare import of torch: {bare:.2f} CPU s\n")
    print(f"{'':32} CPU s  wall s  over bare  stage  of other  beside peer")
    rows, previous = [], 0.0
    for name, by_checkout in own.items():
        used, wall = median(by_checkout[ROOT]), median(by_checkout[ROOT], 1)
        row: dict[str, Any] = {
            "command": name,
            "cpu_s": used,
            "wall_s": wall,
            "over_bare_s": used - bare,
        }
        stage = f"{used - previous:5.2f}" if name in STAGES and name != "run of DDP" else ""
        previous = used
        if asked.against:
            pairs = zip(by_checkout[ROOT], by_checkout[checkouts[1]], strict=True)
            row["of_other"] = statistics.median(ours[0] / theirs[0] for ours, theirs in pairs)
        if name in others:
            row["peer"] = PEERS[name][0]
            row["beside_peer"] = used / median(others[name][ROOT])
        of_other = f"{row['of_other']:.2f}" if "of_other" in row else ""
        beside = f"{row['beside_peer']:.2f} of {row['peer']}" if "peer" in row else ""
        print(
            f"{name:32} {used:5.2f}  {wall:6.2f}  {used - bare:9.2f}  {stage:>5}  {of_other:>8}  "
            f"{beside}"
        )
        rows.append(row)
    aims = [
        f"{row['command']}: {row['of_other']:.2f}, at most {AIMS[row['command']]:.2f}"
        for row in rows
        if "of_other" in row and row["command"] in AIMS
    ]
    for each in aims:
        print(f"aim: {each}")
    if asked.json:
        facts = {"machine": platform.platform(), "python": platform.python_version()}
        asked.json.write_text(json.dumps({**facts, "bare_cpu_s": bare, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
