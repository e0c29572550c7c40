"""Under `strict`, members meet to make a communicator, as NCCL makes them by default."""

import pytest

import simrank.distributed as dist
from simrank.errors import DeadlockError


def other_order(rank, ctx):
    """Two groups of the same ranks, used first in opposite order."""
    dist.init_process_group("nccl")
    ctx.cuda.set_device(rank)
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    x, y = ctx.ones(4), ctx.ones(4)
    order = groups if rank == 0 else groups[::-1]
    works = [
        dist.all_reduce(tensor, group=group, async_op=True)
        for tensor, group in zip((x, y), order, strict=True)
    ]
    for work in works:
        work.wait()
    assert x.tolist() == [2.0] * 4


def first_batch(rank, ctx, **init):
    """A batch of messages between two of four ranks is the first call of their group."""
    dist.init_process_group("nccl", **init)
    ctx.cuda.set_device(rank)
    x = ctx.ones(4)
    if rank < 2:
        ops = [dist.P2POp(dist.isend if rank == 0 else dist.irecv, x, 1 - rank)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        x.tolist()


def first_batch_eagerly(rank, ctx):
    """The same, with communicators that are made from the start."""
    first_batch(rank, ctx, device_id=rank)


def test_groups_first_used_in_another_order_hang_under_strict(run):
    """Each host waits for the other; the report has both lines."""
    with pytest.raises(DeadlockError) as caught:
        run(other_order, 2, strict=True)
    text = str(caught.value)
    assert text.count("making the communicator of group") == 2
    assert "test_communicator.py:" in text


def test_communicators_made_from_the_start_do_not_wait(run):
    """As without `strict`, or with torch's `device_id`."""
    run(other_order, 2)
    run(first_batch_eagerly, 4, strict=True)


def test_a_first_batch_needs_all_members_of_its_group(run):
    """So says the documentation of torch; without `strict` it passes."""
    run(first_batch, 4)
    with pytest.raises(DeadlockError, match="making the communicator of group 'default_pg'"):
        run(first_batch, 4, strict=True)


def sends_first(rank, ctx):
    """Rank 1 receives only after an all_reduce that rank 0 calls after its send."""
    dist.init_process_group("nccl")
    ctx.cuda.set_device(rank)
    x = ctx.ones(4)
    if rank == 0:
        dist.send(x, 1)
        dist.all_reduce(x)
    else:
        dist.all_reduce(x)
        x.tolist()
        dist.recv(x, 0)


def test_a_first_message_waits_for_the_other_of_its_pair(run):
    """The sender's host is held up before it can call what the receiver waits for."""
    with pytest.raises(DeadlockError) as caught:
        run(sends_first, 2, strict=True)
    assert "making the communicator of ranks 0 and 1 of group 'default_pg'" in str(caught.value)


issued_ps: list[int] = []


def three_calls(rank, ctx):
    """Note how long each call holds rank 0's host up."""
    dist.init_process_group("nccl")
    ctx.cuda.set_device(rank)
    x = ctx.ones(4)
    for _ in range(3):
        before = ctx.now_ps
        dist.all_reduce(x, async_op=True).wait()
        if rank == 0:
            issued_ps.append(ctx.now_ps - before)
    ctx.synchronize()
    dist.destroy_process_group()


def test_meeting_costs_once(run):
    """The second call waits for nobody on the host."""
    run(three_calls, 2, strict=True)
    first, second, third = issued_ps
    assert first > second == third
