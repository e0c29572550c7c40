"""The page of errors: means beside aims, errors in colours, ratios over size."""

import re
from functools import cache

import numpy as np
import pytest

from simrank.calibration.accuracy import table_series
from simrank.calibration.cross_validation import FITS, FittedSeries
from simrank.calibration.hold_outs import hold_outs, observed_of
from simrank.calibration.page import accuracy_page, hold_outs_page, platforms_of, rows_of
from simrank.calibration.targets import groups
from simrank.collectives.nccl.pool import NUM_KINDS
from simrank.config.locate import locate
from simrank.config.measured import load_measured

NEBIUS, DELL, XLA = "h100x16_nebius_ib_allreduce", "h200x16_dell_roce_allreduce", "xla_h100x8"
DELL_TITLE = f"{DELL}, all_reduce, 16 ranks"


@cache
def errors(fit, *names):
    series = [each for name in names for each in table_series(name)]
    return FITS[fit].errors(FittedSeries(series, series))


def page(fits, *names):
    found = {fit: errors(fit, *names) for fit in fits}
    return found, accuracy_page(found, {name: groups(name, mine) for name, mine in found.items()})


def test_equal_errors_give_equal_bytes():
    """And every kind of fit has its part."""
    found, text = page(("none", "site"), NEBIUS, DELL)
    assert text == page(("none", "site"), NEBIUS, DELL)[1]
    assert re.findall("<h2>(.*?)</h2>", text) == [
        "Means and targets",
        "none: NCCL's own constants",
        "site: fitted to another site of the platform",
    ]
    assert text.count('class="plot small"') == sum(map(len, found.values())) == 4


def test_a_cell_says_the_error_and_its_colour_the_side():
    """Too fast is one colour, too slow another; of a pair it is said whose constants were tried."""
    found, text = page(("site",), NEBIUS, DELL)
    fast, slow = (next(e for e in found["site"] if e.table == name) for name in (DELL, NEBIUS))
    for each, colour in ((fast, "low3"), (slow, "high4")):
        mean, signed = each.by_class()[0]
        assert f'<td class="{colour}">{100 * mean:.0f} % ({100 * signed:+.0f})</td>' in text
    assert f"<td>{NEBIUS}, all_reduce, 16 ranks; of {DELL}</td>" in text


def test_missed_aims_are_said_and_every_point_has_its_numbers():
    """Behind a fold, as in the text."""
    found, text = page(("site",), NEBIUS, DELL)
    assert "Missed targets, by table" in text
    mean = 100 * np.mean([each.by_class()[0][0] for each in found["site"]])
    assert f"site, &lt;= 32 KiB: {mean:.1f} %, target 28 %" in text
    assert f"error {100 * float(found['site'][0].error[-1]):+.1f} %" in text


def test_each_picture_names_who_measured():
    """The machine and the source stand in the table's own rows."""
    _, text = page(("site",), NEBIUS, DELL)
    captions = re.findall("<figcaption>([^<]*)<small>([^<]*)</small>", text)
    assert [title for title, _ in captions] == [f"{NEBIUS}, all_reduce, 16 ranks", DELL_TITLE]
    for name, (_, source) in zip((NEBIUS, DELL), captions, strict=True):
        row = load_measured(locate("measured", name))[0]
        assert source == f"measured: {row.system}, {row.source}"


def test_loops_of_many_ranks_share_a_picture():
    """One per collective, with a curve per number of ranks."""
    _, text = page(("none",), XLA)
    assert text.count('class="plot small"') == 4
    assert re.findall("</svg>([^<]*)</label>", text)[:3] == ["2 ranks", "4 ranks", "8 ranks"]


# ---- the page of left-out machines ----

TABLES = ("h100x8_aws_p5_allreduce", "b200x8_vultr_allreduce", "h100x16_nebius_ib_allreduce")


@pytest.fixture(scope="module")
def left():
    return list(hold_outs([observed_of(each) for name in TABLES for each in table_series(name)]))


def test_rows_name_what_was_left_out_and_platforms_count_a_series_once(left):
    """A network that one site has is left out with it."""
    words = [name for name, _ in rows_of(left)]
    assert any(name.startswith("site: one node") for name in words)
    platforms = dict(platforms_of(left))
    assert set(platforms) == {"blackwell, one node", "hopper, one node", "hopper, over ib"}
    assert all(len(mine) == 1 for mine in platforms.values())


def test_the_page_shows_scores_coverage_and_every_series(left):
    """Equal predictions give equal text."""
    noises = np.full((NUM_KINDS, 4), 0.1)
    page = hold_outs_page(left, noises)
    assert page == hold_outs_page(left, noises)
    assert "Stated and seen coverage" in page
    assert "stated (%)" in page
    assert page.count('<table class="rows named">') == 2
    for name in TABLES:
        assert name in page
        row = load_measured(locate("measured", name))[0]
        assert f"<small>measured: {row.system}, {row.source}</small>" in page
