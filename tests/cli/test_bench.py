"""`simrank bench` as a user meets it: output, files, exit status."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simrank.collectives import DataPlayer

ROOT = Path(__file__).resolve().parents[2]


FAST = ["-b", "1K", "-e", "4K", "-n", "2"]


def test_bench_prints_nccl_tests_columns(cli):
    """One line per size, then the verdict."""
    status, out, err = cli("bench", "all_reduce", "--cluster", "hgx_h100", *FAST)
    assert (status, err) == (0, "")
    data = [line.split() for line in out.splitlines() if not line.startswith("#")]
    assert [line[:5] for line in data] == [
        [str(size), str(size // 4), "float32", "sum", "-1"] for size in (1024, 2048, 4096)
    ]
    assert all(line[8] == line[12] == "0" for line in data)
    assert "# Out of bounds values : 0 OK" in out


def test_bench_runs_a_yaml_and_writes_json_csv_and_a_trace(cli, tmp_path):
    """The files have the promised form, and the same seed gives the same bytes."""
    (tmp_path / "b.yaml").write_text(
        "cluster: hgx_h100\ncollectives: [all_reduce]\nsizes: [1 KiB]\n"
        "measured: h100x8_aws_p5_allreduce\n"
    )
    files = [tmp_path / name for name in ("r.json", "r.csv", "t.json")]
    contents = []
    for _ in range(2):
        status, out, _ = cli(
            "bench", tmp_path / "b.yaml", "--json", files[0], "--csv", files[1],
            "--trace", files[2], "--trace-ranks", "0,3",
        )  # fmt: skip
        assert status == 0
        contents.append([file.read_bytes() for file in files])
    assert contents[0] == contents[1]
    assert "measured" in out
    document = json.loads(files[0].read_text())
    assert list(document) == ["simrank", "seed", "cluster", "rows"]
    assert (document["seed"], document["cluster"]) == (0, "hgx_h100")
    assert len(document["rows"]) == 2
    assert files[1].read_text().startswith("collective,algorithm,protocol,num_ranks,")
    trace = json.loads(files[2].read_text())["traceEvents"]
    assert {event["pid"] for event in trace} == {0, 3}


def test_sizes_on_the_command_line_are_1024_based(cli):
    """-b 8 -e 8G -f 2 as in nccl-tests."""
    _, out, _ = cli(
        "bench", "all_reduce", "-b", "8", "-e", "8G", "-f", "1024", "-n", "1", "-c", "0"
    )
    sizes = [int(line.split()[0]) for line in out.splitlines() if not line.startswith("#")]
    assert sizes == [8, 8 * 2**10, 8 * 2**20, 8 * 2**30]


def test_nccl_tests_names_are_accepted(cli):
    """alltoall, half."""
    status, out, _ = cli("bench", "alltoall", "-d", "half", *FAST)
    assert status == 0
    assert "float16" in out


BAD = {
    "unknown key": ("cluster: hgx_h100\ncollectives: [all_reduce]\nsize: [1 KiB]\n", ":3: size:"),
    "no unit": ("cluster: hgx_h100\ncollectives: [all_reduce]\nsizes: [1024]\n", ":3: sizes[0]:"),
    "bad yaml": ("cluster: [hgx_h100\ncollectives: all_reduce\n", ".yaml:"),
    "unknown cluster": ("cluster: hgx_h101\ncollectives: [all_reduce]\n", ":1: cluster:"),
    "empty": ("", ".yaml"),
    "list": ("- 1\n- 2\n", ".yaml"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_gives_file_line_key_and_status_2(cli, tmp_path, name):
    """For bench and for check, and never a traceback."""
    text, where = BAD[name]
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    for command in ("bench", "check"):
        status, out, err = cli(command, path)
        assert status == 2
        assert where in err
        assert "expected" in err
        assert "Traceback" not in out + err


def test_wrong_data_gives_status_1(cli, monkeypatch):
    """A benchmark whose check fails does not end with success."""
    monkeypatch.setattr(DataPlayer, "play", lambda *_, **__: None)
    status, out, _ = cli("bench", "all_reduce", *FAST)
    assert status == 1
    assert "FAILED" in out


def test_there_is_no_progress_bar_in_a_pipe():
    """Neither on stdout nor on stderr."""
    command = [sys.executable, "-m", "simrank.cli", "bench", "all_reduce", *FAST]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stderr == ""
    assert "\x1b" not in done.stdout


def test_an_option_that_a_yaml_would_win_over_is_refused(cli, tmp_path):
    """Nothing is ignored in silence."""
    path = tmp_path / "b.yaml"
    path.write_text("cluster: hgx_h100\ncollectives: [all_reduce]\nsizes: [1 KiB]\n")
    status, _, err = cli("bench", path, "-b", "8")
    assert status == 2
    assert "--minbytes" in err


def test_a_misspelt_collective_is_told_its_name(cli):
    """Not that it is no file."""
    status, out, err = cli("bench", "all_reduc")
    assert (status, out) == (2, "")
    assert err == (
        "command line: target: expected a YAML file, a built-in benchmark or a collective, "
        "got all_reduc\n  to fix: write `all_reduce`\n"
    )


def test_several_clusters_have_a_column_of_their_own(cli, tmp_path):
    """In JSON and CSV; with one cluster the file's head says it."""
    path = tmp_path / "b.yaml"
    path.write_text(
        "clusters: [hgx_h100, hgx_a100]\ncollectives: [all_reduce]\nsizes: [1 KiB]\n"
        "in_place: false\n"
    )
    status, _, _ = cli("bench", path, "--json", tmp_path / "r.json")
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [row["cluster"] for row in rows] == ["hgx_h100", "hgx_a100"]
    assert status == 0


