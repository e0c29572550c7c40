"""Options of `simrank run`."""

from __future__ import annotations

import pytest
import typer

from simrank.cli import options


@pytest.mark.parametrize(
    ("text", "shape_only", "expected"),
    [(None, False, None), ("zero", True, 0.0), ("ones", True, 1.0), ("2.5", True, 2.5)],
)
def test_unknown_states_a_number(text, shape_only, expected):
    """A word or a number."""
    assert options.stated_value(text, shape_only=shape_only) == expected


@pytest.mark.parametrize(
    ("text", "shape_only", "message"),
    [("frog", True, "known words: zero, ones"), ("1", False, "add --shape-only")],
)
def test_unknown_is_refused_where_it_means_nothing(text, shape_only, message):
    """A text that is not a number, and a run that has all values."""
    with pytest.raises(typer.BadParameter, match=message):
        options.stated_value(text, shape_only=shape_only)
