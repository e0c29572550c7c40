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


def test_groups_alike_take_the_same_and_use_their_own_links(run):
    """Pairs over nodes: one port of the second pair is slow, and only that pair is."""
    took_ps = {}

    def program(rank, ctx):
        dist.init_process_group()
        pairs = [dist.new_group([i, i + 8]) for i in range(8)]
        x = ctx.empty(1 << 22)
        dist.barrier()
        ctx.synchronize()
        start = ctx.now_ps
        dist.all_reduce(x, group=pairs[rank % 8])
        ctx.synchronize()
        took_ps[rank] = ctx.now_ps - start

    cluster = {"name": "h100_ib", "nodes": 3}
    run(program, 16, cluster=cluster, data=False)
    assert len(set(took_ps.values())) == 1
    (alone_ps,) = set(took_ps.values())
    fault = {"slow_link": "node 1: nic1 -> rail1", "factor": 4, "from": "0 s"}
    run(program, 16, cluster=cluster, data=False, faults=[fault])
    assert {rank for rank, each in took_ps.items() if each != alone_ps} == {1, 9}
