"""Benchmarks of programs: every combination is a row with step time and exposed communication."""

import json
import pickle
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simrank import parallel
from simrank.bench.sweep import run_sweep, sweep_header, sweep_line
from simrank.cli import main
from simrank.config.sweep import load_sweep
from simrank.errors import ConfigError
from simrank.parallel import GridWatcher, Part, Workers

PROGRAM = """
import simrank.distributed as dist

def steps(ctx, size, reduces=1):
    dist.init_process_group("nccl")
    x = ctx.empty(size)
    busy = ctx.empty(size)

    def step():
        busy.mul_(2.0)
        for _ in range(reduces):
            dist.all_reduce(x)

    return step
"""
TP_MLP = Path(__file__).resolve().parents[2] / "benches" / "tp_mlp.yaml"


@pytest.fixture
def sweep(tmp_path):
    """Write a benchmark beside its program; `change` replaces text of it."""

    def make(*change):
        name = f"program_of_{tmp_path.name.replace('-', '_')}"
        (tmp_path / f"{name}.py").write_text(PROGRAM)
        text = (
            f"program: {name}.steps\nclusters: [hgx_h100, hgx_b200]\nnum_ranks: 4\n"
            "parameters: {size: [1024, 4194304], reduces: [0, 2]}\n"
            "iterations: {warmup: 1, timed: 3}\n"
        )
        if change:
            assert change[0] in text
            text = text.replace(*change)
        path = tmp_path / "sweep.yaml"
        path.write_text(text)
        return path

    return make


def test_every_combination_is_a_row_and_times_are_per_step(sweep):
    """The last parameter runs fastest; computation and exposed communication make up the step."""
    rows = run_sweep(load_sweep(sweep()))
    assert [(row["cluster"], row["size"], row["reduces"]) for row in rows] == [
        (cluster, size, reduces)
        for cluster in ("hgx_h100", "hgx_b200")
        for size in (1024, 4194304)
        for reduces in (0, 2)
    ]
    for row in rows:
        parts = row["compute_us"] + row["exposed_us"] + row["idle_us"]
        assert parts == pytest.approx(row["step_us"], rel=0.05)
        assert (row["exposed_us"] > 0) == (row["reduces"] > 0)
        assert row["num_ranks"] == 4
    large = [row for row in rows if row["size"] == 4194304]
    assert large[1]["step_us"] > large[0]["step_us"]


def test_each_file_runs_the_program_beside_it(tmp_path, monkeypatch):
    """Not another file's of the same name, nor the current folder's; helpers of it likewise."""
    step = (
        "import helper\nimport simrank.distributed as dist\n\n\n"
        "def step(ctx, factor):\n    dist.init_process_group()\n"
        "    x = ctx.empty(helper.SIZE)\n    return lambda: x.add_(1)\n"
    )
    for number, folder in enumerate(("here", "one", "two")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "steps.py").write_text(step)
        (tmp_path / folder / "helper.py").write_text(f"SIZE = {2**20 * 4**number}\n")
        (tmp_path / folder / "sweep.yaml").write_text(
            "program: steps.step\ncluster: hgx_h100\nnum_ranks: 1\nparameters: {factor: 1}\n"
        )
    monkeypatch.chdir(tmp_path / "here")
    peaks = [
        run_sweep(load_sweep(tmp_path / folder / "sweep.yaml"))[0]["peak_bytes"]
        for folder in ("one", "two", "here", "one")
    ]
    assert [peak >> 22 for peak in peaks] == [4, 16, 1, 4]
    assert not {"steps", "helper"} & set(sys.modules)


def test_a_program_without_communication_needs_no_group(tmp_path):
    """Its ranks are put in step by a group of simrank's own."""
    (tmp_path / "alone.py").write_text("def f(ctx, n):\n    return lambda: ctx.ones(n) + 1\n")
    path = tmp_path / "alone.yaml"
    path.write_text("program: alone.f\ncluster: hgx_h100\nnum_ranks: 2\nparameters: {n: [8]}\n")
    (row,) = run_sweep(load_sweep(path))
    assert row["error"] is None
    assert row["step_us"] > 0


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("def steps(:\n", "SyntaxError: invalid syntax"),
        ("import numpy_of_nobody\n", "ModuleNotFoundError: No module named 'numpy_of_nobody'"),
        ("x = 1\n1 / 0\n", 'py", line 2, in <module>\n    1 / 0'),
    ],
)
def test_a_program_that_cannot_be_imported_fails_with_its_own_traceback(
    sweep, capsys, program, message
):
    """Status 1: nothing is wrong with the file, nor with simrank."""
    path = sweep()
    (script,) = path.parent.glob("*.py")
    script.write_text(program)
    with pytest.raises(SystemExit) as stop:
        main(["bench", str(path)])
    error = capsys.readouterr().err
    assert stop.value.code == 1
    assert message in error
    assert "/simrank/" not in error.replace(str(path.parent), "")


