"""Which algorithm runs."""

import pytest

import simrank.distributed as dist


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

    with pytest.raises(ValueError, match=r"no algorithm 'trees'.*ring"):
        run(program, 2, algorithms={"all_reduce": "trees"})
