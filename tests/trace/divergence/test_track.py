"""What is kept of a rank's lines is bounded, and begins where all ranks were together."""

import sys

import numpy as np
import pytest

from simrank.trace.divergence import track as module
from simrank.trace.divergence.track import (
    COMM,
    CodeNumbers,
    Track,
    is_installed,
    kind_of,
    paths_of,
    short,
    statements_of,
    text_of,
    values_of,
)


def body():
    """A function of the user's."""


def fill(track, num_lines):
    for _ in range(num_lines):
        track.line(sys._getframe(), body.__code__.co_firstlineno)


def begun(**options):
    codes = CodeNumbers()
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
    codes = CodeNumbers()
    copy = body.__code__.replace(co_consts=(None,))
    assert codes.code(copy) is codes.code(body.__code__)
    assert len(codes.known()) == 2


def test_only_the_user_s_files_are_followed():
    """What libraries call runs on some ranks only."""
    assert not is_installed(__file__)
    assert is_installed("/venv/lib/python3.11/site-packages/numpy/core.py")
    assert is_installed(module.__file__)
    assert CodeNumbers().code(compile("1", "<string>", "eval")) is None


# ---- what stands at a line: where a statement ends, what decides it, how it is shown ----

SOURCE = """\
if (a.b  # why
    and len(c) > 1):  # a comment
    x = 1
elif "#" in d:
    x = 2
for i in f(e):
    pass
match g:
    case 1:
        pass
    case 2 if h:
        pass
y = f(k, l.m)
z = n if o else p
if q: r()
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "source.py"
    path.write_text(SOURCE)
    return str(path)


def test_names_are_those_that_decide(file):
    """Of a simple statement all that it reads; functions that are called are no data."""
    found = statements_of(file)
    names = {line: found[line].names for line in (1, 2, 4, 6, 8, 11, 13, 14, 15)}
    assert names == {
        1: ("a.b", "c"), 2: ("a.b", "c"), 4: ("d",), 6: ("i", "e"), 8: ("g",), 11: ("g",),
        13: ("y", "k", "l.m"), 14: ("o",), 15: ("q",),
    }  # fmt: skip
    assert [line for line in names if not found[line].decides] == [13]


def test_a_statement_is_shown_without_its_body_and_comments(file):
    """On one line, however many it has; a `#` in a string is no comment."""
    found = statements_of(file)
    texts = {line: text_of(file, found[line]) for line in (2, 4, 6, 11, 15)}
    assert texts == {
        2: "if (a.b and len(c) > 1):",
        4: 'elif "#" in d:',
        6: "for i in f(e):",
        11: "match g:",
        15: "if q: r()",
    }


def test_the_body_of_a_branch_is_known(file):
    """So that who executes it has taken it."""
    branch = statements_of(file)[1]
    assert [branch.has_in_body(line) for line in (2, 3, 4)] == [False, True, False]


def test_a_file_that_cannot_be_read_has_no_statements(tmp_path):
    """It is gone, or no Python."""
    path = tmp_path / "no.py"
    assert statements_of(str(path)) == {}
    path.write_text("if :")
    assert statements_of(str(path)) == {}


def test_a_file_that_was_changed_is_read_again(file, tmp_path):
    """Another run of the same program, edited."""
    assert statements_of(file)[13].names[1:] == ("k", "l.m")
    (tmp_path / "source.py").write_text("f(changed, entirely)")
    assert statements_of(file)[1].names == ("changed", "entirely")


# ---- what names stand for is read without running any of the program's code ----


class Model:
    limit = 3

    def __init__(self):
        self.size = 2

    @property
    def slow(self):
        raise AssertionError("a property was run")

    def __getattr__(self, name):  # noqa: D105 - of a class of the tests
        raise AssertionError("an attribute was looked up")


def test_names_are_looked_up_without_running_properties():
    """Functions, modules and what is not there are left out."""
    model, text = Model(), "x" * 60
    names = ["model.size", "model.limit", "model.slow", "model.absent", "text", "sys", "len", "no"]
    found = values_of(sys._getframe(), paths_of(names))
    assert [(name, short(value)) for name, value in found] == [
        ("model.size", "2"),
        ("model.limit", "3"),
        ("text", "'" + "x" * 35 + " ..."),
    ]
    assert (model.size, len(text)) == (2, 60)


def test_values_are_shown_shortly():
    """Containers by their length, arrays by their shape, others by their class."""
    shown = [short(value) for value in ([1, 2], {1: 2}, np.float32(0.5), np.ones((2, 3)), Model())]
    assert shown == ["list of 2", "dict of 1", "0.5", "array of shape (2, 3)", "<Model>"]
