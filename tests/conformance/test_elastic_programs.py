"""Programs whose worlds change give on simulated ranks what they give on real gloo processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

PROGRAMS = sorted(Path(__file__).with_name("elastic_programs").glob("*.py"))


def printed(*command):
    """Return what a command prints."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True, text=True, env=environ, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_whose_world_changes_does_the_same_on_real_processes(program):
    """Deaths, processes in the place of dead ones, worlds that grow and shrink."""
    run = ("-m", "simrank", "run", "--nproc-per-node", 1, "--summary", "none", "--prefix", "none")
    simulated = printed(*run, program)
    assert simulated
    assert simulated == printed(program)
