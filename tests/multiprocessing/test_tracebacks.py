"""Errors of ranks as text: reports first, without the frames of libraries."""

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
