"""What stands at a line: where a statement ends, what decides it, how it is shown."""

import pytest

from simrank.trace.divergence.statements import statements_of, text_of

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
