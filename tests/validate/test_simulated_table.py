"""The table of requirements on simulated ranks names tests that exist, and leaves no number out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
ROWS = re.findall(
    r"^\| (5\.\d) \| (.*?) \| (.*?) \| (.*?) \|$",
    (Path(__file__).parent / "simulated.md").read_text(),
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def source():
    """Return the text of all tests."""
    return "".join(path.read_text() for path in TESTS.glob("**/test_*.py"))


def test_every_requirement_has_a_row():
    """In order."""
    assert [number for number, *_ in ROWS] == [f"5.{number}" for number in range(1, 9)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_row_names_tests_that_exist(row, source):
    """On simulated ranks at least; on real processes, or why not."""
    number, _, simulated, real = row
    named = re.findall(r"`(test_\w+)`", simulated)
    assert named, number
    assert real == "needs a GPU" or "`test_" in real
    for name in [*named, *re.findall(r"`(test_\w+)`", real)]:
        assert f"def {name}(" in source, name
