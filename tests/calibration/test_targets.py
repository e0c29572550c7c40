"""Mean errors beside those that are aimed at, and why one is missed."""

import numpy as np
import pytest

from simrank.calibration.accuracy import SeriesErrors
from simrank.calibration.targets import TargetGroup, groups

SIZES = np.array([8, 32 << 10])


def errors(table, factor, *, parts=(0, 0, 1, 3, 0), **facts):
    """Return times that are a factor too slow, of which D is a quarter and W the rest."""
    measured = np.full(len(SIZES), 100.0)
    predicted = measured * factor
    shares = np.array(parts, dtype=float)[:, None] / sum(parts)
    given = {"mode": "back_to_back", "collective": "all_reduce", **facts}
    return SeriesErrors(
        table,
        "cluster",
        given.pop("collective"),
        8,
        1,
        given.pop("mode"),
        SIZES,
        measured,
        predicted,
        (("ring", "LL"),) * len(SIZES),
        shares * predicted,
        **given,
    )


def test_loops_and_unknown_cards_have_means_of_their_own():
    """And collectives without an aim."""
    found = groups(
        "none",
        [
            errors("a", 1.1),
            errors("b", 2.0, is_rate_known=False),
            errors("c", 2.0, mode="xla"),
            errors("d", 2.0, collective="all_to_all"),
        ],
    )
    assert [[each.table for each in group.series] for group in found] == [
        ["a"],
        ["b"],
        ["d"],
        ["c"],
    ]
    assert [group.aims_pct is not None for group in found] == [True, False, False, False]
    assert groups("table", [errors("b", 2.0, is_rate_known=False)])[0].title.endswith("scatter")


def test_a_missed_aim_names_who_carries_it():
    """As few as make the difference; with the term that is the largest, and what it should be."""
    group = TargetGroup("mine", [errors("good", 1.1), errors("bad", 2.0)], (28.0, 1.0, 1.0, 1.0))
    (missed,) = group.missed()
    assert (missed.size_class, missed.num_series) == ("<= 32 KiB", 2)
    assert (missed.error_pct, missed.without_pct) == (pytest.approx(55), pytest.approx(10))
    (bad,) = missed.culprits
    assert (bad.series.table, bad.term, bad.choice) == ("bad", "W", ("ring", "LL"))
    assert bad.share_pct == pytest.approx(75)
    assert bad.factor == pytest.approx(1 / 3), "150 of 200 us are W, and 100 us too many"
    assert list(missed.lines()) == [
        "<= 32 KiB: 55.0 %, target 28 %; 10.0 % without 1 of 2 series:",
        "bad (all_reduce, 8 ranks) 100 % too slow: ring LL, 75 % of it W (W x 0.33 fits)",
    ]


def test_a_term_that_cannot_make_up_for_it_is_not_said_to():
    """Where all of it were not enough."""
    of_five = (2, 2, 3, 1, 1)
    (missed,) = TargetGroup("mine", [errors("bad", 3.0, parts=of_five)], (28.0,)).missed()
    (line,) = list(missed.lines())[1:]
    assert line.endswith("33 % of it D")


def test_an_aim_that_is_met_says_nothing():
    """Nor one of sizes that nobody measured."""
    group = TargetGroup("mine", [errors("good", 1.28)], (28.5, 1.0, 1.0, 1.0))
    assert not group.missed()
    data = group.to_json()
    assert data["error_pct"] == [pytest.approx(28), None, None, None]
    assert (data["missed"], data["aims_pct"]) == ([], [28.5, 1.0, 1.0, 1.0])


def test_what_a_table_says_of_itself_stands_beside_its_error():
    """Its remark; and whose constants were tried."""
    bad = errors("bad", 0.5, fitted_to="other", remark="one card was in use")
    (missed,) = TargetGroup("mine", [bad], (28.0,)).missed()
    (line,) = list(missed.lines())[1:]
    assert line.startswith("other -> bad (all_reduce, 8 ranks) 50 % too fast")
    assert line.endswith("(one card was in use)")
