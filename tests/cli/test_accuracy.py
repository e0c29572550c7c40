"""`simrank accuracy`: how far the cost models are from what was measured."""

import json
from pathlib import Path

import pytest

from simrank.calibration.cross_validation import FITS
from simrank.cli import main
from simrank.config.locate import builtin_names, locate


def run(capsys, *args):
    with pytest.raises(SystemExit) as caught:
        main(["accuracy", *args])
    return caught.value.code, *capsys.readouterr()


@pytest.mark.slow
def test_the_command_prints_the_errors_of_products(capsys):
    """Per dtype, device, relation and size class."""
    status, out, _ = run(capsys, "gemm")
    assert status == 0
    rows = out.splitlines()
    assert sum(row.split()[2] == "own:" for row in rows[1:]) == 20
    assert sum("sibling: " in row for row in rows) == 20
    assert sum("(XLA)" in row for row in rows) == 2


@pytest.mark.parametrize(
    "option",
    ["--cluster=h100_ib", "--fit=site", "--collective=broadcast", "-g=4", "--json=x", "--html=x"],
)
def test_options_of_collectives_are_refused_beside_products(capsys, tmp_path, monkeypatch, option):
    """They would change nothing, and no file would be there."""
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, "gemm", *option.split("="))
    assert status == 2
    assert "expected no such option with gemm" in err
    assert not [*tmp_path.iterdir()]


def test_every_table_has_its_row_and_the_means_stand_beside_the_aims(capsys):
    """Collectives; loops of frameworks apart, for they have another error."""
    status, out, _ = run(capsys, "--fit", "none")
    assert status == 0
    assert all(name in out for name in builtin_names("measured"))
    rows = out.partition("\n\n")[0].splitlines()
    assert rows[0].split()[:5] == ["table", "cluster", "collective", "ranks", "nodes"]
    assert [row.split("  ")[0] for row in rows[-5:]] == [
        "mean: all_reduce, all_gather, reduce_scatter; NIC rate known",
        "target",
        "mean: all_reduce, all_gather, reduce_scatter; NIC rate assumed",
        "mean: other collectives",
        "mean: loops of torch and XLA",
    ]
    assert "h100x16_gcp_a3high_allgather (all_gather, 16 ranks) 59 % too fast" in out


def test_one_table_and_its_rows_as_json(capsys, tmp_path):
    """With every prediction, what was chosen for it, and its error."""
    out_file = tmp_path / "rows.json"
    status, out, _ = run(
        capsys, "h100x8_aws_p5_allreduce", "--fit", "none", "--json", str(out_file)
    )
    assert status == 0
    assert "mean" not in out
    (fit,) = json.loads(out_file.read_text())["fits"]
    (series,) = fit["series"]
    assert (fit["fit"], series["cluster"], series["collective"]) == (
        "none",
        "hgx_h100",
        "all_reduce",
    )
    last = series["rows"][-1]
    assert (last["algorithm"], last["protocol"]) == ("nvls", "Simple")
    assert abs(last["error_pct"]) < 10
    (group,) = fit["groups"]
    assert group["aims_pct"] == [28.0, 32.0, 22.0, 10.0]
    assert len(group["error_pct"]) == 4


@pytest.mark.slow
def test_every_kind_of_fit_has_its_line(capsys):
    """With its aims; whoever carries a missed one is named."""
    status, out, _ = run(capsys, "h200x16_dell_roce_allreduce", "--fit", "all")
    assert status == 0
    lines = out.splitlines()
    for name in FITS:
        assert any(line.startswith(f"{name} ") for line in lines), name
    assert "Missed targets, by table:" in out
    assert "h100x16_nebius_ib_allreduce -> h200x16_dell_roce_allreduce" in out


