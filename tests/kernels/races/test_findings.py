"""What a finding says."""

import pytest

from simrank.errors import RaceAccess
from simrank.kernels.races.findings import ProgramRaceError, access_at


def race(first, second):
    accesses = [RaceAccess(f"program {n}", verb, "", "k.py", n) for n, verb in (first, second)]
    return ProgramRaceError(2_000_000, 1, *accesses, "k.py:3")


@pytest.mark.parametrize(
    ("verbs", "advice"),
    [
        (("writes", "writes"), "let one program store there"),
        (("writes", "reads"), 'sem="release" after the store'),
        (("reads", "writes"), 'sem="release" after the load'),
    ],
)
def test_the_advice_is_about_what_was_done(verbs, advice):
    """Two stores need one owner; a load and a store need an order."""
    text = str(race((7, verbs[0]), (8, verbs[1])))
    assert advice in text.splitlines()[-1]


def test_a_race_has_a_line_for_each_access():
    """The first says what and when, and where the memory was allocated."""
    lines = str(race((7, "writes"), (8, "reads"))).splitlines()
    assert lines[0].startswith("race (proved) at t=2.000 us")
    assert lines[0].endswith("(allocated at k.py:3)")
    assert lines[1] == "  program 7 writes at k.py:7"
    assert lines[2] == "  program 8 reads at k.py:8"


def test_an_access_without_a_line_has_none():
    """Where the program was is not always known."""
    assert access_at("program 0", "reads", None) == RaceAccess("program 0", "reads", "", None, None)
