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
    job.run_quietly(Delays(delays) if delays else Delays.none())
    profile = cProfile.Profile()
    with profile:
        job.run_quietly(Delays(delays) if delays else Delays.none())
    return sum(entry.callcount for entry in profile.getstats())


def test_a_seed_costs_what_a_plain_run_costs(tmp_path):
    """In work, which repeats, where time does not: delays spread what would happen at once."""
    script = tmp_path / "reduces.py"
    script.write_text(REDUCES)
    plain = num_calls(script, None)
    assert max(num_calls(script, seed) for seed in range(1, 9)) < 1.5 * plain


PRINTS_SOURCES = """
import logging, time
import simrank, simrank.distributed as dist

logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
dist.init_process_group("gloo")
x, begin = simrank.ones(1, device="cpu"), time.perf_counter()
if dist.get_rank() == 0:
    sources = [dist.recv(x) for _ in range(2)]
    logging.info("took %.1f ms", (time.perf_counter() - begin) * 1e3)
    print("sources", sources)
else:
    time.sleep(20e-6 * dist.get_rank())
    dist.send(x, 0)
"""


def test_output_that_depends_on_the_order_is_a_finding_with_its_line_and_replay(tmp_path, capsys):
    """Of the rank and the seed; the times that it prints before are none, and the run passes."""
    script = tmp_path / "prints.py"
    script.write_text(PRINTS_SOURCES)
    code, out, err = run(capsys, "--seeds", "8", "--nproc-per-node", "3", str(script))
    assert (code, out) == (0, "")
    assert "line 1 of rank 0 on stdout (suspected) depends on the order of calls" in err
    assert "without delays: 'sources [1, 2]'\n  with delays:    'sources [2, 1]'" in err
    assert "seed 6 differs, 8 tried: shrunk from" in err
    with pytest.raises(SystemExit):
        main(shlex.split(err.rpartition("to replay: ")[2])[1:])
    assert "sources [2, 1]" in capsys.readouterr().out


EXITS = """
import multiprocessing, sys

def put(queue, number):
    queue.put(number)

def take(queue):
    sys.exit(queue.get())

if __name__ == "__main__":
    queue = multiprocessing.Queue()
    started = [multiprocessing.Process(target=put, args=(queue, number)) for number in (3, 4)]
    started.append(multiprocessing.Process(target=take, args=(queue,)))
    for process in started:
        process.start()
    for process in started:
        process.join()
"""


@pytest.mark.slow
def test_exit_codes_of_processes_that_depend_on_the_order_are_a_finding(tmp_path, capsys):
    """The program looks at none of them, and prints nothing."""
    script = tmp_path / "exits.py"
    script.write_text(EXITS)
    options = ("--seeds", "12", "--nproc-per-node", "1", "--carrier", "thread")
    code, _, err = run(capsys, *options, str(script))
    assert code == 0
    assert "of rank 0 on exit codes (suspected) depends on the order of calls" in err
    assert "without delays: '3'\n  with delays:    '4'" in err


PRINTS_TIMES = """
import datetime, logging, time
import simrank, simrank.distributed as dist

logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
dist.init_process_group("nccl")
x, first = simrank.ones(1 << 16), time.time()
begin, end = simrank.Event(enable_timing=True), simrank.Event(enable_timing=True)
for step in range(3):
    start = time.perf_counter()
    begin.record()
    dist.all_reduce(x)
    end.record()
    simrank.synchronize()
    took = time.perf_counter() - start
    logging.info("step %d of 3, %.0f steps/s, %d s", step, 1 / took, time.time() - first)
    print(f"{took:.3f} s" if took > 1e-3 else f"{took * 1e6:.0f} us", begin.elapsed_time(end), "ms")
print(object(), datetime.datetime.now(), x[0].item())
"""


@pytest.mark.parametrize("max_delay", ["1 ms", "1 s"])
def test_times_that_a_program_prints_are_no_finding(tmp_path, capsys, max_delay):
    """Clocks, dates, timers of events, speeds, units that change, and addresses of objects."""
    script = tmp_path / "times.py"
    script.write_text(PRINTS_TIMES)
    code, _, err = run(capsys, "--seeds", "12", "--max-delay", max_delay, str(script))
    assert (code, "print something else" in err) == (0, False), err
    assert "another order of calls: collectives " in err


FAR_APART = """
import time
import simrank, simrank.distributed as dist

dist.init_process_group("gloo")
x = simrank.ones(1, device="cpu")
if dist.get_rank() == 0:
    assert [dist.recv(x) for _ in range(2)] == [1, 2]
else:
    time.sleep(0.1 * dist.get_rank())
    dist.send(x, 0)
"""


@pytest.mark.parametrize(
    ("max_delay", "code", "said"),
    [
        ("1 ms", 0, "no run had another order of calls on messages: the program orders them, or"),
        ("1 s", 1, "AssertionError"),
    ],
)
def test_delays_that_change_no_order_are_said_to(tmp_path, capsys, max_delay, code, said):
    """Ranks that race are 100 ms apart: shorter delays cannot find it, longer ones do."""
    script = tmp_path / "far.py"
    script.write_text(FAR_APART)
    found = run(
        capsys, "--seeds", "12", "--max-delay", max_delay, "--nproc-per-node", "3", str(script)
    )
    assert found[0] == code, found
    assert said in found[2]


def test_orders_are_drawn_however_far_apart_ranks_are_unless_delays_are_bounded(tmp_path, capsys):
    """The replay makes the same picks."""
    script = tmp_path / "far.py"
    script.write_text(FAR_APART)
    code, _, err = run(capsys, "--seeds", "12", "--nproc-per-node", "3", str(script))
    assert code == 1
    assert "fails in another order: rank 0: AssertionError" in err

    with pytest.raises(SystemExit) as caught:
        main(shlex.split(err.rpartition("to replay: ")[2])[1:])
    assert caught.value.code == 1


WAITS = """
import queue, time
import simrank, simrank.distributed as dist

dist.init_process_group("gloo")
work = dist.all_reduce(simrank.ones(1, device="cpu"), async_op=True)
end = time.monotonic() + 2
while not work.is_completed() and time.monotonic() < end:
    time.sleep(0.01)
assert time.monotonic() < end, "too late"
work.wait()
"""


def test_no_limit_expires_in_drawn_orders(tmp_path, capsys):
    """A wait of two seconds is long enough in a program that takes microseconds."""
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    code, _, err = run(capsys, "--seeds", "12", "--nproc-per-node", "2", str(script))
    assert code == 0, err


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
        (["--every-timing", "--seeds", "4"], "--seeds: expected no --every-timing"),
        (["--every-timing", "--timing", "4"], "--timing: expected no --every-timing"),
        (["--seeds", "4", "--delays", "3"], "--delays: expected no --seeds"),
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
