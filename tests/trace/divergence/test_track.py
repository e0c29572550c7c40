"""What is kept of a rank's lines is bounded, and begins where all ranks were together."""

import sys

from simrank.trace.divergence import track as module
from simrank.trace.divergence.track import COMM, Codes, Track, is_installed, kind_of


def body():
    """A function of the user's."""


def fill(track, num_lines):
    for _ in range(num_lines):
        track.line(sys._getframe(), body.__code__.co_firstlineno)


def begun(**options):
    codes = Codes()
    track = Track(0, codes, **options)
    track.begin(codes.code(body.__code__))
    return track


def test_the_oldest_lines_are_dropped_up_to_a_collective():
    """Of which the other ranks have the same number."""
    track = begun(max_events=100)
    for number in range(20):
        track.call(("group", "all_reduce"), ("group", number))
        fill(track, 9)
    assert len(track.events) <= 101
    assert kind_of(track.events[0]) == COMM
    assert min(mark.position for mark in track.marks.values()) == track.first
    assert ("group", 19) in track.marks
    assert ("start",) not in track.marks


def test_without_a_collective_everything_is_dropped():
    """Until the next one: tracks that begin anywhere cannot be compared."""
    track = begun(max_events=100)
    fill(track, 150)
    assert len(track.events) < 100
    assert track.marks == {}
    track.call(("group", "all_reduce"), ("group", 0))
    assert list(track.marks) == [("group", 0)]


def test_what_is_kept_beside_the_lines_is_bounded(monkeypatch):
    """Values and marks: the later half stays."""
    monkeypatch.setattr(module, "MAX_MARKS", 4)
    track = begun()
    for number in range(7):
        track.call(("group", "all_reduce"), ("group", number))
    assert len(track.marks) <= 4
    assert ("group", 6) in track.marks


def test_copies_of_a_code_are_one_code():
    """Ranks that execute a module for themselves have copies."""
    codes = Codes()
    copy = body.__code__.replace(co_consts=(None,))
    assert codes.code(copy) is codes.code(body.__code__)
    assert len(codes.known()) == 2


def test_only_the_user_s_files_are_followed():
    """What libraries call runs on some ranks only."""
    assert not is_installed(__file__)
    assert is_installed("/venv/lib/python3.11/site-packages/numpy/core.py")
    assert is_installed(module.__file__)
    assert Codes().code(compile("1", "<string>", "eval")) is None
