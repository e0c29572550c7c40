"""The page of a plan: a point per row, bars of the best."""

import re

import pytest

from simrank.bench.plan_page import plan_page
from simrank.config.plan import load_plan

ROW = {
    "cluster": "hgx_h100", "tp": 1, "num_ranks": 8, "num_steps": 2, "step_ms": 10.0,
    "low_ms": 9.0, "high_ms": 11.1,
    "tokens_per_s": 800.0, "tokens_per_s_per_rank": 100.0, "mfu": 0.4,
    "parts_ms": {"forward": 7.0, "wait for <tp>": 2.0, "idle": 1.0},
    "peak_allocated_bytes": 3 * 2**30, "peak_reserved_bytes": 4 * 2**30,
    "memory_by_kind_bytes": {"parameters": 2**30}, "memory_bytes": 80 * 2**30, "fits": True,
    "error": None,
}  # fmt: skip
HEAD = {"simrank": "0", "command": "train.py {tp}"}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("command: train.py {tp}\ncluster: hgx_h100\nparameters: {tp: [1, 2]}\n")
    return load_plan(path)


def test_a_page_has_every_row_and_the_parts_of_the_best(config):
    """Rows that do not fit say so; failed ones are in the table."""
    failed = {**ROW, "tp": 4, "fits": None, "error": "ValueError: <x>"}
    rows = [ROW, {**ROW, "tp": 2, "fits": False}, failed]
    page = plan_page(config, rows, HEAD)
    assert (
        re.findall(r'<th scope="row">([^<]*)</th>', page) == ["hgx_h100 tp=1", "hgx_h100 tp=2"] * 2
    )
    assert "hgx_h100 tp=2: 10.0 ms, 100 tokens/s/GPU, 4.0 GiB reserved, does not fit" in page
    assert "hgx_h100 tp=1: parameters 1 GiB" in page
    assert "hgx_h100 tp=1: other 2 GiB" in page
    assert "hgx_h100 tp=1: reserved beyond that 1 GiB" in page
    assert "ValueError: &lt;x&gt;" in page
    assert "1 of 3 runs failed" in page
    assert "simrank run --shape-only --cluster hgx_h100 train.py 1" in page
    assert "<tp>" not in page
    assert page == plan_page(config, rows, HEAD)


def test_no_rows_and_no_rates_do_not_break_it(config):
    """Without tokens the speed is in steps."""
    page = plan_page(config, [{**ROW, "tokens_per_s_per_rank": None}], HEAD)
    assert "steps per second" in page
    assert "hgx_h100 tp=1: 10.0 ms, 100 steps/s, 4.0 GiB reserved" in page
    assert "Partial: x" in plan_page(config, [], HEAD, "x")
    assert "Table of all rows" in plan_page(config, [{**ROW, "error": "E"}], HEAD)
