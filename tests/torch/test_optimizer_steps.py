"""The summary of a torch program: its training steps, by phase and by group."""

import json
import warnings
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import simrank
from simrank.cli import main

PROGRAM = Path(__file__).with_name("step_program.py")
WIDTH, BATCH = 512, 256


def summary(*options, form="json"):
    """Return the standard error of a run of the program."""
    words = ["run", "--nproc-per-node", "4", "--summary", form, *options, str(PROGRAM)]
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as err, suppress(SystemExit):
        main(words)
    return err.getvalue()


@pytest.fixture(scope="module", name="steps")
def fixture_steps():
    """The steps of a run, as JSON."""
    return json.loads(summary("--tokens-per-step", "4096").splitlines()[-1])["steps"]


def test_a_step_is_the_sum_of_its_phases_and_of_what_it_waits_for(steps):
    """Two optimizers are one step; parts add up to the whole."""
    assert len(steps["times_us"]) == 3
    for rank in steps["last"]:
        parts = sum(rank["by_phase_us"].values()) + sum(rank["exposed_by_group_us"].values())
        assert parts + rank["idle_us"] == pytest.approx(rank["total_us"])
        assert {"forward", "backward", "recomputation", "optimizer"} <= rank["by_phase_us"].keys()
        assert list(rank["exposed_by_group_us"]) == ["default_pg"]
    assert sum(len(rank["ranks"]) for rank in steps["last"]) == 4


def test_what_a_checkpoint_computes_again_is_no_model_flops(steps):
    """Two products forward and four backward; one is computed again."""
    product = 2 * BATCH * WIDTH * WIDTH
    assert steps["model_flops"] == 6 * product
    assert steps["recomputed_flops"] == product
    used, step_s = steps["model_flops_utilization"], steps["times_us"][-1] / 1e6
    assert used == pytest.approx(6 * product / step_s / 989e12)
    assert steps["tokens_per_s_per_rank"] == pytest.approx(4096 / step_s / 4)


def test_steps_are_the_same_without_values(steps):
    """To the picosecond."""
    other = json.loads(
        summary("--tokens-per-step", "4096", "--shape-only", "--unknown", "1").splitlines()[-1]
    )
    assert other["steps"] == steps


def test_the_text_names_phases_groups_and_rates():
    """A line for the times, one for equal ranks, one for each rate."""
    lines = summary("--tokens-per-step", "4096", form="text").splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("training steps: "))
    assert lines[at].endswith(" ms; of the last:")
    assert "  ranks 0-3: forward " in lines[at + 1]
    assert "recomputation" in lines[at + 1]
    assert "% of the bfloat16 peak" in lines[at + 2]
    assert "with recomputation" in lines[at + 2]
    assert lines[at + 3].startswith("  tokens/s: ")


SPARSE = """
import torch

weights = torch.nn.Embedding(10, 8, sparse=True).cuda()
optimizer = torch.optim.SparseAdam(weights.parameters())
for _ in range(2):
    weights(torch.tensor([1, 2]).cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_gradients_without_memory_of_their_own_are_steps_too(cli, tmp_path):
    """A sparse gradient has no address."""
    program = tmp_path / "sparse.py"
    program.write_text(SPARSE)
    status, _, err = cli("run", "--nproc-per-node", "1", program)
    assert status == 0
    assert "training steps: " in err


# ---- replicas of DistributedDataParallel that drift: a finding where it is asked for ----

with warnings.catch_warnings():  # Its package compiles with torch.jit.script, which is deprecated.
    warnings.simplefilter("ignore")
    from torch.distributed.optim import ZeroRedundancyOptimizer


def findings_of(program, *, replicas=True):
    """Return the findings of a program on two ranks, and the time that it took."""
    with simrank.Context("hgx_h100", replicas=replicas) as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2)
    return ctx.findings, ctx.now_ps


def made():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Linear(2, 1))
    return DistributedDataParallel(model)


def backward(model):
    model(torch.full((1, 4), 1.0 + dist.get_rank())).sum().backward()


def drifts(rank):
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(model)
    optimizer.step()
    with model.no_sync():
        backward(model)
    optimizer.step()  # here
    dist.destroy_process_group()


def averages(rank):
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(4):
        if step % 2 == 0:
            with model.no_sync():
                backward(model)
        else:
            backward(model)
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


def shards(rank):
    model = made()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    for _ in range(2):
        backward(model)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def without_ddp(rank):
    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 1)  # Each rank's own, at random.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(model)
    optimizer.step()
    dist.destroy_process_group()


def joins(rank):
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with Join([model]):
            for _ in range(2 + rank):
                backward(model)
                optimizer.step()
                optimizer.zero_grad()
    dist.destroy_process_group()


def test_a_replica_that_misses_an_average_is_a_finding():
    """Of the first step that differs, with its line; in no simulated time."""
    (found,), now_ps = findings_of(drifts)
    line = drifts.__code__.co_firstlineno + 7
    assert found == (
        "  replicas on group 'default_pg' differ after optimizer step 2 at test_optimizer_steps.py:"
        f"{line}, first in 0.weight: rank 0 / rank 1 have different values"
    )
    assert findings_of(drifts, replicas=False) == ([], now_ps)


@pytest.mark.parametrize("program", [averages, shards, without_ddp, joins])
def test_replicas_that_agree_are_none(program):
    """With accumulated gradients, sharded optimizers, no replicas, and uneven batches."""
    assert findings_of(program)[0] == []
