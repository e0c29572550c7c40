"""The error of calls that differ: one line per distinct call and line of the program."""

from simrank.distributed.mismatched_calls import MadeCall, mismatch_error
from simrank.engine.callsite import CallSite


def site(function):
    return CallSite(function.__code__, 0)


def here():
    pass


def test_equal_calls_of_one_line_are_told_together():
    """In the order of the first of them; the columns are text."""
    calls = [
        MadeCall(0, {"op": "all_reduce", "count": 4}, site(here)),
        MadeCall(3, {"op": "all_reduce", "count": 8}, site(here)),
        MadeCall(1, {"op": "all_reduce", "count": 4}, site(here)),
    ]
    error = mismatch_error(10**6, "tp0", 7, calls, [2])
    assert [variant.ranks for variant in error.variants] == [(0, 1), (3,)]
    assert error.differing == ("count",)
    assert error.variants[1].columns == {"op": "all_reduce", "count": "8"}
    assert error.variants[0].file == __file__
    assert error.not_called == (2,)
    assert "at call #7" in str(error)


def test_equal_calls_of_two_lines_are_two_variants():
    """Where they were made may be what is wrong."""
    calls = [
        MadeCall(0, {"op": "a"}, site(here)),
        MadeCall(1, {"op": "a"}, None),
        MadeCall(2, {"op": "b"}, None),
    ]
    error = mismatch_error(0, "g", 1, calls, ())
    assert [variant.ranks for variant in error.variants] == [(0,), (1,), (2,)]
    assert error.variants[1].line is None
