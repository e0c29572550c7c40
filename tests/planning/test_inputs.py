"""Inputs of a run: the files that it reads, without those of Python, packages and the system."""

import os
import subprocess
import sys

from simrank.planning.inputs import digests_of, facts, is_unchanged, surroundings

PROGRAM = """
import sys
from simrank.planning.inputs import facts, note_files
note_files()
note_files()
import json, own
from pathlib import Path
open("read.txt").close()
open(b"read.txt").close()
open("changed.txt", "r+").close()
Path("made.txt").write_text("x")
Path("made.txt").read_text()
open("/etc/hosts").close()
open("gone.txt").close()
Path("gone.txt").unlink()
with open("read.txt") as stream:
    open(stream.fileno(), closefd=False).close()
print(facts()["files_read"])
"""


def test_files_are_those_that_are_read_and_not_written(tmp_path):
    """Code that is imported, also from its bytecode, and data; nothing of Python or the system."""
    for name in ("read.txt", "changed.txt", "gone.txt", "own.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "main.py").write_text(PROGRAM)
    environment = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(2):
        (tmp_path / "gone.txt").write_text("")
        said = subprocess.run(
            [sys.executable, "main.py"],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert said.stdout == f"{[str(tmp_path / name) for name in ('own.py', 'read.txt')]}\n"


def test_a_process_that_runs_no_plan_notes_no_files():
    """The hook slows every call of `sys._getframe`."""
    assert facts() == {}


def test_a_file_that_changed_during_its_run_keeps_no_row(tmp_path):
    """Nobody knows which text the run has read."""
    path = tmp_path / "a.py"
    path.write_text("")
    age_ns = path.stat().st_mtime_ns
    assert digests_of([str(path)], tmp_path, age_ns) is None
    assert list(digests_of([str(path)], tmp_path, age_ns + 1)) == ["a.py"]


def test_a_large_file_is_known_by_its_size_and_time(tmp_path):
    """It is not read; any other by its text."""
    (tmp_path / "data.bin").touch()
    os.truncate(tmp_path / "data.bin", 2**24 + 1)
    (tmp_path / "a.py").write_text("1")
    found = digests_of([str(tmp_path / "data.bin"), str(tmp_path / "a.py")], tmp_path, 2**63)
    assert found["data.bin"].startswith("16777217 bytes at ")
    (tmp_path / "a.py").touch()
    assert all(is_unchanged(*file, tmp_path) for file in found.items())
    os.truncate(tmp_path / "data.bin", 2**24 + 2)
    assert not is_unchanged("data.bin", found["data.bin"], tmp_path)
    assert not is_unchanged("missing.py", "", tmp_path)


def test_surroundings_are_packages_and_variables_of_libraries(monkeypatch):
    """Others say nothing about a run."""
    before = surroundings()
    assert any(str(each).startswith("numpy-") for each in before[1])
    monkeypatch.setenv("SOME_NAME", "1")
    assert surroundings() == before
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    assert surroundings() != before
