"""`simrank plan`: a line per run, a table with the best first, files, and where it goes on."""

import csv
import json

import pytest

from simrank import parallel

PROGRAM = """
import sys
import simrank

x = simrank.empty(int(sys.argv[1]) * 2**28, device="cuda")
x.mul_(2.0)
simrank.cuda.synchronize()
if sys.argv[2] == "fails":
    raise ValueError("asked to fail")
"""
PLAN = """\
command: train.py {gib} {how}
cluster: hgx_h100
parameters: {nproc_per_node: 1, gib: [100, 1], how: [works]}
"""


@pytest.fixture
def plan(tmp_path):
    """Write a plan of two runs, of which one does not fit, and its program."""
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "plan.yaml").write_text(PLAN)
    return tmp_path / "plan.yaml"


def test_the_table_is_sorted_and_names_the_command_of_the_best(plan, cli, tmp_path):
    """Each finished run is a line on stderr; out of memory leaves the exit status at 0."""
    files = [tmp_path / name for name in ("r.json", "r.csv", "r.html")]
    status, out, err = cli("plan", plan, "--json", files[0], "--csv", files[1], "--html", files[2])
    assert status == 0
    _, what, columns, best, rest, stack, whole_runs, last = out.splitlines()
    assert what == "# 2 runs of: train.py {gib} {how}"
    assert columns.split()[:4] == ["cluster", "nproc_per_node", "gib", "how"]
    assert best.split()[2] == "1"
    assert rest.endswith("does not fit: allocates 100.0 GiB of 79.2")
    assert stack.startswith("# Times are those of torch 2.11 and newer")
    assert whole_runs.startswith("# No optimizer has stepped")
    options = "--shape-only --cluster hgx_h100 --nproc-per-node 1"
    assert last == f"# The best: cd {tmp_path} && simrank run {options} train.py 1 works"
    assert err.splitlines()[0].startswith("1/2 hgx_h100 gib=100: ")
    document = json.loads(files[0].read_text())
    assert [row["gib"] for row in document["rows"]] == [100, 1]
    assert len(files[1].read_text().splitlines()) == 3
    assert "Speed over memory" in files[2].read_text()


def test_a_dry_run_lists_the_commands(plan, cli):
    """And runs none."""
    status, out, err = cli("plan", plan, "--dry-run")
    assert (status, err) == (0, "")
    options = "--shape-only --cluster hgx_h100 --nproc-per-node 1"
    assert out.splitlines()[1] == f"cd {plan.parent} && simrank run {options} train.py 1 works"


def test_a_failed_run_is_told_once_and_decides_the_status(plan, cli):
    """Its report is on stderr, once for equal errors."""
    plan.write_text(PLAN.replace("[works]", "[fails]"))
    status, out, err = cli("plan", plan, "--jobs", 1)
    assert status == 1
    assert out.splitlines()[-1] == "# 2 of 2 runs failed"
    assert err.count("Traceback") == 1


def test_a_program_without_devices_is_told_so(plan, cli):
    """It has neither a time nor memory to compare."""
    plan.write_text("command: idle.py\ncluster: hgx_h100\nparameters: {nproc_per_node: 1}\n")
    plan.with_name("idle.py").write_text("print('hi')\n")
    status, out, err = cli("plan", plan, "--jobs", 1)
    assert status == 1
    assert "no rank used a device: plan a program that computes on cuda devices" in err
    assert out.splitlines()[-1] == "# 1 of 1 runs failed"


def test_no_cell_of_a_table_is_a_formula(plan, cli, tmp_path):
    """Texts get a quote before them, numbers keep their sign."""
    plan.write_text(
        "command: idle.py {n} {word}\ncluster: hgx_h100\n"
        "parameters: {nproc_per_node: 1, n: [-1], word: ['=1+1', plain]}\n"
    )
    plan.with_name("idle.py").write_text("")
    assert cli("plan", plan, "--jobs", 1, "--csv", tmp_path / "r.csv")[0] == 1
    head, *rows = csv.reader((tmp_path / "r.csv").read_text().splitlines())
    found = [(row[head.index("n")], row[head.index("word")]) for row in rows]
    assert found == [("-1", "'=1+1"), ("-1", "plain")]


def test_a_plan_that_was_stopped_goes_on_where_it_ended(plan, cli, tmp_path, monkeypatch):
    """The table of what is there is printed; only what is missing runs."""
    plan.write_text(PLAN.replace("[100", "[2"))
    file, ran = tmp_path / "r.json", []

    def cut(run, indices, workers):
        yield indices[0], run(indices[0])
        raise KeyboardInterrupt

    def rest(run, indices, workers):
        for index in indices:
            ran.append(index)
            yield index, run(index)

    monkeypatch.setattr(parallel, "in_parallel", cut)
    status, out, _ = cli("plan", plan, "--json", file)
    assert status == 130
    assert "# Partial: 1 rows, then interrupted" in out
    monkeypatch.setattr(parallel, "in_parallel", rest)
    status, out, _ = cli("plan", plan, "--json", file)
    assert (status, ran) == (0, [1])
    assert f"# 1 of 2 runs are in {file}" in out
    assert len(json.loads(file.read_text())["rows"]) == 2


