"""Which algorithm runs."""

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import DeadlockError


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


# ---- hosts meet with gloo: who sends waits until its receivers have called ----

ROOTED = {
    "broadcast": lambda x, parts, group: dist.broadcast(x, 0, group=group),
    "scatter": lambda x, parts, group: dist.scatter(
        x, parts if dist.get_rank() == 0 else None, src=0, group=group
    ),
    "reduce": lambda x, parts, group: dist.reduce(x, 1, group=group),
    "gather": lambda x, parts, group: dist.gather(
        x, parts if dist.get_rank() == 1 else None, dst=1, group=group
    ),
}


def rooted_program(rank, name, size, crossed):
    """Rank 0 gives something, with gloo, to rank 1: behind a barrier of another group, or not."""
    dist.init_process_group("gloo")
    group = dist.new_group([0, 1])
    x = simrank.ones(size, device="cpu")
    parts = [simrank.ones(size, device="cpu") for _ in range(2)]
    if rank == 1 and crossed:
        dist.barrier()
    ROOTED[name](x, parts, group)
    if rank == 0 or not crossed:
        dist.barrier()


@pytest.mark.parametrize("size", [4, 1 << 20])
@pytest.mark.parametrize("name", ROOTED)
def test_who_sends_waits_for_who_receives(name, size):
    """The other would call after a barrier that the sender makes later: a deadlock."""
    with (
        pytest.raises(DeadlockError, match=rf"rank 0: {name} #1 on group(.|\n)*rank 1: barrier #1"),
        simrank.Context("hgx_h100") as ctx,
    ):
        ctx.multiprocessing.spawn(rooted_program, (name, size, True), 2)


@pytest.mark.parametrize("name", ROOTED)
def test_in_the_same_order_nobody_waits_for_ever(name):
    """With the barrier afterwards on both."""
    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(rooted_program, (name, 4, False), 2)


def test_who_only_receives_may_go_on_before_those_that_do_not_concern_it():
    """The second of a chain of receivers does not wait for the last."""
    ends = {}

    def late(rank, ctx):
        dist.init_process_group("gloo")
        dist.barrier()
        if rank == 3:
            ctx.wait(ctx.timer(10**9))
        dist.broadcast(simrank.ones(4, device="cpu"), 0)
        ends[rank] = ctx.now_ps

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(late, (ctx,), 4)
    assert min(ends[1], ends[2]) < ends[3]
