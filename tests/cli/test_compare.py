"""`simrank compare`: its options, statuses and files; real processes stand in test_compared."""

import json
from contextlib import nullcontext
from importlib.util import find_spec

import pytest

from simrank.cli import compare, main
from simrank.cli.compare import MISSING
from simrank.errors import ConfigError
from simrank.validate.compare.program import Job

HAS_TORCH = find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
STEP = """
import simrank.distributed as dist


def step(rank, world_size):
    parts = [None] * world_size
    dist.all_gather_object(parts, rank)
    if rank == 1 and {fails}:
        raise ValueError("bad shard")
    dist.barrier()
    return {{"sum": sum(parts)}}
"""
TORCH = """
import os
import torch
import torch.distributed as dist


def step(rank, world_size):
    dist.init_process_group("gloo")
    x = torch.ones(4) * rank
    dist.all_reduce(x)
    if "SIMRANK_WORKER" in os.environ:
        x += {wrong}
    dist.destroy_process_group()
    return x


if __name__ == "__main__":
    import sys

    assert sys.argv[1:] == ["--flag"]
    step(0, 2)
"""


def run(*arguments):
    """Run the command and return its status."""
    with pytest.raises(SystemExit) as ended:
        main(["compare", *map(str, arguments)])
    return ended.value.code


@pytest.fixture
def program(tmp_path):
    def write(text, **facts):
        path = tmp_path / "step_of_compare.py"
        path.write_text(text.format(**facts))
        return path

    return write


def test_the_simulated_side_alone_needs_no_torch(program, capsys):
    """Its results and calls are shown, with lines."""
    assert run(f"{program(STEP, fails=0)}:step", "--nproc-per-node", 3, "--skip-real") == 0
    shown = capsys.readouterr().out
    assert "ranks 0-2: dict(['sum'] 3)" in shown
    assert "ranks 0-2: barrier on ranks 0-2 at step_of_compare.py:10" in shown
    assert shown.endswith("not compared: the real side was skipped\n")


def test_a_simulated_rank_that_fails_is_status_1(program, capsys):
    """With who raised what where, and who waits for it."""
    assert run(f"{program(STEP, fails=1)}:step", "--nproc-per-node", 3, "--skip-real") == 1
    shown = capsys.readouterr().out
    assert "rank 1 raised ValueError at step_of_compare.py:9: bad shard" in shown
    assert "ranks 0, 2 wait forever in barrier #" in shown


def test_json_and_reports_are_written(program, tmp_path):
    """A page, or Markdown, by the file's name."""
    target = f"{program(STEP, fails=0)}:step"
    for name, begins in (("r.html", "<!DOCTYPE html>"), ("r.md", "# simrank compare: ")):
        path = tmp_path / name
        assert run(target, "--skip-real", "--report", path, "--json", tmp_path / "r.json") == 0
        assert path.read_text().startswith(begins)
    reported = json.loads((tmp_path / "r.json").read_text())
    assert (reported["num_ranks"], reported["agree"]) == (2, None)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], "--bench FILE, --kernels FILE and --kit, got 0 of them"),
        (["a.py:f", "--bench", "b.yaml"], "got 2 of them"),
        (["a.py:f", "--backend", "mpi"], "--backend: expected one of gloo, nccl, got mpi"),
        (["a.py:f", "--tolerance", "near"], "--tolerance: expected a relative bound"),
        (["a.py:f", "--report", "r.pdf"], "--report: expected a file that ends with .html"),
        (
            ["a.py:f", "--out", "m.csv"],
            "--out: expected with --bench or --kit alone, got a program",
        ),
        (["--bench", "b.yaml", "--skip-real"], "--skip-real: expected with a program alone"),
        (["--kernels", "k.py", "--nproc-per-node", "2"], "expected with a program or --bench"),
        (["nowhere.py:f"], "expected a Python file, got nowhere.py"),
    ],
)
def test_wrong_usage_is_status_2(arguments, wanted, capsys):
    """And says what was expected."""
    assert run(*arguments) == 2
    assert wanted in capsys.readouterr().err


def test_a_function_that_is_not_there_is_wrong_usage(program, capsys):
    """Not an error in which both sides agree."""
    assert run(f"{program(STEP, fails=0)}:stop", "--skip-real") == 2
    assert "expected a function of the file, got no function stop" in capsys.readouterr().err


def test_a_program_of_simranks_has_no_real_side(program, capsys):
    """Which is said before anything runs."""
    assert run(f"{program(STEP, fails=0)}:step") == 2
    shown = capsys.readouterr().err
    assert "expected a program of torch.distributed, or --skip-real" in shown


class FakeGpus:
    """Two H100 in the place of a pool's workers."""

    backend = "nccl"

    def __init__(self, num_wrong):
        self.num_wrong = num_wrong

    def run(self, fn, *args):
        if not args:
            return [("NVIDIA H100 80GB HBM3", "torch 2.13, nccl 2.29")] * 2
        return [(20.0, self.num_wrong), (40.0, 0)]


