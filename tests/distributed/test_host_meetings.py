"""Meetings of all members of a group: who has come is told, and all go on together."""

import pytest

import simrank.distributed as dist
from simrank.distributed.group import World
from simrank.distributed.host_meetings import Meeting
from simrank.distributed.membership import world_of
from simrank.errors import DeadlockError
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
    meeting.come(program.rank)
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
