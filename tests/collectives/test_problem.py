"""A problem refuses what no collective can mean."""

import pytest

from simrank.collectives import Problem


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"collective": "all_sum"}, "unknown collective 'all_sum'; choices: all_reduce"),
        ({"world_size": 0}, "at least 1"),
        ({"count": -1}, "got 4, 4 and -1"),
        ({"root": 4}, "root 4 is not one of 4 ranks"),
        ({"splits": (1, 2, 3, 4)}, "all_reduce takes no splits"),
        ({"collective": "all_gather", "splits": (1, 2)}, "needs 4 splits"),
        ({"collective": "all_to_all", "splits": (-1,) * 16}, "minimum -1"),
    ],
)
def test_bad_problem_is_refused(arguments, message):
    """The message says what was expected and what came."""
    fields = {"collective": "all_reduce", "world_size": 4, "count": 8} | arguments
    with pytest.raises(ValueError, match=message):
        Problem(**fields)


def test_equal_problems_are_one_key():
    """Problems are frozen values, so they can be looked up."""
    assert {Problem("reduce", 2, 3), Problem("reduce", 2, 3)} == {Problem("reduce", 2, 3)}
