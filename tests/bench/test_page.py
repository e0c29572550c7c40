"""The page of a benchmark of collectives: what is compared, and what may be missing."""

import re
from dataclasses import replace
from functools import cache

import pytest

from simrank.bench.page import collectives_page, program_page
from simrank.bench.run import Watcher, run
from simrank.config import bench_config_from_mapping
from simrank.config.measured import load_measured
from simrank.config.sweep import load_sweep

HEAD = {"simrank": "0", "seed": 0}
BOTH = {"algorithms": ["nccl", "ring"], "measured": "h100x8_aws_p5_allreduce"}


class Found(Watcher):
    """Keeps every series with its rows."""

    def __init__(self):
        self.series = []

    def on_rows(self, series, rows):
        if not self.series or self.series[-1][0] is not series:
            self.series.append((series, []))
        self.series[-1][1].extend(rows)


def found_of(**keys):
    """Run a small benchmark without checks; return its configuration and what was found."""
    given = {"cluster": "hgx_h100", "collectives": ["all_reduce"], "sizes": ["1 KiB", "16 MiB"]}
    given = {**given, "check": False, **keys}
    config = bench_config_from_mapping({k: v for k, v in given.items() if v is not None})
    found = Found()
    run(config, watcher=found)
    return config, found.series


@cache
def both():
    return found_of(**BOTH)


def page_of(config, found, **keys):
    return collectives_page(config, found, HEAD, **keys)


def labels(page):
    """Return the texts of legends."""
    return re.findall(r"</svg>([^<]*)</label>", page)


def changed(found, **changes):
    return [(series, [replace(row, **changes) for row in rows]) for series, rows in found]


def test_equal_rows_give_equal_bytes():
    """Of two runs, and of one result that is written twice."""
    config, found = both()
    page = page_of(config, found)
    assert page == page_of(config, found) == page_of(*found_of(**BOTH))
    assert len(page) < 60_000


def test_series_of_a_collective_share_their_pictures():
    """The legend says only what differs; the heading says the rest."""
    page = page_of(*both())
    assert labels(page) == ["nccl", "ring", "measured"]
    assert "<h2>all_reduce: float32, sum, cost level nccl, 8 ranks, hgx_h100</h2>" in page
    assert page.count('class="plot"') == 2


def test_every_point_says_its_numbers():
    """What was predicted, the interval, what ran, and what was measured."""
    config, found = both()
    row = found[0][1][-1]
    titles = set(re.findall(r"<title>(.*?)</title>", page_of(config, found)))
    (text,) = [t for t in titles if t.startswith("16 MiB: ") and "nvls Simple" in t]
    assert f"bus bandwidth {row.busbw_GBps:.4g} GB/s" in text
    assert f"error with site 'aws h100' left out {row.error_pct:+.1f} %" in text
    assert "90% interval" in text
    assert any(t.startswith("16 MiB: measured") for t in titles)


def test_the_error_line_is_the_one_of_the_text_table():
    """With what the constants were fitted to, said once for all whom it concerns."""
    page = page_of(*both())
    said = "with site 'aws h100' left out of the calibration:"
    assert f"nccl: Mean absolute error against measured times, {said}" in page
    assert "ring: No 90% interval and no error: ring is forced" in page
    assert page.count("Predicted with constants fitted to") == 1
    assert "nccl; ring: Predicted with" in page


def test_the_head_says_what_was_run():
    """Version, seed, cluster, constants, and the verdict."""
    page = page_of(*both())
    for name in ("simrank", "seed", "cluster", "iterations", "constants of hgx_h100"):
        assert f"<dt>{name}</dt>" in page
    assert "0 OK (0 of 8 rows checked)" in page


def test_in_place_has_a_curve_of_its_own_only_where_it_differs():
    """Equal times are one curve."""
    config, found = found_of(algorithms=["ring"])
    assert labels(page_of(config, found)) == ["ring"]
    (series, rows), *_ = found
    apart = [replace(row, time_us=row.time_us * (1 + row.in_place)) for row in rows]
    page = page_of(config, [(series, apart)])
    assert labels(page) == ["ring, out of place", "ring, in place"]


def test_the_cost_level_tells_equal_clusters_apart():
    """And a number what has no difference at all."""
    clusters = ["hgx_h100", {"name": "hgx_h100", "cost_level": "schedule"}]
    config, found = found_of(clusters=clusters, cluster=None, algorithms=["ring"])
    assert labels(page_of(config, found)) == ["cost level nccl", "cost level schedule"]
    twice = [found[0], found[0]]
    assert labels(page_of(config, twice)) == ["ring", "ring (2)"]


def test_collectives_have_pictures_of_their_own():
    """In the order in which they ran."""
    page = page_of(*found_of(collectives=["all_reduce", "all_gather"], algorithms=["nccl"]))
    assert re.findall(r"<h2>(\w+)", page) == ["all_reduce", "all_gather"]
    assert page.count('class="plot"') == 4


def test_who_measured_is_named_where_measured_times_are_drawn():
    """With the machine and the source of the table's own rows."""
    config, found = both()
    (row, *_) = load_measured(config.measured[0])
    said = f"<li>Measured: h100x8_aws_p5_allreduce ({row.system}, {row.source})</li>"
    assert said in page_of(config, found)
    assert "<li>Measured: " not in page_of(*found_of())


