"""Orders that NCCL needs and no single call shows: of two communicators, and of `new_group`."""

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import SimrankError


def two_groups(rank, ctx, turns):
    """Sum over two groups at the same time; `turns` are the ranks that begin with the second."""
    dist.init_process_group(device_id=rank)
    ctx.cuda.set_device(rank)
    groups = [dist.new_group(), dist.new_group()]
    tensors = [ctx.ones(4), ctx.ones(4)]
    works = [
        dist.all_reduce(tensors[index], group=groups[index], async_op=True)
        for index in ((1, 0) if rank in turns else (0, 1))
    ]
    for work in works:
        work.wait()
    ctx.synchronize()


def waits_between(rank, ctx, turns):
    """Do the same one after the other: the host knows that the first has ended."""
    dist.init_process_group()
    ctx.cuda.set_device(rank)
    groups = [dist.new_group(), dist.new_group()]
    x = ctx.ones(4)
    for index in (1, 0) if turns else (0, 1):
        dist.all_reduce(x, group=groups[index], async_op=True).wait()
        x.tolist()


@pytest.mark.parametrize("turns", [(2,), (0, 1), (3,)])
def test_two_communicators_in_opposite_orders_are_a_finding(run, turns):
    """The numbers are right here; on hardware each may keep the other out."""
    (finding,) = run(two_groups, 4, turns).findings
    assert "in opposite orders, and nothing orders them: NCCL may hang at test_order.py:" in finding
    with pytest.raises(SimrankError, match="opposite orders"):
        run(two_groups, 4, turns, strict=True)


@pytest.mark.parametrize("program", [two_groups, waits_between])
@pytest.mark.parametrize("turns", [(), (0, 1, 2, 3)])
def test_the_same_order_on_all_ranks_is_none(run, program, turns):
    """Whatever that order is, and also where calls do not overlap at all."""
    assert run(program, 4, turns, strict=True).findings == []


def test_what_is_in_flight_is_kept_for_no_longer_than_that(run):
    """A chain of overlapping calls does not keep the first of them (E10)."""
    sizes = []

    def program(rank, ctx):
        dist.init_process_group()
        groups = [dist.new_group(), dist.new_group()]
        before = None
        for number in range(50):
            work = dist.all_reduce(ctx.ones(1 << 20), group=groups[number % 2], async_op=True)
            if before is not None:
                before.wait()
            before = work
            if rank == 0:
                sizes.append(ctx.devices[0].memory.used_bytes)
                ctx.synchronize()
        before.wait()

    run(program, 2)
    assert max(sizes) == max(sizes[:6])


def makes_groups(rank, ctx, makers, local):
    """Make a group of ranks 0 and 1, on some ranks."""
    dist.init_process_group()
    if rank in makers:
        dist.new_group([0, 1], use_local_synchronization=local)


def test_a_group_that_not_every_rank_has_made_is_a_finding(run):
    """Members or not: later groups would be taken for each other."""
    (finding,) = run(makes_groups, 4, (0, 1), False).findings
    assert finding.startswith(
        "  ranks 2-3: never called new_group for 'group_1', as rank 0 did at test_order.py:"
    )
    with pytest.raises(SimrankError, match="ranks 2-3: never called new_group"):
        run(makes_groups, 4, (0, 1), False, strict=True)


@pytest.mark.parametrize(("makers", "local"), [((0, 1, 2, 3), False), ((0, 1), True), ((), False)])
def test_a_group_that_all_have_made_who_must_is_none(run, makers, local):
    """With local synchronization those are the members."""
    assert run(makes_groups, 4, makers, local, strict=True).findings == []


def test_ranks_that_failed_had_no_chance_to_make_a_group():
    """What is told is what they raised."""

    def program(rank):
        dist.init_process_group()
        if rank == 3:
            raise KeyError(rank)
        dist.new_group([0, 1])

    for on_failure in ("abort", "continue"):
        with simrank.Context(on_failure=on_failure) as ctx:
            with pytest.raises(simrank.errors.SpawnException):
                ctx.multiprocessing.spawn(program, nprocs=4)
            assert ctx.findings == []
