"""A call whose time limit passed is withdrawn: nothing waits for it, and no report names it."""

from datetime import timedelta

import pytest

import simrank.distributed as dist
from simrank.errors import PeerDiedError, WaitTimeoutError

LIMIT = timedelta(seconds=3)
CALLS = {
    "barrier": lambda _x: dist.barrier(timeout=LIMIT),
    "async barrier": lambda _x: dist.barrier(async_op=True).wait(LIMIT),
    "all_reduce": lambda x: dist.all_reduce(x, async_op=True).wait(LIMIT),
    "broadcast": lambda x: dist.broadcast(x, 2, async_op=True).wait(LIMIT),
    "all_gather": lambda x: dist.all_gather([x.clone() for _ in range(3)], x, async_op=True).wait(
        LIMIT
    ),
    "recv": lambda x: dist.irecv(x, 2).wait(LIMIT),
    "send": lambda x: dist.isend(x, 2).wait(LIMIT),
}


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_program_that_handles_a_time_limit_ends_well(run, call, backend):
    """One rank never calls; the others give up, and destroy the group. Real gloo ends so, too."""
    expired = []

    def program(rank, ctx):
        dist.init_process_group(backend)
        if rank == 2:
            return
        x = ctx.ones(4, device="cpu") if backend == "gloo" else ctx.ones(1 << 26)
        try:
            call(x)
        except RuntimeError as error:  # As torch's: of its own limit, or of another's.
            expired.append((rank, type(error)))
        dist.destroy_process_group()

    run(program, 3, data=False)
    assert [rank for rank, _ in expired] == [0, 1]
    assert WaitTimeoutError in {kind for _, kind in expired}


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_group_is_of_no_use_after_a_time_limit_and_another_group_is(run, backend):
    """Its connections are closed: who waits is told, and so is who comes later."""
    ends = {}

    def program(rank, ctx):
        dist.init_process_group(backend)
        other = dist.new_group()
        x = ctx.ones(4, device="cpu" if backend == "gloo" else "cuda")
        if rank == 0:
            with pytest.raises(WaitTimeoutError):
                dist.all_reduce(x, async_op=True).wait(timedelta(seconds=1))
        elif rank == 3:
            ctx.wait(ctx.timer(2 * 10**12))
        with pytest.raises(PeerDiedError, match="rank 0 gave up a call") as caught:
            dist.all_reduce(x, async_op=True).wait(LIMIT)
        with pytest.raises(PeerDiedError, match="rank 0 gave up a call"):
            dist.send(x, 1 if rank == 0 else 0)
        assert isinstance(caught.value.peer_error, WaitTimeoutError)
        y = ctx.ones(4, device="cpu" if backend == "gloo" else "cuda")
        dist.all_reduce(y, group=other)
        ends[rank] = y.tolist()

    run(program, 4)
    assert ends == {rank: [4.0] * 4 for rank in range(4)}


def test_a_message_that_was_given_up_is_not_matched_with_a_later_one(run):
    """The sender that comes too late is told so."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        x = ctx.zeros(4, device="cpu")
        if rank == 0:
            with pytest.raises(WaitTimeoutError):
                dist.irecv(x, 1).wait(timedelta(seconds=1))
        else:
            ctx.wait(ctx.timer(2 * 10**12))
            with pytest.raises(PeerDiedError, match=r"send to rank 0 on .* gave up a call"):
                dist.send(ctx.ones(4, device="cpu"), 0)

    run(program, 2)
