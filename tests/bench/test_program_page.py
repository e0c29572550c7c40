"""The page of a program's benchmark: a bar per combination."""

import re

import pytest

from simrank.bench.program_page import program_page
from simrank.config.sweep import load_sweep

ROW = {
    "cluster": "hgx_h100", "n": 1, "kind": "<a>", "num_ranks": 8, "step_us": 10.0,
    "compute_us": 6.0, "exposed_us": 3.0, "idle_us": 1.0, "peak_bytes": 4096,
    "error": None,
}  # fmt: skip
HEAD = {"simrank": "0", "seed": 0, "program": "steps.f"}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "b.yaml"
    path.write_text("program: steps.f\ncluster: hgx_h100\nparameters: {n: [1, 2], kind: ['<a>']}\n")
    return load_sweep(str(path))


def test_bars_are_named_by_what_differs(config):
    """Not by what all have in common; times and shares have pictures of their own."""
    page = program_page(config, [ROW, {**ROW, "n": 2, "exposed_us": 0.0}], HEAD)
    assert re.findall(r'<th scope="row">([^<]*)</th>', page) == ["n=1", "n=2"] * 2
    assert "n=1: exposed communication 3 us" in page
    assert "30.0 % exposed" in page


def test_a_single_row_has_its_whole_name_escaped(config):
    """Nothing differs, so everything is said."""
    page = program_page(config, [ROW], HEAD)
    assert '<th scope="row">cluster=hgx_h100' not in page
    assert '<th scope="row">hgx_h100 n=1 kind=&lt;a&gt;</th>' in page
    assert "<a>" not in page
    assert "<td>4096</td>" in page


def test_no_rows_and_no_time_do_not_break_it(config):
    """A step that took no time has no shares."""
    empty = dict.fromkeys(("step_us", "compute_us", "exposed_us", "idle_us"), 0.0)
    page = program_page(config, [{**ROW, **empty}], HEAD)
    assert "0.0 % exposed" in page
    assert "nan" not in page
    assert "Partial: x" in program_page(config, [], HEAD, "x")
    assert page == program_page(config, [{**ROW, **empty}], HEAD)


def test_a_run_that_failed_is_in_the_table_only(config):
    """It has no times to draw."""
    failed = {**ROW, "n": 2, **dict.fromkeys(("step_us", "compute_us", "exposed_us", "idle_us"))}
    page = program_page(config, [ROW, {**failed, "error": "rank 0: too <bad>"}], HEAD)
    assert re.findall(r'<th scope="row">([^<]*)</th>', page) == ["n=1"] * 2
    assert "rank 0: too &lt;bad&gt;" in page
