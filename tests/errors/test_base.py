"""The roots of the errors: their tree, and how ranks and their states are shown."""

import pickle

import pytest

from simrank import errors
from simrank.errors import (
    RankState,
    ranks_text,
    states_text,
)

FILE = "/home/me/train.py"


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([0], "0"),
        ([2, 0, 1], "0-2"),
        ([0, 1, 2, 5], "0-2, 5"),
        ([1, 1, 3], "1, 3"),
        (range(0, 40, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, ... (20 ranks)"),
    ],
)
def test_ranks_are_shown_as_ranges(ranks, text):
    """At most twelve of them."""
    assert ranks_text(ranks) == text


def test_states_that_are_too_many_are_counted():
    """The last line says how many more there are."""
    lines = states_text([RankState((rank,), f"recv from rank {rank + 1}") for rank in range(50)])

    assert len(lines) == errors.MAX_REPORT_LINES - 2
    assert lines[-1] == "  and 37 more sets of ranks"


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (RankState((-1,), "a handle"), "a greenlet: a handle"),
        (RankState((), "work stalled"), "in flight: work stalled"),
    ],
)
def test_what_is_no_rank_is_named_otherwise(state, text):
    """A bare greenlet, or work that nobody waits for."""
    assert str(state) == text


def test_the_tree_of_errors_is_the_one_in_the_docstring():
    """Every exception class is named there."""
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, BaseException)
    ]

    assert classes
    assert [kind.__name__ for kind in classes if kind.__name__ not in errors.__doc__] == []
    assert all(issubclass(kind, errors.SimrankError | errors.RankAborted) for kind in classes)


def test_rank_states_can_be_pickled():
    """Facts travel between processes."""
    state = RankState((0, 1), "a handle", FILE, 3)

    assert pickle.loads(pickle.dumps(state)) == state
