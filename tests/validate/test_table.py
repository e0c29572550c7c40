"""The table of behaviours names tests that exist, and leaves no number out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = (HERE / "README.md").read_text()
ROW = re.compile(r"^\| (?!no\.|behaviour|---)(?:(\w+) \| )?(.*) \| (.*) \|$", re.MULTILINE)
# Where the tests of real processes are.
FOLDERS = (HERE, HERE.parent / "conformance")


def section(title):
    """Return the rows of a section: number, behaviour, tests."""
    (found,) = [part for part in PAGE.split("\n## ") if part.startswith(title)]
    return ROW.findall(found)


def test_every_behaviour_names_tests_that_exist():
    """No row without one."""
    source = "".join(path.read_text() for folder in FOLDERS for path in folder.glob("test_*.py"))
    rows = ROW.findall(PAGE)
    assert len(rows) > 40
    for _, behaviour, tests in rows:
        names = re.findall(r"`(test_\w+)`", tests)
        assert names, behaviour
        for name in names:
            assert f"def {name}(" in source, name


@pytest.mark.parametrize(
    ("title", "numbers"),
    [("TransformerEngine", [*map(str, range(1, 16)), *"abcd"]),
     ("Megatron-LM", [*map(str, range(1, 7)), "later", "later"]),
     ("cuda-python", [*map(str, range(1, 9)), "caveat"]),
     ("Mooncake", ["1", *map(str, range(4, 9))])],
)  # fmt: skip
def test_every_requirement_of_a_system_has_a_row(title, numbers):
    """In order: requirements by number, gaps by letter, and what came of it later.

    Of Mooncake 2 and 3 are about streams and memory: `simulated.md` has them.
    """
    assert [number for number, _, _ in section(title)] == numbers