def test_tables_of_measured_times_that_differ_have_marks_of_their_own():
    """Each in the colour of its series."""
    config, found = both()
    other = changed(found[1:], measured_us=5.0, error_pct=1.0)
    page = page_of(config, [found[0], *other])
    assert labels(page)[2:] == ["measured, for nccl", "measured, for ring"]


def test_names_of_users_are_escaped():
    """Whatever a cluster and an algorithm are called, they are text."""
    config, found = both()
    cluster = replace(found[0][0].cluster, name="<script>alert(1)</script>")
    evil = [
        (replace(series, cluster=cluster, algorithm='"><img src=x>'), rows)
        for series, rows in changed(found, algorithm="<script>", calibration="<b>")
    ]
    page = page_of(config, evil, partial="<i>")
    assert labels(page)[:2] == ['"&gt;&lt;img src=x&gt;', '"&gt;&lt;img src=x&gt; (2)']
    assert not re.search("<(script|img|b|i)[ >]", page)


@pytest.mark.parametrize(
    "changes",
    [
        {"time_us": 0.0, "algbw_GBps": 0.0, "busbw_GBps": 0.0},
        {"interval_us": None, "measured_us": None, "error_pct": None, "protocol": None},
        {"interval_us": (0.0, 5.0)},
        {"measured_us": 0.0, "error_pct": None},
        {"size_bytes": 1024},
        {"num_wrong": 3},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_odd_rows_do_not_break_a_picture(changes):
    """Zero times, nothing measured, no interval, one size: no coordinate is without a number."""
    config, found = both()
    page = page_of(config, changed(found, **changes))
    assert page.count('class="plot"') == 2
    assert not re.search(r'"[^"]*\b(nan|inf|None)\b[^"]*"', page)
    said = "8 rows took no time" in page
    assert said == ("time_us" in changes)


def test_no_rows_are_a_page_that_says_so():
    """An interrupted run leaves one, with the reason."""
    config, _ = both()
    page = page_of(config, [], partial="0 rows, then interrupted")
    assert "simrank bench: no rows" in page
    assert "Partial: 0 rows, then interrupted" in page


def test_thirty_series_fit_on_a_page():
    """Below a megabyte, each with a name in the legend and a table, all under one title."""
    config, found = both()
    many = [(series, rows * 6) for series, rows in found * 15]
    page = page_of(config, many)
    assert len(labels(page)) == 31
    assert page.count("<summary>Table of ") == 30
    assert page.count("<summary>Tables of 30 series") == 1
    assert len(page) < 1_000_000


# ---- the page of a program's benchmark: a bar per combination ----

ROW = {
    "cluster": "hgx_h100", "n": 1, "kind": "<a>", "num_ranks": 8, "step_us": 10.0,
    "compute_us": 6.0, "exposed_us": 3.0, "idle_us": 1.0, "peak_bytes": 4096,
    "error": None,
}  # fmt: skip
PROGRAM_HEAD = {"simrank": "0", "seed": 0, "program": "steps.f"}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "b.yaml"
    path.write_text("program: steps.f\ncluster: hgx_h100\nparameters: {n: [1, 2], kind: ['<a>']}\n")
    return load_sweep(str(path))


def test_bars_are_named_by_what_differs(config):
    """Not by what all have in common; times and shares have pictures of their own."""
    page = program_page(config, [ROW, {**ROW, "n": 2, "exposed_us": 0.0}], PROGRAM_HEAD)
    assert re.findall(r'<th scope="row">([^<]*)</th>', page) == ["n=1", "n=2"] * 2
    assert "n=1: exposed communication 3 us" in page
    assert "30.0 % exposed" in page


def test_a_single_row_has_its_whole_name_escaped(config):
    """Nothing differs, so everything is said."""
    page = program_page(config, [ROW], PROGRAM_HEAD)
    assert '<th scope="row">cluster=hgx_h100' not in page
    assert '<th scope="row">hgx_h100 n=1 kind=&lt;a&gt;</th>' in page
    assert "<a>" not in page
    assert "<td>4096</td>" in page


def test_no_rows_and_no_time_do_not_break_it(config):
    """A step that took no time has no shares."""
    empty = dict.fromkeys(("step_us", "compute_us", "exposed_us", "idle_us"), 0.0)
    page = program_page(config, [{**ROW, **empty}], PROGRAM_HEAD)
    assert "0.0 % exposed" in page
    assert "nan" not in page
    assert "Partial: x" in program_page(config, [], PROGRAM_HEAD, "x")
    assert page == program_page(config, [{**ROW, **empty}], PROGRAM_HEAD)


def test_a_run_that_failed_is_in_the_table_only(config):
    """It has no times to draw."""
    failed = {**ROW, "n": 2, **dict.fromkeys(("step_us", "compute_us", "exposed_us", "idle_us"))}
    page = program_page(config, [ROW, {**failed, "error": "rank 0: too <bad>"}], PROGRAM_HEAD)
    assert re.findall(r'<th scope="row">([^<]*)</th>', page) == ["n=1"] * 2
    assert "rank 0: too &lt;bad&gt;" in page