def test_two_runs_are_equal_to_the_byte(sweep, tmp_path, capsys):
    """Table, JSON and timeline."""
    path = sweep()
    outputs = []
    for number in range(2):
        files = [str(tmp_path / f"{number}.{kind}") for kind in ("json", "csv", "trace")]
        with pytest.raises(SystemExit) as caught:
            main(["bench", str(path), "--json", files[0], "--csv", files[1], "--trace", files[2]])
        assert caught.value.code == 0
        outputs.append([capsys.readouterr().out, *(Path(file).read_text() for file in files)])
    assert outputs[0] == outputs[1]
    assert len(json.loads(outputs[0][1])["rows"]) == 8


def test_the_number_of_ranks_may_be_a_parameter(sweep):
    """As for tensor-parallel sizes."""
    path = sweep("num_ranks: 4", "num_ranks: reduces").with_name("sweep.yaml")
    with pytest.raises(ConfigError, match=r"yaml:3: num_ranks: expected 1 to 8 .*, got 0"):
        load_sweep(path)


def test_a_program_that_is_not_there_is_a_configuration_error(sweep):
    """With what Python said; so is one that cannot be called."""
    path = sweep()
    path.write_text(f"program: math.pi\n{path.read_text().partition(chr(10))[2]}")
    with pytest.raises(ConfigError, match=r"got math\.pi \(a float, which cannot be called\)"):
        run_sweep(load_sweep(path))
    with pytest.raises(ConfigError, match="expected the name of a function with its module"):
        run_sweep(load_sweep(sweep(".steps", ".stairs")))


def test_the_benchmark_of_the_tensor_parallel_mlp_runs_and_overlap_helps(capsys):
    """Checked whole; run on one cluster and size."""
    with pytest.raises(SystemExit) as caught:
        main(["check", str(TP_MLP)])
    assert caught.value.code == 0
    assert "72 runs" in capsys.readouterr().out
    config = load_sweep(TP_MLP)
    small = config.model_copy(
        update={
            "clusters": config.clusters[:1],
            "parameters": {"tp_size": (1, 8), "hidden": (8192,), "overlap": (True, False)},
        }
    )
    serial, _, overlapped, exposed = run_sweep(small)
    assert serial["exposed_us"] == 0
    assert overlapped["step_us"] < exposed["step_us"] < serial["step_us"]
    assert overlapped["exposed_us"] < 0.6 * exposed["exposed_us"]


TINY = """
import simrank.distributed as dist

def step(ctx, ranks, size=8):
    dist.init_process_group("nccl")
    if size == 5:
        raise KeyError("five, said\\nthe program")
    x, everyones = ctx.empty(size), ctx.empty(size * ranks)
    gather = lambda: dist.all_gather_into_tensor(everyones, x)
    return gather if size == 7 else lambda: dist.all_reduce(x)
"""


@pytest.fixture
def tiny(tmp_path):
    """Write a benchmark of six runs, and return it read."""

    def make(rest="parameters: {ranks: [1, 2], size: [8, 5, 6]}"):
        name = f"tiny_of_{tmp_path.name.replace('-', '_')}"
        (tmp_path / f"{name}.py").write_text(TINY)
        text = f"program: {name}.step\ncluster: hgx_h100\nnum_ranks: ranks\n{rest}\n"
        (tmp_path / "tiny.yaml").write_text(text)
        return load_sweep(tmp_path / "tiny.yaml")

    return make


class Heard(GridWatcher):
    def __init__(self):
        self.rows, self.ended, self.progress = [], [], []

    def on_row(self, row, report):
        self.rows.append((row, report))

    def on_end(self, index, row):
        self.ended.append(index)

    def on_progress(self, what, done, total):
        self.progress.append((what, done, total))


