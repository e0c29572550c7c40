"""Layouts by arithmetic: which are tried first, which are left out, and their plan."""

import pytest

from simrank.config.decoder import load_decoder
from simrank.config.gpus import devices_of
from simrank.config.plan import load_plan
from simrank.planning.layouts import (
    ParallelLayout,
    TrainingJob,
    choose,
    memory_of,
    plan_text,
    time_of,
)

FULL = ParallelLayout(tp=1, pp=1, cp=1, ep=1, replicate=1, micro=1, recompute="full")


def job_of(model, gpus, seq=None, batch=None):
    config = load_decoder(model)
    cluster, count = devices_of(gpus)
    return TrainingJob(config, cluster, count, seq or config.seq, batch or count)


def test_sharded_data_parallelism_comes_first_where_the_model_fits():
    """A model of 8B needs nothing else."""
    first, *_ = choose(job_of("llama3-8b", "64xh100")).layouts
    assert (first.tp, first.pp, first.cp) == (1, 1, 1)


def test_what_does_not_fit_or_divide_is_left_out_and_counted():
    """405B on one node: its optimizer states alone need ten times the memory."""
    found = choose(job_of("llama3-405b", "8xh100"))
    assert found.layouts == ()
    assert found.left_out["do not fit into 79.2 GiB"] > 0
    for layout in choose(job_of("qwen3-30b-a3b", "16xh100")).layouts:
        assert layout.tp <= 4  # It has four heads of keys.


def test_long_sequences_are_split():
    """A sequence of 131,072 tokens: no more of them than GPUs in a node."""
    found = choose(job_of("llama3-8b", "8xh100", seq=131072, batch=1)).layouts
    assert found
    assert all(layout.cp * layout.tp == 8 for layout in found)


# GiB that runs of the program allocated (simrank run --shape-only, torch 2.13).
@pytest.mark.parametrize(
    ("model", "gpus", "layout", "gib", "within"),
    [
        ("llama3-8b", "8xh100", {}, 27.45, 0.05),
        ("llama3-8b", "8xh100", {"tp": 8, "micro": 8, "recompute": "half"}, 55.46, 0.05),
        ("llama3-8b", "64xh100", {"recompute": "none"}, 56.76, 0.05),
        ("llama3-8b", "64xh100", {"recompute": "half", "replicate": 8}, 47.00, 0.05),
        ("llama3-8b", "64xh100", {"tp": 4, "micro": 4, "recompute": "none"}, 63.26, 0.05),
        ("llama3-8b", "64xh100", {"tp": 2, "pp": 2, "recompute": "none"}, 35.64, 0.05),
        ("llama3-70b", "128xh100", {"tp": 8, "micro": 4}, 18.43, 0.05),
        ("qwen3-30b-a3b", "16xh100", {"tp": 2, "pp": 2, "ep": 4, "recompute": "none"}, 62.1, 0.05),
        ("qwen3-30b-a3b", "16xh100", {"ep": 8, "recompute": "none"}, 64.96, 0.1),
        ("qwen3-30b-a3b", "16xh100", {"pp": 16, "recompute": "none"}, 87.2, 0.21),
    ],
)
def test_the_arithmetic_of_memory_is_near_to_that_of_runs(model, gpus, layout, gib, within):
    """Near enough to leave out hopeless layouts; pipelines of experts take more than it says."""
    found = memory_of(job_of(model, gpus), FULL._replace(**layout)) / 2**30
    assert found == pytest.approx(gib, rel=within)


# Milliseconds of a step that runs of the program took: (tp, pp, ep, recompute).
RUNS = {
    (1, 1, 8, "none"): 628, (1, 2, 8, "none"): 694, (2, 2, 4, "none"): 766,
    (4, 2, 2, "none"): 1202, (1, 16, 1, "none"): 1398, (2, 8, 1, "none"): 1440,
    (2, 4, 1, "half"): 1483, (2, 8, 1, "half"): 1512, (4, 4, 1, "none"): 1787,
}  # fmt: skip


def test_the_arithmetic_of_time_orders_layouts_of_experts_as_their_runs():
    """The first three are the same; experts that are whole on a rank are read for few rows."""
    job = job_of("qwen3-30b-a3b", "16xh100")
    by_time = sorted(
        RUNS,
        key=lambda run: time_of(
            job, FULL._replace(tp=run[0], pp=run[1], ep=run[2], recompute=run[3])
        ),
    )
    assert by_time[:3] == sorted(RUNS, key=RUNS.__getitem__)[:3]
    first, *_ = choose(job).layouts
    assert (first.tp, first.pp, first.ep) == (1, 1, 8)


def test_the_text_of_a_plan_is_a_plan_of_the_layouts(tmp_path):
    """What all layouts share is no column of the table."""
    job = job_of("llama3-8b", "64xh100")
    chosen = choose(job)
    path = tmp_path / "plan.yaml"
    path.write_text(plan_text(job, ("train.py", "llama3-8b"), chosen))
    plan = load_plan(path)
    assert len(plan.cells) == len(chosen.layouts)
    assert [cell.chosen["micro"] for cell in plan.cells] == [each.micro for each in chosen.layouts]
    assert "ep" not in plan.parameters
    first = plan.cells[0]
    assert first.tokens_per_step == 64 * 8192
    assert first.run_options()[:4] == ["--cluster", "h100_ib", "--nnodes", "8"]
    assert first.program[:7] == (
        "train.py",
        "--model",
        "llama3-8b",
        "--seq",
        "8192",
        "--batch",
        "64",
    )