def test_a_page_can_be_written(capsys, tmp_path):
    """One file that runs nothing."""
    page = tmp_path / "page.html"
    status, _, _ = run(capsys, "h100x16_nebius_ib_allreduce", "--fit", "site", "--html", str(page))
    assert status == 0
    text = page.read_text()
    assert "<h2>site: fitted to another site of the platform</h2>" in text
    assert "<script" not in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--fit", "sites"], "expected one of pooled, none, table, halves, site, site-one, nodes"),
        (["gb200x72_coreweave_allreduce", "--fit", "halves"], "no table has enough sizes"),
        (["mi300xx8_rccl_allreduce", "--fit", "site"], "or a matching table"),
        (["--html", "no/such/folder.html"], "no folder"),
    ],
)
def test_bad_usage_says_what_may_stand_there(capsys, args, message):
    """Exit status 2, before anything is fitted."""
    status, _, err = run(capsys, *args)
    assert status == 2
    assert message in " ".join("".join(c if c.isascii() else " " for c in err).split())


def test_a_wrong_name_lists_the_tables_and_writes_nothing(capsys, tmp_path):
    """Exit status 2."""
    out_file = tmp_path / "rows.json"
    status, _, err = run(capsys, "h100x8_aws_p5_allreduc", "--json", str(out_file))
    assert status == 2
    assert "write `h100x8_aws_p5_allreduce`" in err
    assert not out_file.exists()


# ---- `simrank accuracy` without a mode: left-out machines, one screen ----

TABLES = ["h100x8_aws_p5_allreduce", "b200x8_vultr_allreduce", "h100x16_nebius_ib_allreduce"]


@pytest.fixture
def few(monkeypatch):
    """Three tables, for which fits take no time."""
    monkeypatch.setattr("simrank.calibration.hold_outs.builtin_tables", lambda: TABLES)
    monkeypatch.setattr("simrank.calibration.hold_outs.pooled_tables", list)


def test_one_screen_says_what_a_planner_may_believe(few, capsys, tmp_path):
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
    assert "31 (21) +-33 69%" in out
    assert "the site is left out of the constants" in out


def test_loops_of_a_framework_are_named_and_have_no_interval(capsys):
    """Their overhead is measured and not predicted."""
    status, out, _ = run(capsys, "xla_h100x8")
    assert status == 0
    assert "a loop of xla" in out
    assert "+-" not in out
    assert "no interval holds" in out


@pytest.mark.parametrize(("launch", "is_asked"), [("", True), ("launch: processes\n", False)])
def test_small_times_between_nodes_ask_for_the_launch(capsys, tmp_path, launch, is_asked):
    """Without it their interval is half as wide again."""
    table = tmp_path / "mine.csv"
    table.write_text(Path(locate("measured", "h100x16_nebius_ib_allreduce")).read_text())
    machine = "cluster: h100_ib\nnodes: 2\nlibrary: NCCL 2.28.7\nmode: back_to_back\n"
    table.with_suffix(".yaml").write_text(machine + launch)
    status, out, _ = run(capsys, str(table))
    assert status == 0
    assert ("launch not stated: mine all_reduce 16" in out) == is_asked
    width = int(out.partition("+-")[2].partition(" ")[0])
    assert (width > 40) == is_asked


def test_a_contribution_says_what_it_would_change(capsys, tmp_path):
    """One site more for its operation and network; nothing is written of a CSV table."""
    table = tmp_path / "mine.csv"
    table.write_text(
        "system,op,nranks,bytes,dtype,time_us,algbw_GBps,busbw_GBps,source\n"
        + "".join(
            f"mine,all_reduce,16,{size},float32,{time_us},1,1,me\n"
            for size, time_us in ((8, 30), (1 << 20, 95), (1 << 28, 1500))
        )
    )
    machine = "cluster: h100_ib\nnodes: 2\nlibrary: NCCL 2.28.7\nmode: back_to_back\n"
    table.with_suffix(".yaml").write_text(machine + "site: mine\nlaunch: processes\n")
    status, out, _ = run(capsys, "--contribute", str(table))
    assert status == 0
    assert "sites with tables of all_reduce on several nodes over ib: 4 -> 5" in out
    assert "a pull request with mine.csv and mine.yaml in configs/measured" in out
    assert sorted(each.name for each in tmp_path.iterdir()) == ["mine.csv", "mine.yaml"]
