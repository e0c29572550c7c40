"""Which algorithm runs, and data of ranks that end early."""

import pytest

import simrank.distributed as dist
from simrank.collectives import play_data
from simrank.distributed import planner


@pytest.mark.parametrize("algorithm", ["ring", "one_shot", "two_shot", "halving_doubling"])
def test_a_forced_algorithm_runs_and_gives_the_same_numbers(run, algorithm):
    """Context(algorithms=...) forces by name; every algorithm sums."""
    seen = set()

    class Watch:
        def on_operation(self, operation):
            if operation.kind == "collective":
                seen.add(operation.details["algorithm"])

        def on_host(self, *_):
            pass

        on_task_switch = on_transfer = on_host

    def program(rank, ctx):
        if rank == 0:
            ctx.observe(Watch())
        dist.init_process_group()
        x = ctx.arange(10) + rank
        dist.all_reduce(x)
        assert x.tolist() == [6 * i + 15 for i in range(10)]

    run(program, 6, algorithms={"all_reduce": algorithm})
    assert seen == {algorithm}


def test_an_unknown_forced_algorithm_is_an_error_with_the_choices(run):
    """The message lists the algorithms of the collective."""

    def program(rank, ctx):
        dist.init_process_group()
        dist.all_reduce(ctx.ones(1))

    with pytest.raises(ValueError, match=r"no algorithm 'tree'.*ring"):
        run(program, 2, algorithms={"all_reduce": "tree"})


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
    monkeypatch.setattr(planner, "play_data", lambda *a, **k: played.append(play_data(*a, **k)))

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
