"""`simrank run`: a script once per rank, where torchrun would."""

import json
import signal

import pytest

from simrank.cli import main

SCRIPT = """
import argparse, os, sys
import helper
import simrank as torch
import simrank.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1)
parser.add_argument("--fail-on", type=int, default=-1)
args = parser.parse_args()
dist.init_process_group("nccl")
rank = dist.get_rank()
assert __name__ == "__main__" and rank == int(os.environ["RANK"])
if rank == args.fail_on:
    raise ValueError("asked to fail")
counter = 0
for _ in range(args.steps):
    x = torch.ones(4, dtype=torch.bfloat16)
    dist.all_reduce(x)
    counter += 1
assert counter == args.steps
if rank == 0:
    print(helper.WORD, x.tolist(), dist.get_world_size(), sys.argv[1:])
dist.destroy_process_group()
"""


@pytest.fixture
def simrank_run(tmp_path, capsys):
    """Run the command line on the script; returns (status, stdout, stderr)."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("WORD = 'helped'\n")

    def run_cli(*options, script="train.py", args=()):
        with pytest.raises(SystemExit) as stop:
            main(["run", *options, str(tmp_path / script), *args])
        captured = capsys.readouterr()
        return stop.value.code or 0, captured.out, captured.err

    return run_cli


def test_a_script_runs_once_per_rank_with_its_arguments(simrank_run):
    """Own argv, environment and globals; modules beside the script are found."""
    status, out, err = simrank_run("--nproc_per_node", "2", args=["--steps", "3"])
    assert status == 0
    assert out == "helped [2.0, 2.0, 2.0, 2.0] 2 ['--steps', '3']\n"
    assert err.startswith("simulated time: ")
    assert "ranks 0-1: compute" in err


def test_ranks_of_a_script_may_be_threads(simrank_run):
    """The same output, times and summary; another carrier is bad usage, with the choices."""
    options = ["--nproc-per-node", "2"]
    assert simrank_run(*options, "--carrier", "thread") == simrank_run(*options)
    status, _, err = simrank_run(*options, "--carrier", "fiber")
    assert status == 2
    assert "--carrier: expected one of greenlet, thread, got fiber" in err


def test_nodes_and_ranks_are_spelled_as_torchruns(simrank_run):
    """--nnodes and --nproc-per-node."""
    options = ["--cluster", "h100_ib", "--nnodes", "3", "--nproc-per-node", "8"]
    _, out, err = simrank_run(*options, "--summary", "none")
    assert " 24 []" in out
    assert err == ""


def test_torchruns_rendezvous_options_are_ignored_with_one_line(simrank_run):
    """A launch line can stay as it is."""
    options = ["--nproc_per_node=2", "--rdzv-backend", "c10d", "--master_port=29501"]
    status, out, err = simrank_run(*options, "--summary", "none")
    assert status == 0
    assert out.startswith("helped")
    assert err.splitlines() == ["simrank: --rdzv* and --master* are ignored: ranks share a process"]


def test_the_summary_can_be_json(simrank_run):
    """On standard error, so that the script keeps its output."""
    _, _, err = simrank_run("--nproc-per-node", "2", "--summary", "json")
    document = json.loads(err)
    assert document["ranks"][0]["ranks"] == [0, 1]
    assert document["collectives"][0]["name"] == "all_reduce"


def test_a_failing_script_gives_status_1_and_its_traceback(simrank_run):
    """The user's line, and no traceback of simrank's own."""
    status, _, err = simrank_run("--nproc-per-node", "2", args=["--fail-on", "1"])
    assert status == 1
    assert "-- Process 1 terminated with the following error:" in err
    assert "ValueError: asked to fail" in err
    assert "simrank/multiprocessing" not in err


def test_bad_usage_gives_status_2_and_a_message(simrank_run, tmp_path):
    """Ranks that do not fit, an unknown summary."""
    assert simrank_run("--nproc-per-node", "9")[0] == 2
    assert simrank_run("--summary", "long")[0] == 2
    status, _, err = simrank_run(script="missing.py")
    assert status == 1
    assert "cannot be read" in err


def test_a_trace_is_written_even_if_the_script_fails(simrank_run, tmp_path):
    """What happened until then is what one wants to see."""
    path = tmp_path / "t.json"
    status, _, _ = simrank_run("--trace", str(path), args=["--fail-on", "3"])
    assert status == 1
    assert json.loads(path.read_text())["traceEvents"] is not None


LEAKY = """
import simrank as torch, simrank.distributed as dist
dist.init_process_group()
x = torch.ones(4)
work = dist.all_reduce(x, async_op=True)
x.add_(1)
"""


def test_races_and_leaks_are_listed_at_the_end_or_are_errors(simrank_run, tmp_path):
    """--races and --strict."""
    (tmp_path / "leaky.py").write_text(LEAKY)
    options = ["--nproc-per-node", "2", "--races", "report"]
    status, _, err = simrank_run(*options, script="leaky.py")
    assert status == 0
    assert "never waited for at leaky.py:5" in err
    assert "race (proved)" in err
    assert simrank_run("--nproc-per-node", "2", "--strict", script="leaky.py")[0] == 1
    assert simrank_run("--races", "error", "--nproc-per-node", "2", script="leaky.py")[0] == 1
    assert simrank_run("--races", "maybe", script="leaky.py")[0] == 2


@pytest.mark.slow
def test_a_script_that_computes_for_ever_ends_at_the_time_limit(simrank_run, tmp_path):
    """Status 1 and the line of each rank; with --watchdog it is told of before."""
    script = "import os\nstuck = os.environ['RANK'] == '2'\nwhile stuck:\n    pass\n"
    (tmp_path / "stuck.py").write_text(script)
    options = ("--time-limit", "0.3", "--watchdog", "0.1")
    status, _, err = simrank_run(*options, script="stuck.py")
    assert status == 1
    assert "the limit of 0.3 s of wall-clock time passed at t=" in err
    assert "rank 2: running at stuck.py:" in err


def test_ctrl_c_ends_the_script_with_status_130_and_says_where_each_rank_is(simrank_run, tmp_path):
    """On stderr; the trace is written."""
    (tmp_path / "turns.py").write_text(
        "import os, signal\nif os.environ['RANK'] == '0':\n    signal.raise_signal(signal.SIGINT)\n"
        "while True: pass\n"
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        trace = str(tmp_path / "trace.json")
        options = ("--nproc-per-node", "4", "--trace", trace)
        status, _, err = simrank_run(*options, script="turns.py")
    finally:
        signal.signal(signal.SIGINT, before)
    assert status == 130
    assert "simrank: interrupted at t=0.000 us\n  rank 0: running at turns.py:4\n" in err
    assert "ranks 1-3: not started" in err
    assert "traceEvents" in json.loads((tmp_path / "trace.json").read_text())
