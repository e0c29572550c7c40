"""The end of a command's process: what a program registered, wrote or left happens as in Python."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="without torch commands end as Python does")

HEAD = """
import atexit, gzip, os, sys, threading, time
import torch
from simrank.cli.ending import end
"""
WENT_ON = "\nend(3)\nos.write(1, b'went on')\n"


def ended(tmp_path, body, *options):
    """Return a process that ran a body, and then `end(3)`."""
    return subprocess.run(
        [sys.executable, *options, "-c", HEAD + body + WENT_ON],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("atexit.register(print, 'registered')", "registered\n"),
        ("def wait():\n    time.sleep(0.2)\n    print('waited')\n"
         "threading.Thread(target=wait).start()", "waited\n"),
        ("sys.stdout.write('no end of line')", "no end of line"),
        ("import ctypes\nctypes.CDLL(None).printf(b'from C')", "from C"),
        ("class A:\n    def __del__(self):\n        os.write(1, b'deleted')\n"
         "a = A()\ndel a\nfile = open('closed', 'w')\nfile.close()", "deleted"),
    ],
    ids=["atexit", "thread", "stream", "C", "nothing is left"],
)  # fmt: skip
def test_a_process_ends_at_once_and_has_done_what_was_registered(tmp_path, body, said):
    """With its status; Python's own end does not follow."""
    done = ended(tmp_path, body)
    assert (done.stdout, done.returncode) == (said, 3), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("class A:\n    def __del__(self):\n        os.write(1, b', gone')\na = A()", ", gone"),
        ("def steps():\n    try:\n        yield 1\n    finally:\n        os.write(1, b', closed')\n"
         "kept = steps()\nnext(kept)", ", closed"),
        ("file = open('plain.txt', 'w')\nfile.write('whole')", ""),
        ("file = gzip.open('packed.gz', 'wb')\nfile.write(b'whole')", ""),
    ],
    ids=["finalizer", "generator", "file", "compressed file"],
)  # fmt: skip
def test_python_ends_a_process_where_an_object_has_something_to_do(tmp_path, body, said):
    """A finalizer, a generator in the middle, a file that is still open."""
    done = ended(tmp_path, body)
    assert (done.stdout, done.returncode) == ("went on" + said, 0), done.stderr
    for path in tmp_path.iterdir():
        is_packed = path.suffix == ".gz"
        command = ["gzip", "-dc", str(path)] if is_packed else ["cat", str(path)]
        assert subprocess.run(command, capture_output=True, check=True).stdout == b"whole"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "options"),
    [("sys.setprofile(lambda *_: None)", ()), ("sys.settrace(lambda *_: None)", ()),
     ("import gc\ngc.set_debug(gc.DEBUG_LEAK & ~gc.DEBUG_SAVEALL)", ()), ("", ("-X", "dev"))],
)  # fmt: skip
def test_python_ends_a_process_that_is_watched(tmp_path, body, options):
    """By a profiler, a debugger, or a search for leaks."""
    assert "went on" in ended(tmp_path, body, *options).stdout


@pytest.mark.slow
def test_a_command_under_a_profiler_writes_its_file(tmp_path):
    """`python -m cProfile -m simrank` sees it to its end."""
    (tmp_path / "script.py").write_text("import torch")
    arguments = ["-m", "cProfile", "-o", "out.prof", "-m", "simrank", "run", "script.py"]
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True, cwd=tmp_path)
    assert (tmp_path / "out.prof").stat().st_size > 10_000


@pytest.mark.slow
def test_a_stream_that_cannot_be_flushed_is_told_by_the_status(tmp_path):
    """120, as Python has it."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", HEAD + "sys.stdout.write('lost')\nend(0)"],
        stdout=writing,
        stderr=subprocess.DEVNULL,
        check=False,
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"},
    )
    os.close(writing)
    assert done.returncode == 120
