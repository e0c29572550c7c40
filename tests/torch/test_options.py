"""Options of `simrank run` find what is planted in torch programs, as in all others."""

import json
import re
import shlex

import pytest

from simrank.cli import main
from simrank.isolation.ledger import replaced
from simrank.torch.cuda.switch import Switch

BEGIN = """
import torch
import torch.distributed as dist
rank = int(__import__("os").environ["LOCAL_RANK"])
"""
GLOO = BEGIN + 'dist.init_process_group("gloo")\n'
NCCL = BEGIN + 'torch.cuda.set_device(rank)\ndist.init_process_group("nccl")\n'

FIRST_COME = (
    GLOO
    + """
if rank == 0:
    first, second = (dist.recv(torch.zeros(1)) for _ in range(2))
    assert first == 1, f"rank {first} came first"
else:
    dist.send(torch.ones(1), 0)
dist.destroy_process_group()
"""
)

LEAKS = (
    GLOO
    + """
dist.all_reduce(torch.ones(2), async_op=True)
dist.barrier()
dist.destroy_process_group()
"""
)

RACES = (
    NCCL
    + """
x = torch.ones(1 << 20, device="cuda")
work = dist.all_reduce(x, async_op=True)
x.add_(1)  # before it waits
work.wait()
torch.cuda.synchronize()
dist.destroy_process_group()
"""
)

CLEAN = (
    NCCL
    + """
x = torch.ones(1 << 20, device="cuda")
for _ in range(20):
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    x.add_(1)
torch.cuda.synchronize()
dist.destroy_process_group()
"""
)

STEPS = (
    GLOO
    + """
for _ in range(9):
    dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
"""
)

PARTED = (
    GLOO
    + """
for step in range(3):
    if step * rank == 4:
        break
    dist.all_reduce(torch.ones(2))
"""
)


@pytest.fixture
def run(tmp_path, capfd, monkeypatch):
    """Run a program on three ranks; returns the status and what it wrote to stderr."""
    monkeypatch.chdir(tmp_path)

    def run_program(text, *options):
        (tmp_path / "program.py").write_text(text)
        return call("run", "--nproc-per-node", 3, "--devices", "simulated", *options, "program.py")

    def call(*words):
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        return stop.value.code or 0, capfd.readouterr().err

    run_program.again = call
    return run_program


def test_seeds_find_a_bug_of_order_and_say_how_to_replay_it(run):
    """The command that is printed fails in the same way."""
    assert run(FIRST_COME)[0] == 0
    status, err = run(FIRST_COME, "--seeds", 20)
    assert status == 1, err
    assert "rank 2 came first" in err
    replay = re.search(r"to replay: simrank (.*)", err)[1]
    status, err = run.again(*shlex.split(replay))
    assert status == 1
    assert "rank 2 came first" in err


def test_seeds_find_nothing_in_a_program_that_is_right(run):
    """On simulated devices, with work that overlaps."""
    status, err = run(CLEAN, "--seeds", 5)
    assert (status, "no failure in 5 seed(s)" in err) == (0, True), err


STORED = """
import torch.distributed as dist
rank = int(__import__("os").environ["RANK"])
store = dist.FileStore("/nowhere/at/all", 3)
mine = store.add("rank", 1)  # A counter: right in any order.
store.set("count", str(int(store.get("count")) + 1) if mine > 1 else "1")  # A read, and a write.
store.add("done", 1)
while store.add("done", 0) < 3:
    pass
assert store.get("count") == b"3", store.get("count")
"""


def test_seeds_find_a_store_that_is_read_and_written_in_two_calls(run):
    """Without delays each rank writes before the next one reads."""
    assert run(STORED)[0] == 0
    status, err = run(STORED, "--seeds", 20)
    assert status == 1, err
    assert re.search(r"a call on a shared object at program.py:\d+ is", err), err


def test_a_rank_that_is_killed_is_named_to_its_peers(run, tmp_path):
    """By a fault of a file. On the host: a killed thread never leaves its frames and tensors."""
    (tmp_path / "faults.yaml").write_text("faults:\n  - {kill: 1, at_collective: 5}\n")
    status, err = run(STEPS, "--faults", "faults.yaml")
    assert status == 1
    assert "process 1 terminated with signal SIGKILL" in err
    assert "in the call of a collective at program.py:8" in err


def test_real_devices_are_not_simulated(run):
    """Asked for where there are none, they are refused, with the line."""
    status, err = run(NCCL, "--devices", "real")
    assert status == 1
    assert "real CUDA devices are requested" in err
    assert "torch sees no GPU\n  to fix: leave the option out, and devices are simulated" in err
    assert "program.py:5" in err or 'program.py", line 5' in err


def test_strict_names_work_that_nobody_waited_for(run):
    """With the line that started it."""
    assert run(LEAKS)[0] == 0
    status, err = run(LEAKS, "--strict")
    assert status == 1
    assert "program.py:7" in err, err


def test_a_write_under_a_running_collective_is_a_race(run):
    """With both lines; a program that waits has none."""
    status, err = run(RACES, "--races", "error")
    assert status == 1
    assert "program.py:9" in err
    assert "program.py:10" in err
    assert run(CLEAN, "--races", "error")[0] == 0


def test_a_trace_shows_the_collectives_of_torch(run, tmp_path):
    """Also where the run fails."""
    assert run(CLEAN, "--trace", "trace.json")[0] == 0
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any("all_reduce" in event.get("name", "") for event in events)
    assert run(PARTED, "--trace", "failed.json")[0] == 1
    assert json.loads((tmp_path / "failed.json").read_text())["traceEvents"]


def test_a_hang_is_explained_by_its_line_and_recorded(run, tmp_path):
    """--divergence and --flight-recorder, together."""
    status, err = run(PARTED, "--divergence", "--flight-recorder", "records")
    assert status == 1
    assert "diverged at program.py:8 `if step * rank == 4:`: ranks 0-1 did not" in err
    assert "rank 2 took it (step = 2, rank = 2)" in err
    assert len(list((tmp_path / "records").iterdir())) == 3


# ---- switches of torch that a Context turns on ----


def test_setting_it_back_turns_it_off():
    """As putting back what stood there does."""
    turned = []
    switch = Switch(turned.append)
    assert not switch.is_on
    switch.is_on = True
    assert switch.is_on
    switch.is_on = False
    assert not switch.is_on
    assert turned == [True, False]


def test_a_switch_is_turned_back_to_where_it_was():
    """Off within the block, and on again."""
    turned = []
    with replaced(Switch(turned.append, is_on=True), "is_on", False):
        assert turned == [False]
    assert turned == [False, True]
