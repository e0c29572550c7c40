"""Plans: each combination is a run of its own, and its row says what the run's summary does."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benches import steps_published
from simrank.cli import main
from simrank.config.plan import load_plan
from simrank.errors import ConfigError
from simrank.parallel import Part, Workers
from simrank.planning import plan as plan_module
from simrank.planning.plan import (
    INTERVAL_FACTORS,
    best_command,
    best_first,
    check_program,
    is_row,
    kept_rows,
    limits_of,
    pareto_front,
    plan_page,
    remarks_of,
    run_key,
    run_plan,
    table_of,
    times_text,
)

PROGRAM = """
import sys
import simrank
import simrank.distributed as dist

size = int(sys.argv[1])
dist.init_process_group("nccl")
if size == 3 and dist.get_rank() == 1:
    raise ValueError("asked to fail")
x = simrank.empty(size * 2**28, device="cuda")
dist.all_reduce(x)
"""
PLAN = """\
command: train.py {gib} {how}
cluster: hgx_h100
parameters: {nproc_per_node: [2], gib: [1, 8], how: [works]}
tokens_per_step: gib * 1000
"""


MEMORY = "--set memory=4GiB"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plan")


@pytest.fixture
def plan(folder):
    """Write a plan and its program; return the plan, with some text replaced."""
    return lambda *changes: plan_in(folder, *changes)


def plan_in(folder, *changes):
    (folder / "train.py").write_text(PROGRAM)
    text = PLAN
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "plan.yaml").write_text(text)
    return load_plan(folder / "plan.yaml")


@pytest.fixture(scope="module")
def rows(folder):
    """The rows of runs that fail, fit and do not fit, two at a time."""
    plan = plan_in(folder, ("train.py", f"{MEMORY} train.py"), ("[1, 8]", "[3, 1, 8, 100]"))
    return run_plan(plan, part=Part(Workers(jobs=2)))


def row(**changes):
    """Return a row of a run that fits."""
    return {
        "cluster": "hgx_h100", "gib": 1, "num_ranks": 2, "num_steps": 0, "step_ms": 10.0,
        "low_ms": 9.0, "high_ms": 11.1, "tokens_per_s": 200.0, "tokens_per_s_per_rank": 100.0,
        "mfu": 0.4, "parts_ms": {"forward": 3.0, "backward": 4.0, "wait for tp": 2.0, "idle": 1.0},
        "peak_allocated_bytes": 2**30, "peak_reserved_bytes": 2**31, "memory_by_kind_bytes": {},
        "memory_bytes": 2**36, "grouped_share": 0.0, "fits": True, "error": None, "inputs": None,
        **changes,
    }  # fmt: skip


def test_a_row_has_the_figures_of_its_run(rows, plan, monkeypatch, capsys):
    """Those of `simrank run` with the same words; a plan without steps times the whole run."""
    _, found, *_ = rows
    monkeypatch.chdir(plan().folder)
    options = ["--shape-only", "--nproc-per-node", "2", "--summary", "json"]
    with pytest.raises(SystemExit):
        main(["run", *options, *MEMORY.split(), "train.py", "1", "works"])
    summary = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert found["step_ms"] == summary["simulated_us"] / 1e3
    assert found["low_ms"] == pytest.approx(found["step_ms"] * INTERVAL_FACTORS[0])
    assert found["high_ms"] == pytest.approx(found["step_ms"] * INTERVAL_FACTORS[1])
    assert found["tokens_per_s"] == pytest.approx(1000 / found["step_ms"] * 1e3)
    assert found["tokens_per_s_per_rank"] == found["tokens_per_s"] / 2
    assert found["peak_allocated_bytes"] == found["peak_reserved_bytes"] == 2**30
    assert sum(found["parts_ms"].values()) == pytest.approx(found["step_ms"])
    assert all(is_row(each) for each in rows)


def test_a_layout_that_does_not_fit_says_how_much_it_needs(rows):
    """From a second run with four times the memory that is set; beyond that it says that."""
    failed, fits, needs, far = rows
    assert (fits["fits"], needs["fits"], far["fits"]) == (True, False, False)
    assert needs["peak_reserved_bytes"] == 8 * 2**30 > needs["memory_bytes"] == 4 * 2**30
    assert needs["step_ms"] > fits["step_ms"]
    assert limits_of(needs) == "does not fit: allocates 8.0 GiB of 4.0"
    assert far["error"] == "needs more than 16 GiB per device"
    assert [each["gib"] for each in best_first([failed, far, needs, fits])] == [1, 8, 3, 100]


def test_memory_in_pieces_is_named_where_it_does_not_fit():
    """Where tensors alone would fit."""
    facts = {"fits": False, "peak_allocated_bytes": 60 * 2**30, "peak_reserved_bytes": 70 * 2**30}
    said = "does not fit: allocates 60.0 GiB of 64.0, for which torch reserves 70.0"
    assert limits_of(row(**facts)) == said


def test_a_row_says_that_it_rests_on_products_of_groups():
    """And a remark what that is."""
    found = row(grouped_share=0.25)
    assert "kernels 25% products of groups" in limits_of(found)
    assert any("Products of groups" in each for each in remarks_of([found]))
    assert not any("Products of groups" in each for each in remarks_of([row()]))


def test_a_run_without_a_step_is_not_the_best_beside_one_that_trains():
    """Its time is that of the whole run, which may have ended early."""
    whole, step = row(step_ms=1.0, tokens_per_s_per_rank=900.0), row(num_steps=2, gib=8)
    assert best_first([whole, step]) == [step, whole]
    assert any("in some runs, which come last" in each for each in remarks_of([whole, step]))
    assert times_text(step) == "10.0 ms (9-11.1)"


def test_a_run_that_fails_is_a_row_with_its_cause(rows):
    """Nobody knows whether it fits; others run on, in parallel too."""
    assert [each["error"] for each in rows[:3]] == ["ValueError: asked to fail", None, None]
    assert [each["fits"] for each in rows[:3]] == [None, True, False]


@pytest.mark.parametrize("jobs", [1, 2])
def test_runs_end_with_the_process_that_wanted_them(tmp_path, jobs):
    """Child processes end when their parent is killed."""
    plan_in(tmp_path)
    (tmp_path / "train.py").write_text(
        "import os\nfrom pathlib import Path\n"
        "Path('pid').write_text(str(os.getpid()))\nwhile True: pass\n"
    )
    script = (
        "from simrank.planning.plan import run_plan\nfrom simrank.config.plan import load_plan\n"
        "from simrank.parallel import Workers\nfrom simrank.parallel import Part\n"
        "if __name__ == '__main__':\n"
        f"    plan = load_plan({str(tmp_path / 'plan.yaml')!r})\n"
        f"    run_plan(plan, part=Part(Workers(jobs={jobs})))\n"
    )
    path = tmp_path / "pid"
    (tmp_path / "outer.py").write_text(script)
    with subprocess.Popen([sys.executable, tmp_path / "outer.py"]) as outer:
        try:
            assert eventually(lambda: path.exists() and path.read_text())
        finally:
            outer.kill()
    state = Path(f"/proc/{path.read_text()}/stat")
    assert eventually(lambda: not state.exists() or " Z " in state.read_text())


def eventually(is_so):
    """Return whether something becomes so within 20 seconds."""
    for _ in range(400):
        if is_so():
            return True
        time.sleep(0.05)
    return False


def test_the_interval_is_that_of_published_steps():
    """Of machines that are known; each source counts alike, and no end is wider than needed."""
    rows = steps_published.measured()
    low, high = steps_published.interval(rows)
    assert (pytest.approx(low, abs=0.006), pytest.approx(high, abs=0.006)) == INTERVAL_FACTORS
    assert (len(rows), len({row["source"] for row in rows})) == (40, 9)


def test_the_interval_of_the_other_sources_has_most_steps_of_each_source():
    """At most one source is mostly outside, and half the interval is at most 25 percent."""
    rows, outside = steps_published.measured(), []
    for source in {row["source"] for row in rows}:
        low, high = steps_published.interval(rows, source)
        assert (high / low) ** 0.5 <= 1.25
        factors = [1 / (1 + row["error"]) for row in rows if row["source"] == source]
        if sum(low <= factor <= high for factor in factors) < len(factors) / 2:
            outside.append(source)
    assert len(outside) <= 1


def test_a_run_that_took_no_time_is_not_the_best(plan):
    """It has done nothing, or was not seen to."""
    config = plan()
    rows = [
        row(nproc_per_node=2, how="works", gib=gib, step_ms=ms) for gib, ms in ((1, 0.0), (8, 3.0))
    ]
    assert [each["gib"] for each in best_first(rows)] == [8, 1]
    assert best_command(config, rows).endswith("train.py 8 works")
    assert best_command(config, rows[:1]) is None
    assert limits_of(row(peak_reserved_bytes=2**36)).endswith("memory is nearly full")


def test_intervals_have_three_digits_or_whole_milliseconds(plan):
    """Of microseconds as of minutes."""
    spans = [(9069.0, 10157.7), (89.29, 100.5), (0.2679, 0.336)]
    rows = [
        row(nproc_per_node=2, how="works", low_ms=low, high_ms=high, tokens_per_s_per_rank=-number)
        for number, (low, high) in enumerate(spans)
    ]
    columns, lines = table_of(plan(), rows)
    at = columns.index("90% interval")
    assert [line[at] for line in lines] == ["9069-10158", "89.3-100", "0.268-0.336"]


def test_no_row_of_the_front_is_beaten_in_speed_and_memory(plan):
    """Every other one is."""
    rows = [
        row(tokens_per_s_per_rank=float(speed), peak_reserved_bytes=size)
        for speed, size in [(5, 50), (4, 40), (4, 45), (3, 10), (1, 20), (5, 60)]
    ]
    front = pareto_front([*rows, row(fits=False, tokens_per_s_per_rank=9.0)])
    assert [(each["tokens_per_s_per_rank"], each["peak_reserved_bytes"]) for each in front] == [
        (5.0, 50), (4.0, 40), (3.0, 10),
    ]  # fmt: skip


def test_without_tokens_the_shortest_step_is_the_best(plan):
    """And columns that no row has are left out."""
    config = plan(("tokens_per_step: gib * 1000\n", ""))
    rows = [
        row(
            nproc_per_node=2, how="works", gib=gib, step_ms=ms, tokens_per_s_per_rank=None, mfu=None
        )
        for gib, ms in ((1, 5.0), (8, 3.0))
    ]
    columns, lines = table_of(config, rows)
    assert [line[2] for line in lines] == ["8", "1"]
    assert "MFU" not in columns
    assert "tokens/s/GPU" not in columns
    assert lines[0][-1] == "compute 70%, wait for tp 20%"


@pytest.fixture
def imported(tmp_path):
    """Write a plan of one run whose program imports a module and reads a file; run it."""
    (tmp_path / "sizes.py").write_text("GIB = 1\n")
    (tmp_path / "times.txt").write_text("2")
    (tmp_path / "train.py").write_text(
        "import sys\nimport simrank\nfrom sizes import GIB\ntimes = int(open('times.txt').read())\n"
        "x = simrank.empty(GIB * times * int(sys.argv[1]) * 2**28, device='cuda')\nx.mul_(2.0)\n"
        "open('log.txt', 'w').write(str(times))\nopen('log.txt').read()\n"
    )
    text = "command: train.py {n}\ncluster: hgx_h100\nparameters: {nproc_per_node: 1, n: [1]}\n"
    (tmp_path / "plan.yaml").write_text(text)
    return load_plan(tmp_path / "plan.yaml"), run_plan(load_plan(tmp_path / "plan.yaml"))


def test_a_row_holds_until_a_file_changes_that_its_run_has_read(imported):
    """The program, what it imports and data; not what it writes itself."""
    plan, rows = imported
    assert sorted(rows[0]["inputs"]["files"]) == ["sizes.py", "times.txt", "train.py"]
    for name in ("sizes.py", "times.txt", "train.py"):
        path, before = plan.folder / name, (plan.folder / name).read_text()
        assert kept_rows(plan, rows)[0][0]["step_ms"] == rows[0]["step_ms"]
        path.write_text(f"{before}\n")
        assert kept_rows(plan, rows) == ({}, [])
        path.write_text(before)
    (plan.folder / "log.txt").write_text("another")
    assert len(kept_rows(plan, rows)[0]) == 1
    (plan.folder / "sizes.py").unlink()
    assert kept_rows(plan, rows) == ({}, [])


def test_rows_are_those_of_any_plan_with_the_same_run(imported, monkeypatch):
    """In a larger grid, in another place, with a further column; others are given back."""
    plan, rows = imported
    path = plan.folder / "plan.yaml"
    path.write_text(path.read_text().replace("n: [1]}", "n: [2, 1], u: [0]}\nwhere: u < 1"))
    own, others = kept_rows(load_plan(path), rows)
    assert (list(own), others) == ([1], [])
    path.write_text(path.read_text().replace("[2, 1]", "[2]"))
    assert kept_rows(load_plan(path), rows) == ({}, rows)
    assert kept_rows(load_plan(path), [{**rows[0], "inputs": None}, {}, 3]) == ({}, [])
    assert kept_rows(load_plan(path), [{**rows[0], "inputs": 3}]) == ({}, [])
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    assert kept_rows(plan, rows) == ({}, rows)


def test_a_program_that_ends_before_it_trains_has_no_row(monkeypatch, plan):
    """It made an optimizer, and no backward ran; with one it is timed as a whole."""
    summary = {"ranks": [{}], "optimizers": ["AdamW"], "has_backward": False}
    ended = plan_module._Ended(summary, "")
    monkeypatch.setattr(plan_module, "_run", lambda *_: ended)
    outcome = plan_module._run_cell(plan().cells, Path(), 0)
    assert outcome.row["error"] == "ended before it trained: it made AdamW, and no backward ran"
    assert outcome.row["fits"] is None
    assert not plan_module.kept_rows(plan(), [outcome.row])[0]


def test_what_decides_a_run_is_in_its_key(plan):
    """Its command and tokens, but no other run's."""
    first, second = (run_key(cell, "here") for cell in plan().cells)
    assert first != second
    assert run_key(plan(("[1, 8]", "[1, 9]")).cells[0], "here") == first
    assert run_key(plan(("gib * 1000", "gib * 1001")).cells[0], "here") != first
    assert run_key(plan().cells[0], "there") != first