def test_bench_writes_a_page_that_is_one_file(cli, tmp_path):
    """Of collectives and of programs; equal runs give equal bytes."""
    (tmp_path / "steps_of_a_page.py").write_text(
        "import simrank.distributed as dist\n\ndef step(ctx, n):\n    dist.init_process_group()\n"
        "    x = ctx.empty(n)\n    return lambda: x.add_(1)\n"
    )
    (tmp_path / "p.yaml").write_text(
        "program: steps_of_a_page.step\ncluster: hgx_h100\nnum_ranks: 2\nparameters: {n: [8, 16]}\n"
    )
    for target in (["all_reduce", *FAST], [tmp_path / "p.yaml"]):
        pages = []
        for number in range(2):
            path = tmp_path / f"{number}.html"
            status, _, err = cli("bench", *target, "--html", path)
            assert (status, err) == (0, "")
            pages.append(path.read_bytes())
        assert pages[0] == pages[1]
        assert pages[0].startswith(b"<!DOCTYPE html>")
        assert b"<svg" in pages[0]
        assert not re.search(rb"<(script|link|img|iframe)|https?://|url\(", pages[0])


def test_a_page_that_cannot_be_written_is_refused_before_the_run(cli, tmp_path):
    """Nothing is printed but why."""
    status, out, err = cli("bench", "all_reduce", *FAST, "--html", tmp_path / "none" / "p.html")
    assert (status, out) == (2, "")
    assert "expected a file that can be written, got no folder" in err


@pytest.mark.parametrize("value", ["Rings", "Tree"])
def test_variables_that_leave_nothing_are_told_before_anything_runs(cli, monkeypatch, value):
    """With status 2, and what would be possible."""
    monkeypatch.setenv("NCCL_ALGO", value)
    status, out, err = cli("bench", "all_gather", "--cluster", "hgx_h100", *FAST)
    assert (status, out) == (2, "")
    assert err.startswith("NCCL_ALGO")
    assert "ring" in err


def test_what_other_tools_read_is_written_beside_the_table(cli, tmp_path):
    """nccl-tests' output and NCCL Inspector's JSON; `simrank accuracy` reads both."""
    table, records = tmp_path / "out.txt", tmp_path / "0.log"
    args = ("all_reduce", "-b", "1M", "-e", "4M", "-n", 1)
    assert cli("bench", *args, "--nccl-tests", table, "--inspector", records)[0] == 0
    for path in (table, records):
        status, out, _ = cli("accuracy", path, "--cluster", "hgx_h100")
        assert status == 0
        assert "all_reduce" in out
    status, _, err = cli("bench", "alltoall", "--inspector", records)
    assert status == 2
    assert "--inspector, got all_to_all" in err


def test_forms_of_collectives_are_refused_for_programs(cli, tmp_path):
    """Before anything runs."""
    sweep = Path(__file__).parents[2] / "benches" / "tp_mlp.yaml"
    for option in ("--nccl-tests", "--inspector"):
        status, _, err = cli("bench", sweep, option, tmp_path / "out")
        assert status == 2
        assert f"{option}: expected a benchmark of collectives" in err
