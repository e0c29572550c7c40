"""What workers print is kept to a bounded tail, and echoed in whole lines."""

from __future__ import annotations

import io
import os

import pytest

from simrank.validate.process import Output


@pytest.fixture
def ends():
    """An output and the descriptor that writes to it."""
    reading, writing = os.pipe()
    echo = io.StringIO()
    output = Output(reading, "[rank 3]", echo)
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
    output = Output(reading, "", None)
    os.close(writing)
    assert not output.drain()
    output.close()
    output.close()
