"""`simrank bench` as a user meets it: output, files, exit status."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simrank import parallel
from simrank.bench import sweep as sweep_module
from simrank.cli import main, results
from simrank.collectives import DataPlayer
from simrank.config.sweep import load_sweep

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
    assert f"to fix: change the keys of a copy of {path}" in err


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
    args = ("all_reduce", "-b", "1M", "-e", "4M", "-n", 1, "-c", 0)
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


# ---- benchmarks of programs that end early, and go on where they ended ----

PROGRAM = """
import simrank.distributed as dist

def step(ctx, size):
    dist.init_process_group("nccl")
    x = ctx.empty(10 // size)
    return lambda: dist.all_reduce(x)
"""
SIZES = (1, 0, 2, 10, 3)  # The second fails.


@pytest.fixture
def sweep(tmp_path):
    """Write a benchmark of five runs, and its program."""
    name = f"sweep_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    path = tmp_path / "sweep.yaml"
    path.write_text(
        f"program: {name}.step\ncluster: hgx_h100\nnum_ranks: 2\n"
        f"parameters: {{size: {list(SIZES)}}}\n"
    )
    return path


@pytest.fixture
def whole(sweep, tmp_path, cli):
    """Run it whole; return what it leaves."""
    status, out, _ = cli("bench", sweep, "--json", tmp_path / "w.json", "--csv", tmp_path / "w.csv")
    assert status == 1
    return out, (tmp_path / "w.json").read_text(), (tmp_path / "w.csv").read_text()


def status_of(*args):
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in args])
    return stop.value.code


def test_a_failed_run_is_a_row_and_the_status_says_so(whole, sweep, cli):
    """Its report is on stderr, once for equal errors."""
    out, text, table = whole
    assert out.endswith("# 1 of 5 runs failed\n")
    rows = json.loads(text)["rows"]
    assert [row["error"] is None for row in rows] == [size != 0 for size in SIZES]
    assert table.splitlines()[2] == "hgx_h100,0,2,,,,,," + rows[1]["error"]
    sweep.write_text(sweep.read_text().replace("[1, 0, 2", "[0, 0, 2"))
    status, _, err = cli("bench", sweep)
    assert status == 1
    assert err.count("ZeroDivisionError") < 2 * err.count("Traceback") + 2
    assert err.count("Traceback") == 1


@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(len(SIZES))), num_done=st.integers(0, len(SIZES) - 1))
def test_a_run_that_was_cut_goes_on_to_the_same_files(whole, sweep, tmp_path, order, num_done):
    """At any row, in whatever order they ended; only what is missing runs."""
    files = ["--json", tmp_path / "r.json", "--csv", tmp_path / "r.csv"]
    (tmp_path / "r.json").unlink(missing_ok=True)
    ran = []

    def cut(run, indices, workers):
        for index in order[:num_done]:
            yield index, run(index)
        raise KeyboardInterrupt

    def rest(run, indices, workers):
        for index in indices:
            ran.append(index)
            yield index, run(index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "in_parallel", cut)
        assert status_of("bench", sweep, *files) == 130
        document = json.loads((tmp_path / "r.json").read_text())
        assert document["cells"] == sorted(order[:num_done])
        assert document["partial"] == f"{num_done} rows, then interrupted"
        patch.setattr(parallel, "in_parallel", rest)
        assert status_of("bench", sweep, *files) == 1
    assert sorted(ran) == sorted(order[num_done:])
    assert (tmp_path / "r.json").read_text() == whole[1]
    assert (tmp_path / "r.csv").read_text() == whole[2]


@pytest.fixture
def cut_at_three(sweep, tmp_path, monkeypatch):
    """Let it end after three rows; return its file, the old one kept by a kill."""
    monkeypatch.setattr(results, "_SAVE_EVERY_S", -1.0)

    class Killed(BaseException):
        """As sudden as a signal: nothing is written any more."""

    real = results.GridResults.add

    def add(results, index, row):
        real(results, index, row)
        if index == 2:
            results.has_begun = False
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results.GridResults, "add", add)
        with pytest.raises(Killed):
            main(["bench", str(sweep), "--json", str(tmp_path / "r.json")])
    return tmp_path / "r.json"


def test_a_killed_run_has_left_what_had_ended(cut_at_three, whole, sweep, cli):
    """The table then is that of a whole run, but for a line that says where it went on."""
    assert json.loads(cut_at_three.read_text())["partial"] == "3 rows, then nothing yet"
    status, out, _ = cli("bench", sweep, "--json", cut_at_three)
    first, second, *rest = out.splitlines(keepends=True)
    assert status == 1
    assert second == f"# Resumed from {cut_at_three}; remove it to start again\n"
    assert "".join([first, *rest]) == whole[0]
    assert cut_at_three.read_text() == whole[1]
    assert not cut_at_three.with_name("r.json.part").exists()


def test_another_seed_program_or_a_complete_file_start_anew(cut_at_three, sweep, cli):
    """A complete run is run again, as ever."""
    partial = cut_at_three.read_text()
    assert "# Resumed from" not in cli("bench", sweep, "--seed", 5, "--json", cut_at_three)[1]
    cut_at_three.write_text(partial)
    assert "# Resumed from" in cli("bench", sweep, "--json", cut_at_three)[1]
    assert "# Resumed from" not in cli("bench", sweep, "--json", cut_at_three)[1]
    cut_at_three.write_text(partial)
    (script,) = sweep.parent.glob("*.py")
    script.write_text(PROGRAM.replace("10 //", "30 //"))
    assert "# Resumed from" not in cli("bench", sweep, "--json", cut_at_three)[1]


def test_what_decides_rows_is_in_the_fingerprint(sweep, monkeypatch):
    """The benchmark, the program's file, and variables of NCCL with the file of its tuner."""
    text, found = sweep.read_text(), []

    def note():
        found.append(sweep_module.fingerprint(load_sweep(sweep)))

    note()
    for change in (("size: [1,", "size: [4,"), ("ranks: 2", "ranks: 3"), ("hgx_h100", "hgx_a100")):
        sweep.write_text(text.replace(*change))
        note()
    tuner = sweep.with_name("tuner.csv")
    tuner.write_text("")
    for name, value in (("ALGO", "ring"), ("PROTO", "LL"), ("TUNER_CONFIG_FILE", str(tuner))):
        monkeypatch.setenv(f"NCCL_{name}", value)
        note()
    tuner.write_text("allreduce,0,65536,tree,simple,2,1,-1,-1,-1")
    note()
    assert len(set(found)) == len(found) == 8


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_that_is_not_as_it_was_written_starts_anew_or_goes_on(
    cut_at_three, sweep, whole, data
):
    """Never a traceback, and always the same rows."""
    document = json.loads(cut_at_three.read_text())
    if "cells" not in document:
        document = {**document, "partial": "", "cells": [0], "config": "?"}
    key = data.draw(st.sampled_from(["cells", "rows", "partial", "config", "seed"]))
    strange = st.none() | st.integers() | st.lists(st.none() | st.integers(-1, 9), max_size=4)
    document[key] = data.draw(strange)
    text = json.dumps(document)
    broken = sweep.with_name("broken.json")
    broken.write_text(text[: data.draw(st.integers(0, len(text)))] if key == "seed" else text)
    assert status_of("bench", sweep, "--json", broken) == 1
    assert broken.read_text() == whole[1]


@pytest.mark.parametrize("wrong", [{"compute_us": None}, {"num_ranks": "2"}, {"error": 7}])
def test_rows_without_their_numbers_are_run_again(cut_at_three, sweep, whole, cli, wrong):
    """The page and the table need them."""
    document = json.loads(cut_at_three.read_text())
    document["rows"][0] |= wrong
    cut_at_three.write_text(json.dumps(document))
    page = sweep.with_name("page.html")
    assert cli("bench", sweep, "--json", cut_at_three, "--html", page)[0] == 1
    assert cut_at_three.read_text() == whole[1]


def test_jobs_are_for_benchmarks_of_programs_and_not_beside_a_trace(cli, sweep, tmp_path):
    """Bad usage, before anything runs."""
    status, _, err = cli("bench", sweep, "--jobs", 2, "--trace", tmp_path / "t.json")
    assert status == 2
    assert "--trace: expected runs in this process beside it, got --jobs or --backend" in err
    for target in ("all_reduce", "hgx_h100"):
        status, _, err = cli("bench", target, "--jobs", 2)
        assert status == 2
        assert "--jobs: expected a program benchmark with this option" in err
    assert cli("bench", sweep, "--backend", "slurm")[0] == 2
    assert cli("bench", sweep, "--jobs", 0)[0] == 2


def test_a_timeline_of_ranks_that_no_run_has_is_refused(cli, sweep, tmp_path):
    """Before anything runs."""
    words = ["--trace", tmp_path / "t.json", "--trace-ranks", "1,2"]
    for target in (("all_reduce", "-g", 2), (sweep,)):
        status, out, err = cli("bench", *target, *words)
        assert (status, out) == (2, "")
        assert "--trace-ranks: expected ranks of the run, 0 to 1, got 2" in err


@pytest.mark.slow
def test_two_processes_leave_the_same_files(whole, sweep, tmp_path, cli):
    """To the byte."""
    files = tmp_path / "r.json", tmp_path / "r.csv"
    status, out, _ = cli("bench", sweep, "--jobs", 2, "--json", files[0], "--csv", files[1])
    assert (status, out) == (1, whole[0])
    assert [file.read_text() for file in files] == [*whole[1:]]
