"""Data of ranks that end early, or late."""

import pytest

import simrank.distributed as dist
from simrank.collectives import DataPlayer


@pytest.mark.parametrize("algorithm", ["binomial", "chain"])
@pytest.mark.parametrize("late", range(5))
def test_a_late_rank_of_a_broadcast_gets_the_roots_old_values(run, algorithm, late):
    """Ranks that end early overwrite their buffers; whoever arrives late gets what was sent."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.full((6,), float(rank))
        if rank == late:
            ctx.engine.sleep(10**9)
        dist.broadcast(x, 2)
        assert x.tolist() == [2.0] * 6
        x.fill_(-1)

    run(program, 5, algorithms={"broadcast": algorithm})


@pytest.mark.parametrize("algorithm", ["binomial", "chain"])
@pytest.mark.parametrize("late", range(5))
def test_a_late_rank_of_a_reduce_still_counts_everybody(run, algorithm, late):
    """Leaves end early and reuse their buffers; the root has every contribution once."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.full((6,), 2.0**rank)
        if rank == late:
            ctx.engine.sleep(10**9)
        dist.reduce(x, 2)
        if rank == 2:
            assert x.tolist() == [31.0] * 6
        else:
            assert x.tolist() == [2.0**rank] * 6
            x.fill_(-1)

    run(program, 5, algorithms={"reduce": algorithm})


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_ranks_that_end_one_by_one_play_the_schedule_at_most_once(run, collective, monkeypatch):
    """A staggered chain of n ranks is no n plays: early ends are copies."""
    played = []
    play = DataPlayer.play
    monkeypatch.setattr(DataPlayer, "play", lambda *a, **k: played.append(play(*a, **k)))

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.full((3,), float(rank))
        ctx.engine.sleep(rank * 10**9)
        if collective == "broadcast":
            dist.broadcast(x, 0)
            assert x.tolist() == [0.0] * 3
        else:
            dist.reduce(x, 0)
            assert x.tolist() == ([28.0] if rank == 0 else [rank]) * 3
        x.fill_(-1)

    run(program, 8, algorithms={collective: "chain"})
    assert len(played) <= 1
