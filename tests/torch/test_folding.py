"""Torch programs of which some ranks represent others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

if shutil.which("g++") is None:
    pytest.skip("no compiler for simulated devices", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped")  # torch's own.
PROGRAMS = Path(__file__).parent / "folded_programs.py"


@pytest.fixture
def run(cli):
    """Run a program; return its steps, times and memory of its ranks, and standard error."""

    def run_kind(kind, *options):
        options = ["--nnodes", "2", "--shape-only", "--unknown", "0", *options]
        status, out, err = cli("run", "--cluster", "h100_ib", *options, PROGRAMS, kind)
        assert status == 0, err
        lines = [line for line in err.splitlines() if line.startswith(("simulated", "  rank"))]
        return [line for line in out.splitlines() if line.startswith("[rank0]: step")], lines, err

    return run_kind


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("fsdp", "1 of 16 ranks run (folded: world 16)"),
        ("hsdp", "2 of 16 ranks run (folded: shard 8)"),
        ("tensor", "1 of 16 ranks run (folded: dp 4, tp 4)"),
        ("pipeline", "4 of 16 ranks run (folded: dp 4)"),
    ],
)
def test_steps_and_memory_are_those_of_all_ranks(run, kind, found):
    """To the picosecond and to the byte; which axes are alike is found."""
    steps, lines, err = run(kind)
    assert f"simrank: {found}" in err
    assert (steps, lines) == run(kind, "--fold", "none")[:2]


def test_a_rank_that_prints_its_loss_runs_for_itself(run):
    """Broadcasts at the start end one by one: the whole differs by that, the steps do not."""
    steps, _, err = run("ddp")
    assert "the first rank along world runs for itself" in err
    assert "2 of 16 ranks run (folded: world 16)" in err
    assert steps == run("ddp", "--fold", "none")[0]