def test_a_file_keeps_the_rows_of_other_layouts(plan, cli, tmp_path, monkeypatch):
    """A smaller plan and the larger one again run nothing."""
    file = tmp_path / "r.json"
    plan.write_text(PLAN.replace("[100, 1]", "[2, 1]"))
    assert cli("plan", plan, "--json", file)[0] == 0
    both = json.loads(file.read_text())["rows"]

    def none(run, indices, workers):
        assert not indices
        return iter(())

    monkeypatch.setattr(parallel, "in_parallel", none)
    plan.write_text(PLAN.replace("[100, 1]", "[1, 1]"))
    status, out, _ = cli("plan", plan, "--json", file)
    assert (status, out.splitlines()[2].startswith("# 1 run of")) == (0, True)
    document = json.loads(file.read_text())
    assert (document["rows"], document["other_rows"]) == (both[1:], both[:1])
    plan.write_text(PLAN.replace("[100, 1]", "[2, 1]"))
    cli("plan", plan, "--json", file)
    assert json.loads(file.read_text())["rows"] == both


def test_a_plan_in_another_commands_place_names_its_own(plan, cli):
    """Alone, and as a benchmark."""
    status, _, err = cli(plan)
    assert (status, f"To run it: simrank plan {plan}" in err) == (2, True)
    status, _, err = cli("bench", plan)
    assert (status, f"to fix: simrank plan {plan}" in err) == (2, True)


def test_a_program_in_the_place_of_a_plan_is_told_the_plan(cli):
    """With the keys that it needs."""
    status, _, err = cli("plan", "train.py")
    assert (status, "to fix: write `command: train.py`, `cluster: " in err) == (2, True)


def test_what_is_no_plan_is_named(plan, cli):
    """With the key that is wrong."""
    plan.write_text(PLAN.replace("command", "program"))
    status, _, err = cli("plan", plan)
    assert status == 2
    assert "plan.yaml:1: program: expected one of command" in err


OF_MODEL = "--model", "llama3-8b", "--gpus", "64xh100"


def test_a_model_and_devices_are_a_plan(cli, tmp_path, monkeypatch):
    """Its lines say what is trained, and how many layouts arithmetic leaves out."""
    monkeypatch.chdir(tmp_path)
    status, out, err = cli("plan", *OF_MODEL, "--seq", 4096, "--dry-run")
    assert (status, err) == (0, "")
    what, left_out, again, first, *_ = out.splitlines()
    where = "on 64 x H100 SXM of h100_ib: 64 sequences of 4096 tokens per step"
    assert what == f"# llama3-8b, 8.0 billion parameters, {where}"
    assert left_out.startswith("# layouts left out by arithmetic: ")
    assert "do not divide" in left_out
    assert again.endswith("simrank plan llama3-8b-64xh100_ib/plan.yaml")
    folder = tmp_path / "llama3-8b-64xh100_ib"
    assert first.startswith(f"cd {folder} && simrank run --shape-only --cluster h100_ib ")
    assert "train.py --model model.yaml --seq 4096 --batch 64 --tp 1" in first


def test_the_plan_of_a_model_is_kept_with_its_program(cli, tmp_path):
    """The same words run it again; a changed one is not overwritten."""
    folder = tmp_path / "kept"
    words = "plan", *OF_MODEL, "--save", folder, "--dry-run"
    _, out, _ = cli(*words)
    assert sorted(path.name for path in folder.iterdir()) == ["model.yaml", "plan.yaml", "train.py"]
    _, again, _ = cli("plan", folder / "plan.yaml", "--dry-run")
    assert again.splitlines() == out.splitlines()[3:]
    assert cli(*words) == (0, out, "")
    (folder / "model.yaml").write_text((folder / "model.yaml").read_text() + "# mine\n")
    status, _, err = cli(*words)
    assert status == 2
    assert "model.yaml differs" in err
    assert f"to fix: simrank plan {folder / 'plan.yaml'}" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "a YAML file, or --model and --gpus, got neither"),
        (("plan.yaml", *OF_MODEL), "a YAML file or --model, got both"),
        (("plan.yaml", "--seq", "8"), "--seq: expected this option with --model only, got 8"),
        (("--model", "llama3-8b"), "--gpus: expected the devices beside --model"),
        (("--model", "llama3-405b", "--gpus", "8xh100"), "devices on which some layout fits"),
    ],
)
def test_options_of_a_model_and_a_file_exclude_each_other(cli, words, said):
    """Before anything runs."""
    status, _, err = cli("plan", *words)
    assert status == 2
    assert said in err
