"""Levels of checks: what each looks for, and single checks that override it."""

import pytest

import simrank
import simrank.distributed as dist
from simrank.config.checks import LEVELS, checks_of
from simrank.errors import RaceError, SimrankError


def race(rank):
    """Change a tensor during a collective on it."""
    dist.init_process_group()
    x = simrank.ones(4, device=f"cuda:{rank}")
    work = dist.all_reduce(x, async_op=True)
    x.add_(1)
    work.wait()
    dist.destroy_process_group()


def lose(rank):
    """Send a message without a receive."""
    dist.init_process_group(device_id=simrank.device("cuda", rank))
    if rank == 0:
        dist.send(simrank.ones(4, device="cuda:0"), 1)
    dist.destroy_process_group()


def run(fn, **settings):
    """Run a function on two ranks, and return the Context."""
    with simrank.Context(**settings) as context:
        context.multiprocessing.spawn(fn, nprocs=2, share_args=True)
    return context


def test_single_checks_override_their_level():
    """A choice of one check leaves the others as the level has them."""
    chosen = checks_of("default", races="report", divergence=True)
    assert chosen == LEVELS["default"]._replace(races="report", divergence=True)
    assert checks_of("all", strict=False) == LEVELS["all"]._replace(strict=False)


def test_unknown_levels_and_choices_are_errors():
    """With the choices."""
    with pytest.raises(ValueError, match="checks='some'; choices: off, default, all"):
        checks_of("some")
    with pytest.raises(ValueError, match="races='on'; choices: off, report, error"):
        checks_of("default", races="on")


def test_a_race_fails_a_run_at_its_end_unless_checks_are_off():
    """By default; `races="report"` only lists it."""
    with pytest.raises(RaceError, match="add_ writes"):
        run(race)
    assert run(race, checks="off").races == []
    assert len(run(race, races="report").races) == 1


def test_a_lost_message_fails_a_run_unless_checks_are_off():
    """The error names the line of the send."""
    with pytest.raises(SimrankError, match=r"lost message \(proved\)(.|\n)*test_checks.py:25"):
        run(lose)
    assert any("never received" in line for line in run(lose, checks="off").findings)


def test_the_notes_of_a_run_name_what_it_did_not_look_for():
    """Every level but "all"."""
    assert "races" in run(race, checks="off").unchecked
    assert "swapped calls" in run(lambda rank: None).unchecked
    assert run(print, checks="all").unchecked is None


def test_races_are_looked_for_among_the_first_operations(monkeypatch):
    """What comes later passes by default, and the notes say so."""
    monkeypatch.setattr("simrank.context.MAX_OPERATIONS_BY_DEFAULT", 1)
    context = run(race)
    assert context.races == []
    assert "races after the first operations" in context.unchecked


def test_runs_without_data_look_for_no_races_by_default():
    """They are of real size; `races="error"` still looks."""
    assert run(race, data=False).checks.races == "off"
    with pytest.raises(simrank.multiprocessing.ProcessRaisedException):
        run(race, data=False, races="error")
