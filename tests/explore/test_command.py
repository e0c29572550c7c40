"""`simrank run --seeds`: the first failure, shrunk, with the command that replays it."""

import cProfile
import os
import shlex

import pytest

from simrank.cli import main
from simrank.cli.run import _Job
from simrank.engine.delays import Delays
from simrank.hardware.load import load_cluster

ORDER_BUG = """
import sys
import helper
import simrank
import simrank.distributed as dist

dist.init_process_group("gloo")
helper.calls.append(dist.get_rank())
assert len(helper.calls) <= dist.get_world_size(), "a module that stayed from another run"
print("noise of rank", dist.get_rank())
if dist.get_rank() == 0:
    tensor = simrank.zeros(1, device="cpu")
    sources = [dist.recv(tensor) for _ in range(2)]
    assert sources == [1, 2], sources
elif dist.get_rank() < 3:
    dist.send(simrank.ones(1, device="cpu"), 0)
"""


@pytest.fixture
def program(tmp_path):
    """A script with a bug of order, and a module that it imports."""
    (tmp_path / "helper.py").write_text("calls = []\n")
    script = tmp_path / "bug.py"
    script.write_text(ORDER_BUG)
    return str(script)


def run(capsys, *args):
    """Run the command line; return status, output and errors."""
    with pytest.raises(SystemExit) as caught:
        main(["run", "--nproc-per-node", "4", "--summary", "none", *args])
    captured = capsys.readouterr()
    return caught.value.code, captured.out, captured.err


def test_a_bug_of_order_is_found_and_the_printed_command_replays_it(program, capsys):
    """The replay fails in the same way; without delays the program passes."""
    assert run(capsys, program)[0] == 0
    code, out, err = run(capsys, "--seeds", "200", program)
    assert code == 1
    assert out == ""
    assert "AssertionError: [2, 1]" in err
    command = shlex.split(err.rpartition("to replay: ")[2])
    assert command[:2] == ["simrank", "run"]
    with pytest.raises(SystemExit) as caught:
        main(command[1:])
    assert caught.value.code == 1
    assert "AssertionError: [2, 1]" in capsys.readouterr().err


def test_the_replay_of_a_module_is_one(program, capsys, monkeypatch):
    """With the options that were given, but none that says nothing."""
    monkeypatch.chdir(os.path.dirname(program))
    options = ["--prefix", "none", "--monitor-interval", "3", "--seeds", "200"]
    code, _, err = run(capsys, *options, "-m", "bug")
    assert code == 1
    command = err.rpartition("to replay: ")[2].strip()
    assert command.endswith("-m --nproc-per-node 4 --summary none --prefix none bug")
    with pytest.raises(SystemExit) as caught:
        main(shlex.split(command)[1:])
    assert caught.value.code == 1
    assert "AssertionError: [2, 1]" in capsys.readouterr().err


def test_a_program_without_such_a_bug_passes_every_seed(tmp_path, capsys):
    """And it is told how much was tried."""
    script = tmp_path / "fine.py"
    script.write_text("import simrank.distributed as d\nd.init_process_group('nccl')\nd.barrier()")
    code, _, err = run(capsys, "--seeds", "5", "--max-delay", "10 us", str(script))
    assert code == 0
    assert "no failure in 5 seed(s), delays up to 10.000 us" in err


REDUCES = """
import simrank, simrank.distributed as dist

dist.init_process_group("nccl")
x = simrank.ones(16)
for _ in range(20):
    dist.all_reduce(x)
x.tolist()
"""


def num_calls(script, delays):
    """Return how many functions a run of a script calls, after one that warms up."""
    job = _Job(str(script), [], 8, {"cluster": load_cluster("hgx_h100")})
    job.run_quietly(delays and Delays(delays))
    profile = cProfile.Profile()
    with profile:
        job.run_quietly(delays and Delays(delays))
    return sum(entry.callcount for entry in profile.getstats())


def test_a_seed_costs_what_a_plain_run_costs(tmp_path):
    """In work, which repeats, where time does not: delays spread what would happen at once."""
    script = tmp_path / "reduces.py"
    script.write_text(REDUCES)
    plain = num_calls(script, None)
    assert max(num_calls(script, seed) for seed in range(1, 9)) < 1.5 * plain


def test_what_fails_without_delays_is_shown_as_it_is(tmp_path, capsys):
    """It is no matter of order, and needs no search."""
    script = tmp_path / "wrong.py"
    script.write_text("raise ValueError('always')")
    code, _, err = run(capsys, "--seeds", "5", str(script))
    assert code == 1
    assert "ValueError: always" in err
    assert "to replay" not in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--delays", "x"], "--delays: expected a seed from 1"),
        (["--max-delay", "soon"], "--max-delay: expected a time above zero"),
        (["--max-delay", "0 us"], "--max-delay: expected a time above zero"),
        (["--faults", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_a_wrong_option_is_a_usage_error(program, capsys, options, message):
    """Exit status 2, with what was expected."""
    code, _, err = run(capsys, *options, program)
    assert code == 2
    assert message in err


def test_faults_are_injected_from_a_file(program, tmp_path, capsys):
    """`--faults` takes what Context(faults=) takes."""
    faults = tmp_path / "faults.yaml"
    faults.write_text("faults:\n  - {kill: 2, at: 1 ns}\n")
    code, _, err = run(capsys, "--faults", str(faults), program)
    assert code == 1
    assert "process 2 terminated with signal SIGKILL" in err
