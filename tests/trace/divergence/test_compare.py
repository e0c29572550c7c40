"""Two tracks side by side: where they meet again, and the last place where all was even."""

from array import array

import pytest

from simrank.trace.divergence.compare import Place, Walk, line_before, without_unwinding
from simrank.trace.divergence.track import (
    CALL,
    COMM,
    EXIT,
    LINE,
    RAISED,
    Codes,
    Track,
    encode,
)

START = Place(0, 0)


def track(text):
    """Return a track: a number is a line, `(` and `)` a call and its end, letters are calls."""
    made = Track(0, Codes())
    kinds = {"(": encode(CALL, 7), ")": encode(EXIT, 7), "!": encode(EXIT, 7, RAISED)}
    for word in text.split():
        if word.isdecimal():
            made.events.append(encode(LINE, 7, int(word)))
        else:
            made.events.append(kinds.get(word) or encode(COMM, ord(word)))
    return made


def diverged_at(ours, theirs, matters=lambda _: True):
    return Walk(track(ours), track(theirs), matters).diverged_at(START)


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        ("1 2 3 a 4 b", "1 2 4", Place(1, 1)),  # A call that the other one has gone past.
        ("1 2 3 4 b", "1 2 4 b", None),  # Rejoined, no call in the branch.
        ("1 2 3 a 4 5 6 b", "1 2 4 a 5 7 c", Place(5, 4)),  # Made up for at 5; parted after.
        ("1 2 a", "1 2 a", None),
        ("1 2 a 3 a", "1 2 a 4", Place(2, 2)),  # Never together again.
        ("1 ( 2 3 a ) 4 5", "1 ( 2 ) 4 6", Place(2, 2)),  # In a call, which both have left.
        ("1 2 1 2 1 3", "1 2 1 3", None),  # A loop of another length, without a call.
    ],
)
def test_ranks_parted_for_good_at_the_last_even_place(ours, theirs, found):
    """Whichever of the two is asked about."""
    assert diverged_at(ours, theirs) == found
    swapped = None if found is None else Place(*reversed(found))
    assert diverged_at(theirs, ours) == swapped


def test_calls_that_do_not_matter_to_both_are_passed_over():
    """Of a group that one of them is no member of."""
    assert diverged_at("1 2 a 3 4", "1 2 3 4", lambda _: False) is None


def test_a_place_is_found_in_another_track():
    """By the place where both begin; None where the other one has never been."""
    ours, theirs = track("1 2 9 3 4"), track("1 2 8 8 3 5")
    assert Walk(ours, theirs, lambda _: False).aligned(START, 3) == 4
    assert Walk(ours, theirs, lambda _: False).aligned(START, 2) is None


def test_the_line_that_runs_is_the_frame_s_own():
    """Not one of what it has called."""
    events = track("1 ( 2 3 ) a").events
    assert line_before(events, 5) == 0
    assert line_before(events, 3) == 3
    assert line_before(array("q"), -1) is None


def test_frames_that_an_exception_has_left_are_none_of_the_way():
    """At the end only."""
    events = track("1 ( 2 ! 3 ( 4 ! !").events
    assert list(without_unwinding(events)) == list(events[:7])
