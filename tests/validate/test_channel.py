"""Frames arrive whole whatever their pieces are, and what is no frame is refused."""

from __future__ import annotations

import socket
import struct
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simrank.errors import ChannelError
from simrank.validate.channel import Assembler, Frame, FrameKind, WorkerChannel

frames = st.builds(
    Frame, st.sampled_from(FrameKind), st.integers(0, 2**64 - 1), st.binary(max_size=99)
)


@given(sent=st.lists(frames, max_size=5), cuts=st.lists(st.integers(0, 600), max_size=8))
def test_frames_come_out_as_they_went_in_whatever_the_pieces(sent, cuts):
    """A law: joining and splitting anywhere changes nothing."""
    wire = b"".join(map(bytes, sent))
    ends = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    assembler = Assembler()
    found = []
    for start, end in pairwise(ends):
        found += assembler.feed(wire[start:end])
    assert found == sent
    assert assembler.is_between_frames


@given(noise=st.binary(min_size=1, max_size=64))
def test_what_is_no_frame_is_refused_or_too_short_to_tell(noise):
    """Fuzzed: nothing but ChannelError is raised, and no frame comes of it."""
    assembler = Assembler()
    try:
        assert assembler.feed(noise) == []
    except ChannelError:
        is_refused = True
    else:
        is_refused = False
    assert is_refused != noise.startswith(b"srk1"[: len(noise)])


def test_a_frame_of_an_unknown_kind_is_refused():
    """Of a later version, say."""
    with pytest.raises(ChannelError, match="unknown kind 99"):
        Assembler().feed(struct.pack("!4sBQQ", b"srk1", 99, 0, 0))


@pytest.fixture
def ends():
    """Both ends of a channel."""
    one, other = map(WorkerChannel, socket.socketpair())
    yield one, other
    one.close()
    other.close()


def test_half_a_frame_is_kept_and_nobody_waits(ends):
    """The partial line of TransformerEngine's gap b."""
    one, other = ends
    wire = bytes(Frame(FrameKind.RETURNED, 7, b"result"))
    one._socket.sendall(wire[:10])
    assert other.arrived() == []
    assert other.arrived() == []
    one._socket.sendall(wire[10:])
    assert other.arrived() == [Frame(FrameKind.RETURNED, 7, b"result")]


def test_frames_that_come_together_are_received_one_by_one(ends):
    """In order."""
    one, other = ends
    for number in range(3):
        one.send(Frame(FrameKind.RUN, number))
    assert [other.receive().request for _ in range(3)] == [0, 1, 2]


def test_a_closed_end_is_an_end_of_file(ends):
    """For who waits and for who looks."""
    one, other = ends
    one.close()
    with pytest.raises(EOFError):
        other.arrived()
    with pytest.raises(EOFError):
        other.receive()


def test_sending_to_who_does_not_read_ends_in_time(ends):
    """However much it is."""
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        ends[0].send(Frame(FrameKind.RUN, 1, bytes(1 << 24)), 0.05)
    assert time.monotonic() - started < 5