def test_a_command_without_a_program_is_refused_before_it_runs(plan):
    """With what is expected."""
    with pytest.raises(ConfigError, match="then a Python file in"):
        check_program(plan(("train.py {gib}", "trian.py {gib}")))
    check_program(plan(("train.py {gib}", "-m train {gib}")))


@pytest.mark.parametrize(
    ("report", "cause"),
    [
        ("loss: 1\nOwnError: mine\n-- Process 3 terminated with the following error:\n"
         "torch.OutOfMemoryError: CUDA out of memory.\n  now: x\n", "torch.OutOfMemoryError: CUDA"),
        ("simrank: 1 of 8 ranks run\ndeadlock (proved) at t=1 us: 8 rank(s) wait\n  ranks 0-7: x\n",
         "deadlock (proved) at t=1 us"),
        ("a warning\ncommand line: --set: expected KEY=VALUE, got x\n  to fix: y\n", "command"),
        ("usage\nprocess 0 terminated with exit code 2\n", "process 0 terminated with exit code 2"),
        ("half of a line\nthe run was ended by signal 9; to fix: z\n", "the run was ended"),
        ("one\ntwo\n", "two"),
        ("", "no output"),
    ],
)  # fmt: skip
def test_the_cause_of_a_failure_is_one_line_of_its_report(report, cause):
    """Not what the program has written before."""
    assert plan_module._one_line(report).startswith(cause)


def test_only_the_last_line_of_json_is_a_summary():
    """A program may print anything before it."""
    ended = plan_module._summary_of('{"a": 1}\n{"constants": [], "steps": null}\nnotes\n')
    assert ended.summary == {"constants": [], "steps": None}
    assert plan_module._summary_of("nothing\n").summary is None


# ---- the page of a plan: a point per row, bars of the best ----

ROW = {
    "cluster": "hgx_h100", "tp": 1, "num_ranks": 8, "num_steps": 2, "step_ms": 10.0,
    "low_ms": 9.0, "high_ms": 11.1,
    "tokens_per_s": 800.0, "tokens_per_s_per_rank": 100.0, "mfu": 0.4,
    "parts_ms": {"forward": 7.0, "wait for <tp>": 2.0, "idle": 1.0},
    "peak_allocated_bytes": 3 * 2**30, "peak_reserved_bytes": 4 * 2**30,
    "memory_by_kind_bytes": {"parameters": 2**30}, "memory_bytes": 80 * 2**30, "grouped_share": 0.0,
    "fits": True, "error": None, "inputs": None,
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
