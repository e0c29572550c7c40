"""Benchmarks of programs: every combination is a row with step time and exposed communication."""

import json
import sys
from pathlib import Path

import pytest

from simrank.bench.sweep import run_sweep
from simrank.cli import main
from simrank.config.sweep import load_sweep
from simrank.errors import ConfigError

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
    seen = []
    rows = run_sweep(load_sweep(sweep()), on_row=seen.append)
    assert seen == rows
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
