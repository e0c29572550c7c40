"""Errors of ranks as text: reports first, without the frames of libraries."""

import os
import subprocess
import sys

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import SpawnException
from simrank.multiprocessing.tracebacks import failure_text, users_traceback


def raised(program):
    """Return what a program of two ranks ends with."""
    with pytest.raises(SpawnException) as caught, simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2)
    return caught.value


def differs(rank):
    dist.init_process_group("nccl")
    dist.all_reduce(simrank.ones(2 + rank))


def fails(rank):
    try:
        raise KeyError("first")
    except KeyError as error:
        raise ValueError("second") from error


def test_a_report_of_simrank_stands_before_the_frames():
    """In the exception's own text, which Python and pytest print."""
    lines = str(raised(differs)).splitlines()
    report = next(i for i, line in enumerate(lines) if "mismatch (proved)" in line)
    frames = next(i for i, line in enumerate(lines) if line.startswith("Traceback"))
    assert report < frames
    assert lines[-1].startswith("  ... ")
    assert sum("mismatch (proved)" in line for line in lines) == 1


def test_an_error_of_the_program_s_own_is_told_as_torch_tells_it_and_first_by_commands():
    """Programs look for its text at the end of what spawn raises."""
    error = raised(fails)
    assert str(error).startswith("\n\n-- Process 0 terminated with the following error:\nTraceback")
    lines = failure_text(error).splitlines()
    assert lines[1] == "ValueError: second"
    assert lines[2].startswith("simrank: raised by rank 0 at t=")
    assert sum(line == "ValueError: second" for line in lines) == 1
    assert lines[-1] == "also raised on rank 1 (ValueError)"
    assert any(line.startswith("KeyError: 'first'") for line in lines)


def test_a_group_of_exceptions_is_told_whole():
    """Its lines are indented, and are not taken away from the end."""
    try:
        raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])
    except ExceptionGroup as error:
        text = users_traceback(error, report_first=True)
    assert text.startswith("ExceptionGroup: several")
    assert "ValueError: one" in text


def test_a_frame_of_a_cell_is_told_by_the_cell():
    """Its file means nothing to its author, and is what Python names."""
    try:
        exec(compile("1 / 0", "<ipython-input-3-0a1b>", "exec"), {})  # noqa: S102 - a cell
    except ZeroDivisionError as error:
        text = users_traceback(error)
    assert 'In [3], File "<ipython-input-3-0a1b>", line 1, in <module>' in text


PROGRAM = """
import simrank
import simrank.distributed as dist
from simrank import multiprocessing as mp

def train(rank):
    dist.init_process_group("nccl")
    FAULT

if __name__ == "__main__":
    mp.spawn(train, nprocs=4)
"""
HANGS = "rank == 1 or dist.all_reduce(simrank.ones(4))"
DIFFERS = "dist.all_reduce(simrank.ones(4 + rank))"
RAISES = "rank == 2 and [].pop()"


def ended_by_python(tmp_path, fault, **environment):
    """Return the status and the lines of stderr of a program that Python itself runs."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.replace("FAULT", fault))
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | environment,
    )  # fmt: skip
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize(
    ("fault", "report"),
    [(HANGS, "deadlock (proved)"), (DIFFERS, "mismatch (proved)"), (RAISES, "IndexError: pop")],
)
def test_a_program_that_python_runs_ends_with_the_report_first(tmp_path, fault, report):
    """A screen of text: the report once, then its own lines."""
    status, lines = ended_by_python(tmp_path, fault)
    assert status == 1
    assert report in "".join(lines[:2])
    assert sum(report in line for line in lines) == 1
    assert len(lines) <= 20
    assert '  File "train.py", line 11, in <module>' in [
        line.replace(f"{tmp_path}{os.sep}", "") for line in lines
    ]


def test_a_variable_asks_for_all_frames(tmp_path):
    """For programs that have no command line of simrank's."""
    _, lines = ended_by_python(tmp_path, HANGS, SIMRANK_FULL_TRACEBACK="1")
    assert lines[0].startswith("Traceback")
    assert any("spawn_in" in line for line in lines)


def test_a_hook_of_the_program_s_own_is_left_alone(monkeypatch):
    """Notebooks, debuggers and crash reporters set theirs."""
    hook = print
    monkeypatch.setattr(sys, "excepthook", hook)
    raised(fails)
    assert sys.excepthook is hook
