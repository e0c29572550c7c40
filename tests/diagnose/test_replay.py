"""Proof by replay: hangs as recorded, ends with the cause repaired."""

import pytest

import simrank.distributed as dist

from . import hung_jobs
from .jobs import said
from .test_causes import FAULTS, loop


@pytest.mark.parametrize("name", FAULTS)
def test_a_cause_is_proved_by_a_replay(name, tmp_path):
    """Hangs as recorded, ends as repaired."""
    found = said(tmp_path, lambda rank, ctx: loop(rank, ctx, FAULTS[name][0]), replay=True)
    assert found.replay.is_proof, found.replay.text
    assert found.confidence == "high"


def test_without_a_replay_no_answer_has_high_confidence(tmp_path):
    """Be it as clear as can be."""
    found = said(tmp_path, lambda rank, ctx: loop(rank, ctx, FAULTS["size"][0]))
    assert (found.replay, found.confidence) == (None, "medium")


def test_the_same_fault_of_two_ranks_is_repaired_on_both(tmp_path):
    """Ranks 2 and 5 skip the same call."""

    def fault(rank, step, number, ctx):
        return True if rank in (2, 5) and (step, number) == (3, 1) else None

    found = said(tmp_path, lambda rank, ctx: loop8(rank, ctx, fault), 8, replay=True)
    assert found.cause.ranks == (2, 5)
    assert found.replay.is_proof, found.replay.text


def loop8(rank, ctx, fault):
    for step in range(5):
        for number in range(3):
            if fault(rank, step, number, ctx) is None:
                dist.all_reduce(ctx.ones(4 + number))
        ctx.synchronize()


def test_what_the_simulator_does_not_know_is_said(tmp_path, monkeypatch):
    """The cause is still named."""
    monkeypatch.setattr("simrank.diagnose.replay._function_of", lambda _: None)
    found = said(tmp_path, lambda rank, ctx: loop(rank, ctx, FAULTS["size"][0]), replay=True)
    assert found.replay.text == "replay: not tried: all_reduce is not known"
    assert (found.cause.ranks, found.confidence) == ((3,), "medium")


@pytest.mark.parametrize("seed", range(9, 14))
def test_causes_of_random_programs_are_proved(seed, tmp_path):
    """One seed for each of five faults."""
    job = hung_jobs.job(seed, tmp_path)
    assert job is None or hung_jobs.said(job, replay=True).replay.is_proof