@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(6)), num_finished=st.integers(0, 6))
def test_rows_are_the_same_in_the_same_order_however_runs_end(tiny, order, num_finished):
    """In any order, some of them earlier; each runs once."""
    config = tiny()
    expected = run_sweep(config)

    def in_order(run, indices, workers):
        return ((each, run(each)) for each in order if each in indices)

    finished = {each: dict(expected[each]) for each in order[:num_finished]}
    heard = Heard()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "in_parallel", in_order)
        rows = run_sweep(config, watcher=heard, part=Part(finished=finished))
    assert json.dumps(rows) == json.dumps(expected) == json.dumps([row for row, _ in heard.rows])
    assert heard.ended == list(order)
    assert [done for _, done, _ in heard.progress] == list(range(num_finished, 7))
    assert heard.progress[-1] == ("", 6, 6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Of the libraries.
@pytest.mark.parametrize("backend", [None, "loky", "dask", "ray"])
def test_rows_are_the_same_whoever_runs_them(tiny, backend):
    """Processes of this machine, and backends of joblib where they are installed."""
    if backend is not None:
        pytest.importorskip({"dask": "distributed", "ray": "ray", "loky": "joblib"}[backend])
    config = tiny()
    one, two = Heard(), Heard()
    run_sweep(config, watcher=one)
    run_sweep(config, watcher=two, part=Part(Workers(2, backend)))
    assert one.rows == two.rows


def test_a_run_that_fails_is_a_row_with_its_error(tiny):
    """On one line; the whole text is told beside it. The others are as without it."""
    config, heard = tiny(), Heard()
    rows = run_sweep(config, watcher=heard)
    errors = ["rank 0: KeyError: 'five, said\\nthe program'" if each == 5 else None
              for each in (8, 5, 6) * 2]  # fmt: skip
    assert [row["error"] for row in rows] == errors
    assert rows[1]["step_us"] is rows[1]["peak_bytes"] is None
    assert [list(row) == list(rows[0]) for row in rows] == [True] * 6
    assert sweep_line(rows[1]).endswith(f" {errors[1]}")
    assert sweep_line(rows[0]).endswith("0.00")
    reports = [report for _, report in heard.rows]
    assert "Traceback" in reports[1]
    assert [report is None for report in reports] == [error is None for error in errors]


def test_a_cluster_with_too_few_devices_is_a_row_beside_others_that_have_enough(tiny):
    """So are algorithms that do not run on as many ranks."""
    config = tiny("parameters: {ranks: [2, 16, 3], size: 7}\nalgorithms: [auto, halving_doubling]")
    rows = run_sweep(config)
    assert [(row["num_ranks"], row["algorithms"]) for row in rows] == [
        (ranks, name) for ranks in (2, 16, 3) for name in ("auto", "halving_doubling")
    ]
    errors = [row["error"] for row in rows]
    assert errors[:2] == [None, None]
    assert errors[4] is None
    assert "expected 1 to 8 ranks, the devices of hgx_h100, got 16" in errors[2] == errors[3]
    assert errors[5].startswith("ValueError: all_gather halving_doubling runs on powers of two")


def test_algorithms_are_run_side_by_side(tiny):
    """By their name, wherever a collective has it, or by collective."""
    config = tiny(
        "parameters: {ranks: 8, size: 65536}\nalgorithms: [ring, two_shot, {all_reduce: ring}]"
    )
    ring, two_shot, again = run_sweep(config)
    assert ring["step_us"] == again["step_us"] != two_shot["step_us"]
    assert again["algorithms"] == "all_reduce=ring"
    assert sweep_header(config).split()[:4] == ["cluster", "ranks", "size", "algorithms"]
    for wrong, message in (
        ("[auto, rign]", r"yaml:5: algorithms\[1\]: expected auto, or an algorithm, got rign"),
        ("[{all_gather: nvlz}]", "expected auto, or an algorithm of all_gather, got nvlz"),
    ):
        with pytest.raises(ConfigError, match=message):
            run_sweep(tiny(f"parameters: {{ranks: 8}}\nalgorithms: {wrong}"))


def test_a_benchmark_can_be_sent_to_another_process(sweep):
    """With the lines of its file, which its errors name."""
    config = load_sweep(sweep())
    copy = pickle.loads(pickle.dumps(config))
    assert copy.cells() == config.cells()
    assert copy.source.problem(("num_ranks",), "x", "y").line == 3