@pytest.mark.parametrize(("num_wrong", "status"), [(0, 0), (2, 1)])
def test_simulated_times_stand_beside_those_of_the_gpu_that_is_described(
    num_wrong, status, tmp_path, monkeypatch, capsys
):
    """With errors; wrong data is status 1, and what was measured is written all the same."""
    monkeypatch.setattr(compare, "check_real", lambda *_: None)
    monkeypatch.setattr(compare.benchmark, "pool_of", lambda *_: nullcontext(FakeGpus(num_wrong)))
    (tmp_path / "b.yaml").write_text(
        "cluster: hgx_h100\ncollectives: [all_reduce]\ndtypes: [float32]\n"
        "sizes: {from: 1 MiB, to: 4 MiB, factor: 4}\niterations: {warmup: 0, timed: 1}\n"
    )
    table = tmp_path / "m.csv"
    assert run("--bench", tmp_path / "b.yaml", "--backend", "nccl", "--out", table) == status
    lines = capsys.readouterr().out.splitlines()
    assert "nccl 2.29" in lines[0]
    assert lines[1].endswith("2 ranks of this machine (NVIDIA H100 80GB HBM3, nccl)")
    assert lines[3].split()[-2:] == ["simulated", "error"]
    assert lines[5].split()[5:7] == ["30.00", "34.95"]
    assert lines[5].split()[-3] == "nccl"
    assert len(table.read_text().splitlines()) == 3


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
def test_a_benchmark_says_on_how_many_ranks_it_is_measured(tmp_path, monkeypatch, capsys):
    """Unless the option does; of several numbers one has to be named."""
    asked = []
    monkeypatch.setattr(compare, "check_real", lambda _, num_ranks: asked.append(num_ranks))
    monkeypatch.setattr(compare.benchmark, "pool_of", lambda *_: nullcontext(FakeGpus(0)))
    path = tmp_path / "b.yaml"
    for num_ranks, words in (("4", []), ("4", ["--nproc-per-node", "2"]), ("[2, 4]", [])):
        path.write_text(
            f"cluster: hgx_h100\nnum_ranks: {num_ranks}\ncollectives: [all_reduce]\n"
            "sizes: {from: 1 MiB, to: 1 MiB}\niterations: {warmup: 0, timed: 1}\n"
        )
        status = run("--bench", path, "--backend", "nccl", *words)
        assert status == (2 if "[" in num_ranks else 0)
    assert asked == [4, 2]
    assert "--nproc-per-node: expected one of 2, 4, got nothing" in capsys.readouterr().err


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
@pytest.mark.parametrize("target", ["program", "--bench", "--kernels"])
def test_a_machine_without_torch_is_a_line_and_status_4(program, target, capsys):
    """Whatever is to be compared."""
    path = program(TORCH, wrong=0)
    given = [f"{path}:step"] if target == "program" else [target, path]
    if target == "--bench":
        given = [target, "hgx_h100"]
    assert run(*given) == MISSING == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not installed" in line


@needs_torch
@pytest.mark.slow
def test_a_machine_without_gpus_is_a_line_and_status_4(program, capsys):
    """Before anything is simulated."""
    assert run(f"{program(TORCH, wrong=0)}:step", "--backend", "nccl") == 4
    assert capsys.readouterr().err == "simrank: backend 'nccl' needs 2 GPUs, but found 0\n"


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "status"), [(0, 0), (1, 1)])
def test_a_program_that_makes_its_own_group_is_compared(program, wrong, status, capsys):
    """With status 0 where the sides agree, and 1 where they do not."""
    assert run(f"{program(TORCH, wrong=wrong)}:step") == status
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == ("the sides differ: 1 difference" if wrong else "the sides agree")


@needs_torch
@pytest.mark.slow
def test_a_script_runs_as_under_torchrun(program, capsys):
    """As `__main__`, with its arguments, and a group from the environment."""
    assert run(program(TORCH, wrong=0), "--", "--flag") == 0
    assert "1 collective per rank (2 all_reduce in all); alike" in capsys.readouterr().out


@needs_torch
@pytest.mark.slow
def test_a_benchmark_on_gloo_is_calibrated_from(tmp_path, capsys, monkeypatch):
    """Measured, written, read: the whole way."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.yaml").write_text(
        "cluster: hgx_h100\ncollectives: [all_reduce]\ndtypes: [float32]\n"
        "sizes: {from: 1 KiB, to: 64 MiB, factor: 8}\niterations: {warmup: 1, timed: 2}\n"
    )
    assert run("--bench", "b.yaml", "--out", "m.csv", "--json", "m.json") == 0
    shown = capsys.readouterr().out
    assert "# all_reduce gloo float32 sum on 2 ranks of this machine (host, gloo)" in shown
    assert "# No simulated times: no cluster describes this machine (host, gloo)" in shown
    assert len(json.loads((tmp_path / "m.json").read_text())["rows"]) == 12
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", "m.csv", "--cluster", "hgx_h100", "--out", "mine.yaml"])
    assert ended.value.code == 0
    assert "source: fitted to m" in (tmp_path / "mine.yaml").read_text()


def test_whose_group_it_is_is_read_off_the_file(program):
    """A function finds one, unless the file makes it; a script always makes it."""
    path = program(STEP, fails=0)
    assert not Job.of(f"{path}:step", (), 2, "gloo").makes_group
    assert Job.of(str(path), (), 2, "gloo").makes_group
    path = program(TORCH, wrong=0)
    assert Job.of(f"{path}:step", (), 2, "gloo").makes_group
    assert Job.of(f"{path}:step", (), 2, "gloo").uses_torch
    with pytest.raises(ConfigError):
        Job.of(f"{path}x:step", (), 2, "gloo")
