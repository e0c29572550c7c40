"""The meta-test that suites import: every test on real ranks has its outer limit."""

import pytest

import simrank.suites.on_processes  # noqa: F401 - once: pytester forgets what its sessions import

pytest_plugins = ["pytester"]

SUITE = """
import pytest
from simrank.validate.testing import test_every_test_on_real_ranks_has_an_outer_time_limit

@pytest.mark.skip
@pytest.mark.ranks(2)
def test_it(rank):
    pass
"""
REAL = "--ranks-on=processes"


@pytest.mark.parametrize(
    ("conftest", "options", "outcomes"),
    [
        ("", [REAL], {"passed": 1, "skipped": 1}),
        ("item.own_markers.pop(0)", [REAL], {"failed": 1, "skipped": 1}),
        ("item.add_marker(pytest.mark.timeout(59), append=False)", [REAL],
         {"failed": 1, "skipped": 1}),
        ("item.add_marker(pytest.mark.timeout(timeout=61), append=False)", [REAL],
         {"passed": 1, "skipped": 1}),
        ("", [REAL, "-p", "no:timeout"], {"skipped": 2}),
        ("", [], {"skipped": 2}),
    ],
)  # fmt: skip
def test_the_meta_test_fails_where_a_limit_is_missing_or_too_short(
    pytester, conftest, options, outcomes
):
    """It is skipped, with the reason, where there is nothing to be tested."""
    pytester.makepyfile(test_suite=SUITE)
    if conftest:
        pytester.makeconftest(
            "import pytest\n"
            "@pytest.hookimpl(wrapper=True)\n"
            "def pytest_collection_modifyitems(items):\n"
            "    yield\n"
            "    for item in items:\n"
            f"        if item.name == 'test_it': {conftest}\n"
        )
    result = pytester.runpytest_inprocess("-rs", *options)
    result.assert_outcomes(**outcomes)
    if "failed" in outcomes:
        result.stdout.fnmatch_lines(["*test_suite.py::test_it: *, expected 60 or more*"])
