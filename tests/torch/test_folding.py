"""Torch programs of which some ranks represent others."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)

PROGRAMS = Path(__file__).parent / "folded_programs.py"


def _run(kind, *options):
    command = [
        sys.executable, "-m", "simrank", "run", "--cluster", "h100_ib", "--nnodes", "2",
        "--shape-only", "--unknown", "0", *options, str(PROGRAMS), kind,
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line for line in ended.stderr.splitlines() if line.startswith(("simulated", "  rank"))]
    shown = [line for line in ended.stdout.splitlines() if line.startswith("[rank0]: step")]
    return shown, lines, ended.stderr


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("fsdp", "1 of 16 ranks run (folded: world 16)"),
        ("hsdp", "2 of 16 ranks run (folded: shard 8)"),
        ("tensor", "1 of 16 ranks run (folded: dp 4, tp 4)"),
        ("pipeline", "4 of 16 ranks run (folded: dp 4)"),
    ],
)
def test_steps_and_memory_are_those_of_all_ranks(kind, found):
    """To the picosecond and to the byte; which axes are alike is found."""
    steps, lines, err = _run(kind)
    assert f"simrank: {found}" in err
    assert (steps, lines) == _run(kind, "--fold", "none")[:2]


def test_a_rank_that_prints_its_loss_runs_for_itself():
    """Broadcasts at the start end one by one: the whole differs by that, the steps do not."""
    steps, _, err = _run("ddp")
    assert "the first rank along world runs for itself" in err
    assert "2 of 16 ranks run (folded: world 16)" in err
    assert steps == _run("ddp", "--fold", "none")[0]
