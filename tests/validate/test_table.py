"""The table of behaviours names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_behaviour_names_tests_that_exist():
    """No row without one."""
    source = "".join(path.read_text() for path in HERE.glob("test_*.py"))
    rows = re.findall(
        r"^\| (?!behaviour|---)(.*) \| (.*) \|$", (HERE / "README.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 30
    for behaviour, tests in rows:
        names = re.findall(r"`(test_\w+)`", tests)
        assert names, behaviour
        for name in names:
            assert f"def {name}(" in source, name
