"""One worker's process as its pool sees it: how it ended, and that nothing of it is left open."""

from __future__ import annotations

import io
import os
import signal
import time

import pytest

from simrank.validate.process import Process, WorkerOutput, _ended


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (signal.SIGKILL, "killed by SIGKILL"),
        (signal.SIGSEGV | 0x80, "killed by SIGSEGV"),
        (7 << 8, "exited with code 7"),
        (0, "exited with code 0"),
        (40, "killed by signal 40"),
    ],
)
def test_a_wait_status_is_told_in_words(status, text):
    """Of a signal with its name, where it has one."""
    assert _ended(status.to_bytes(4, "big")) == text


def test_an_end_without_a_status_is_the_keepers():
    """Which was killed before it could tell."""
    assert _ended(b"") == "killed, and its keeper with it"


def test_a_process_that_is_released_ends_and_leaves_no_descriptor():
    """Also before it was asked anything."""
    before = sorted(os.listdir("/proc/self/fd"))
    process = Process(0, dict(os.environ), listener=None, echo=None)
    assert not process.has_ended()
    process.release()
    process.reap(time.monotonic() + 10)
    assert process.ended == "killed by SIGKILL"
    process.close()
    process.close()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_keeper_that_does_not_listen_is_killed_at_the_deadline():
    """Here it is stopped."""
    process = Process(0, dict(os.environ), listener=None, echo=None)
    process._keeper.send_signal(signal.SIGSTOP)
    process.release()
    process.reap(time.monotonic() + 0.1)
    assert process.ended == "killed, and its keeper with it"
    process.close()


# ---- what workers print is kept to a bounded tail, and echoed in whole lines ----


@pytest.fixture
def ends():
    """An output and the descriptor that writes to it."""
    reading, writing = os.pipe()
    echo = io.StringIO()
    output = WorkerOutput(reading, "[rank 3]", echo)
    yield output, writing, echo
    output.close()
    os.close(writing)


def test_the_tail_has_at_most_200_lines_and_4000_characters(ends):
    """The last ones."""
    output, writing, _ = ends
    os.write(writing, b"".join(b"%d\n" % n for n in range(1000)))
    assert output.drain()
    assert output.tail().splitlines() == [str(n) for n in range(800, 1000)]
    os.write(writing, b"z" * 9_000)
    output.drain()
    assert output.tail() == "z" * 4_000


def test_what_is_kept_does_not_grow(ends):
    """A line that never ends included."""
    output, writing, _ = ends
    for _ in range(100):
        os.write(writing, b"x" * 30_000)
        output.drain()
    assert len(output._kept) <= 1 << 16
    assert len(output._unfinished) <= 1 << 16


def test_lines_are_echoed_whole_with_their_rank(ends):
    """Whatever pieces they come in, and whatever bytes are in them."""
    output, writing, echo = ends
    for piece in (b"a", b"b\nc", b"\xff\n", b"half"):
        os.write(writing, piece)
        output.drain()
    assert echo.getvalue() == "[rank 3] ab\n[rank 3] c\ufffd\n"
    assert output.tail() == "ab\nc\ufffd\nhalf"


def test_a_new_case_starts_with_nothing(ends):
    """And the end of the pipe is told."""
    output, writing, _ = ends
    os.write(writing, b"old\n")
    output.drain()
    output.forget()
    assert output.tail() == ""


def test_the_end_of_the_pipe_is_told():
    """Nobody can write any more."""
    reading, writing = os.pipe()
    output = WorkerOutput(reading, "", None)
    os.close(writing)
    assert not output.drain()
    output.close()
    output.close()
