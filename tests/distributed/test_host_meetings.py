"""Meetings of all members of a group: who has come is told, and all go on together."""

from datetime import timedelta

import pytest

import simrank.distributed as dist
from simrank.distributed.group import World
from simrank.distributed.host_meetings import Meeting
from simrank.distributed.membership import world_of
from simrank.errors import DeadlockError, SpawnException
from simrank.ranks import require_rank


def meet(engine_of_rank, number=1):
    """Come to a meeting of the default group, and wait for the others."""
    program = require_rank("a test")
    world = world_of(program)
    assert isinstance(world, World)
    group = dist.group.WORLD
    meetings = world.__dict__.setdefault("test_meetings", {})
    meeting = meetings.setdefault(number, None) or Meeting(group, number)
    meetings[number] = meeting
    meeting.add_arrival(program.rank)
    engine_of_rank.wait(meeting)
    return meeting


def test_all_go_on_a_round_trip_after_the_last_one(run):
    """Nobody before, everybody then."""
    times = {}

    def program(rank, ctx):
        dist.init_process_group()
        ctx.engine.sleep(rank * 10**6)
        meeting = meet(ctx.engine)
        times[rank] = ctx.now_ps
        assert meeting.missing() == []

    ctx = run(program, 4)
    assert set(times.values()) == {3 * 10**6 + 2 * ctx.cluster.collectives.launch_latency_ps}
    assert not ctx.engine.pending


def test_who_has_not_come_is_in_the_report(run):
    """With those that wait, and their line."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank != 2:
            meet(ctx.engine)

    with pytest.raises(DeadlockError) as caught:
        run(program, 4)
    text = str(caught.value)
    assert "ranks 0-1, 3: meeting #1 on group 'default_pg' at test_host_meetings.py" in text
    assert "rank 2: returned" in text


# ---- the monitored barrier: torch's words on every rank ----


def test_all_ranks_go_on_once_all_have_come(run):
    """No earlier; several in a row."""
    left_ps = {}

    def program(rank, ctx):
        dist.init_process_group("gloo")
        dist.monitored_barrier()
        if rank == 2:
            ctx.engine.sleep(10**9)
        dist.monitored_barrier(timeout=timedelta(seconds=5))
        left_ps[rank] = ctx.now_ps

    context = run(program, 3)
    assert min(left_ps.values()) > 10**9
    assert context.now_ps < 10**10


def test_rank_zero_names_the_first_that_is_missing_and_the_others_point_to_it(run):
    """A caught error lets the healthy ranks go on."""
    texts = {}

    def program(rank, ctx):
        dist.init_process_group("gloo")
        if rank in (1, 3):
            return
        with pytest.raises(RuntimeError) as caught:
            dist.monitored_barrier(timeout=timedelta(milliseconds=1500))
        texts[rank] = str(caught.value)

    run(program, 4)
    assert texts[0] == "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 1500 ms"
    assert texts[2].startswith("Rank 2 successfully reached monitoredBarrier, but received errors")


def test_a_rank_whose_rank_zero_is_missing_says_so(run):
    """The limit passes on the others."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        if rank:
            dist.monitored_barrier(timeout=timedelta(seconds=1))

    with pytest.raises(SpawnException, match="Please check rank 0 logs") as caught:
        run(program, 3)
    assert set(caught.value.errors) <= {1, 2}


def test_its_default_limit_is_explicit_and_fires(run):
    """Thirty simulated minutes: an error, not a deadlock (E5)."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        if rank != 1:
            dist.monitored_barrier()

    with pytest.raises((SpawnException, DeadlockError), match="in 1800000 ms"):
        run(program, 2)


def test_only_gloo_has_it(run):
    """Other backends, other types of limits."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        with pytest.raises(ValueError, match="only implemented for GLOO backend"):
            dist.monitored_barrier()
        group = dist.new_group(backend="gloo")
        with pytest.raises(TypeError, match="got 3"):
            dist.monitored_barrier(group, timeout=3)
        with pytest.warns(UserWarning, match=r"Converting current value of 2.0"):
            dist.monitored_barrier(group, timeout=2.0)

    run(program, 2)
