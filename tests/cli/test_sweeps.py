"""Benchmarks of programs that end early, and go on where they ended."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simrank.bench import parallel
from simrank.bench import sweep as sweep_module
from simrank.cli import main, results
from simrank.config.sweep import load_sweep

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


@pytest.mark.parametrize(
    ("old", "new"),
    [("size: [1,", "size: [4,"), ("num_ranks: 2", "num_ranks: 3"), ("hgx_h100", "hgx_a100")],
)
def test_another_benchmark_starts_anew(cut_at_three, sweep, cli, old, new):
    """Its rows are not those of the file; nor are another seed's, or a changed program's."""
    text = sweep.read_text()
    sweep.write_text(text.replace(old, new))
    assert "# Resumed from" not in cli("bench", sweep, "--json", cut_at_three)[1]


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


@pytest.mark.parametrize("name", ["NCCL_ALGO", "NCCL_PROTO", "NCCL_TUNER_CONFIG_FILE"])
def test_nccls_variables_are_part_of_a_benchmark(cut_at_three, sweep, cli, monkeypatch, name):
    """Rows that ran with another value are no rows of this one."""
    tuner = sweep.with_name("tuner.csv")
    tuner.write_text("")
    value = {"NCCL_ALGO": "ring", "NCCL_PROTO": "LL"}.get(name, str(tuner))
    partial = cut_at_three.read_text()
    monkeypatch.setenv(name, value)
    assert "# Resumed from" not in cli("bench", sweep, "--json", cut_at_three)[1]
    monkeypatch.delenv(name)
    cut_at_three.write_text(partial)
    assert "# Resumed from" in cli("bench", sweep, "--json", cut_at_three)[1]


def test_a_fingerprint_is_another_once_the_tuners_file_changes(sweep, tmp_path, monkeypatch):
    """As it is once the program's file does."""
    tuner = tmp_path / "tuner.csv"
    monkeypatch.setenv("NCCL_TUNER_CONFIG_FILE", str(tuner))
    found = set()
    for text in ("", "allreduce,0,65536,tree,simple,2,1,-1,-1,-1"):
        tuner.write_text(text)
        found.add(sweep_module.fingerprint(load_sweep(sweep)))
    assert len(found) == 2


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


@pytest.mark.slow
def test_two_processes_leave_the_same_files(whole, sweep, tmp_path, cli):
    """To the byte."""
    files = tmp_path / "r.json", tmp_path / "r.csv"
    status, out, _ = cli("bench", sweep, "--jobs", 2, "--json", files[0], "--csv", files[1])
    assert (status, out) == (1, whole[0])
    assert [file.read_text() for file in files] == [*whole[1:]]
