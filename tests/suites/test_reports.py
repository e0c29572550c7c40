"""Reports of ranks, merged."""

import pytest

from simrank.suites.reports import merged, skip_text


def report(outcome, longrepr=None, when="call", **more):
    made = pytest.TestReport(
        "test_it.py::test_it", ("test_it.py", 0, "test_it"), {}, outcome, longrepr, when
    )
    vars(made).update(more)
    return made


SKIP = ("test_it.py", 1, "Skipped: no device")


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (["passed", "passed"], "passed"),
        (["passed", "failed"], "failed"),
        (["skipped", "failed"], "failed"),
        (["skipped", "passed"], "passed"),
        (["skipped", "skipped"], "skipped"),
    ],
)
def test_a_phase_fails_where_a_rank_does_and_is_skipped_where_all_are(outcomes, expected):
    """Else it has passed."""
    reports = {rank: report(outcome, SKIP) for rank, outcome in enumerate(outcomes)}
    assert merged("call", reports, 2).outcome == expected


def test_a_strict_mark_is_no_failure_of_ranks_that_pass_where_another_fails_as_expected():
    """But where all pass it is."""
    passes = report("failed", "[XPASS(strict)] why")
    fails = report("skipped", "as expected", wasxfail="why")
    both = merged("call", {0: passes, 1: fails}, 2)
    assert (both.outcome, both.wasxfail) == ("skipped", "why")
    assert merged("call", {0: passes, 1: passes}, 2).failed


def test_which_ranks_have_skipped_is_told_unless_all_have():
    """With the reason of the first."""
    skipped, passed = [report("skipped", SKIP, "setup")], [report("passed", None, "setup")]
    assert skip_text({0: passed, 1: skipped, 2: skipped}) == "skipped on ranks 1-2: no device"
    assert skip_text({0: skipped, 1: skipped}) is None
    assert skip_text({0: passed}) is None


def test_equal_output_of_ranks_is_told_once():
    """With the ranks whose it is."""
    name = "Captured stdout call"
    reports = {rank: report("passed", sections=[(name, text)]) for rank, text in enumerate("aab")}
    shown = merged("call", reports, 3).sections
    assert shown == [(f"{name} on ranks 0-1", "a"), (f"{name} on rank 2", "b")]
