"""`simrank accuracy` without a mode: left-out machines, one screen."""

import json

import pytest

from simrank.cli import main

TABLES = ["h100x8_aws_p5_allreduce", "b200x8_vultr_allreduce", "h100x16_nebius_ib_allreduce"]


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    """Three tables, for which fits take no time."""
    monkeypatch.setattr("simrank.cli.accuracy_pooled.builtin_tables", lambda: TABLES)
    monkeypatch.setattr("simrank.cli.accuracy_pooled.pooled_tables", list)


def run(capsys, *args):
    with pytest.raises(SystemExit) as caught:
        main(["accuracy", *args])
    return caught.value.code or 0, *capsys.readouterr()


def test_one_screen_says_what_a_planner_may_believe(capsys, tmp_path):
    """By kind of hold-out and by platform; JSON has the same numbers, HTML the pictures."""
    out_file, page = tmp_path / "scores.json", tmp_path / "page.html"
    status, out, _ = run(capsys, "--json", str(out_file), "--html", str(page))
    assert status == 0
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["left", "out", "units"]
    assert any(line.startswith("hopper, over ib") for line in lines)
    assert len(lines) < 50
    data = json.loads(out_file.read_text())
    cell = data["hold_outs"][0]["scores"]["<= 32 KiB"]
    assert {"error", "plain", "covered", "half_width", "winkler", "covers", "is_worse"} <= set(cell)
    assert page.read_text().lower().startswith("<!doctype html>")


def test_a_table_is_predicted_without_its_site(capsys):
    """Its line says as what."""
    status, out, _ = run(capsys, "h100x8_aws_p5_allreduce")
    assert status == 0
    assert "h100x8_aws_p5_allreduce" in out
    assert "the site is left out of the constants" in out
