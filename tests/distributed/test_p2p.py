"""Point-to-point: matched in order, eager below the buffer, rendezvous above."""

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import CollectiveMismatchError, DeadlockError, SimrankError, SpawnException

LARGE = 2**26  # elements of float32: far above any protocol buffer


def test_a_recv_gets_what_was_sent_in_order(run):
    """Two messages of a pair keep their order; recv returns the sender."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank == 0:
            for value in (1.0, 2.0):
                dist.send(ctx.full((3,), value), 1)
        if rank == 1:
            first, second = ctx.empty(3), ctx.empty(3)
            assert dist.recv(first, 0) == 0
            dist.recv(second, 0)
            assert first.tolist() + second.tolist() == [1, 1, 1, 2, 2, 2]

    run(program, 2)


def _two_receives(rank, ctx):
    dist.init_process_group("gloo")
    if rank == 0:
        parts = [ctx.empty(1, device="cpu") for _ in range(2)]
        works = [dist.irecv(part) for part in parts]
        dist.barrier()
        for work in works:
            work.wait()
        assert [part.item() for part in parts] == [1, 2]
    else:
        parts = [ctx.full((1,), value, device="cpu") for value in (1.0, 2.0)]
        dist.barrier()
        for work in [dist.isend(part, 0) for part in parts]:
            work.wait()


def test_no_delay_lets_messages_of_gloo_overtake_each_other():
    """They are posted as they are issued: calls may be late, and with them all that follow."""
    for seed in range(1, 61):
        with simrank.Context(delays=seed) as ctx:
            ctx.multiprocessing.spawn(_two_receives, args=(ctx,), nprocs=2)


def test_a_small_send_ends_without_its_receiver(run):
    """Eager: the sender may reuse its buffer, the receiver gets the old values."""
    sent_ps = {}

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.full((4,), 5.0)
        if rank == 0:
            dist.send(x, 1)
            x.fill_(0)
            x.tolist()
            sent_ps[0] = ctx.now_ps
        else:
            ctx.engine.sleep(10**9)
            dist.recv(x, 0)
            assert x.tolist() == [5.0] * 4

    run(program, 2)
    assert sent_ps[0] < 10**8


def test_a_large_send_waits_for_its_receiver(run):
    """Rendezvous: the sender's stream is held until the receiver is there."""
    sent_ps = {}

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.empty(LARGE)
        if rank == 0:
            dist.send(x, 1)
            ctx.synchronize()
            sent_ps[0] = ctx.now_ps
        else:
            ctx.engine.sleep(10**9)
            dist.recv(x, 0)

    run(program, 2, data=False)
    assert sent_ps[0] > 10**9


def test_a_ring_of_small_sends_works_and_of_large_ones_is_a_cycle(run):
    """Everybody sends first: fine while buffered, else a deadlock that shows the cycle."""

    def program(rank, ctx, size):
        dist.init_process_group()
        x, y = ctx.empty(size), ctx.empty(size)
        dist.send(x, (rank + 1) % 4)
        dist.recv(y, (rank - 1) % 4)
        ctx.synchronize()

    run(program, 4, 16)
    with pytest.raises(DeadlockError) as caught:
        run(program, 4, LARGE, data=False)
    states = [(state.ranks, state.state.partition(" on ")[0]) for state in caught.value.waits]
    assert states == [((rank,), f"send to rank {(rank + 1) % 4}") for rank in range(4)]


def test_a_recv_without_a_send_is_a_deadlock(run):
    """The report names the waiting rank and the ranks that returned."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank == 0:
            x = ctx.empty(1)
            dist.recv(x, 1)
            x.item()

    with pytest.raises(DeadlockError) as caught:
        run(program, 3)
    assert [state.ranks for state in caught.value.waits] == [(0,), (1, 2)]
    assert caught.value.waits[0].state == "recv from rank 1 on group 'default_pg'"


def test_ends_that_differ_are_a_mismatch(run):
    """Dtype and count of a send and its recv must agree."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank == 0:
            dist.send(ctx.ones(3), 1)
        else:
            dist.recv(ctx.ones(4), 0)

    with pytest.raises(SpawnException) as caught:
        run(program, 2)
    (error,) = caught.value.errors.values()
    assert isinstance(error, CollectiveMismatchError)
    assert "count" in error.differing
    assert {variant.ranks for variant in error.variants} == {(0,), (1,)}


def _sending_to(num_receivers, took_ps):
    """Return a program whose rank 0 sends to some ranks at once."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.empty(LARGE)
        dist.barrier()
        start = ctx.now_ps
        if rank == 0:
            for peer in range(1, num_receivers + 1):
                with ctx.stream(ctx.Stream()):
                    dist.send(x, peer)
        elif rank <= num_receivers:
            dist.recv(x, 0)
            ctx.synchronize()
            took_ps[num_receivers] = ctx.now_ps - start

    return program


@pytest.mark.parametrize(
    ("cluster", "least", "most"),
    [
        ({"name": "hgx_h100", "cost_level": "schedule"}, 1.95, 2.05),
        # 16 channels of 18 GB/s each: 288 of the 370 GB/s that NCCL gets out of a port; what is
        # left of the ramp's time is shared too.
        ("hgx_h100", 1.2, 2 * 288 / 370),
    ],
)
def test_two_messages_share_a_link(run, cluster, least, most):
    """Rank 0 sends to two ranks at once: alone, NCCL's channels do not fill its port."""
    took_ps = {}
    for num_receivers in (1, 2):
        run(_sending_to(num_receivers, took_ps), 3, data=False, cluster=cluster)
    assert least < took_ps[2] / took_ps[1] < most


@pytest.mark.parametrize("count", [1, 1 << 14, 1 << 22, 1 << 28])
@pytest.mark.parametrize(("nodes", "num_ranks"), [(1, 2), (1, 8), (2, 16)])
def test_messages_take_what_nccl_takes(run, count, nodes, num_ranks):
    """Each rank sends to the next one: to the picosecond what is predicted, launches apart."""
    cluster = {"name": "h100_ib", "nodes": nodes}
    took_ps = []

    def program(rank, ctx):
        dist.init_process_group()
        x, y = ctx.empty(count), ctx.empty(count)
        dist.barrier()
        ctx.synchronize()
        start = ctx.now_ps
        ops = [
            dist.P2POp(dist.isend, x, (rank + 1) % num_ranks),
            dist.P2POp(dist.irecv, y, (rank - 1) % num_ranks),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        ctx.synchronize()
        took_ps.append(ctx.now_ps - start)

    run(program, num_ranks, data=False, cluster=cluster)
    found = simrank.predict("sendrecv", 4 * count, num_ranks, cluster=cluster)
    launch_us = 4  # Assumed by the host's clock: what issuing a call takes.
    assert max(took_ps) / 1e6 == pytest.approx(found.time_us[0] + launch_us, abs=2.1)


def sends_twice(rank, ctx, is_async):
    """Send two messages, of which the other rank receives one."""
    dist.init_process_group()
    ctx.cuda.set_device(rank)
    x = ctx.ones(4)
    if rank == 1:
        dist.recv(x, 0)
        return
    for _ in range(2):
        if is_async:
            dist.isend(x, 1).wait()
        else:
            dist.send(x, 1)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_lost_message_fails_a_run_at_its_end_and_hangs_under_strict(run, is_async):
    """With sender, receiver and line: NCCL has buffered it, and another size would have hung."""
    with pytest.raises(SimrankError, match="lost message"):
        run(sends_twice, 2, is_async)
    (finding,) = run(sends_twice, 2, is_async, checks="off").findings
    assert finding.startswith("  rank 0: send to rank 1 on group 'default_pg' never received at")
    with pytest.raises(DeadlockError, match="rank 0: returned, but send to rank 1 on group"):
        run(sends_twice, 2, is_async, strict=True)


def test_messages_that_are_received_in_the_end_are_no_finding(run):
    """However late, and whatever else failed on the way."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4)
        for _ in range(3):
            if rank == 0:
                dist.send(x, 1)
        dist.barrier()
        for _ in range(3):
            if rank == 1:
                dist.recv(x, 0)

    assert run(program, 2).findings == []


def test_a_message_to_a_rank_that_died_is_no_finding(run):
    """The report is about the rank that died."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank == 0:
            dist.send(ctx.ones(4), 1)
            ctx.synchronize()
        else:
            ctx.wait(ctx.timer(10**9))
            raise KeyError("dies")

    with simrank.Context(on_failure="continue") as ctx:
        with pytest.raises(SpawnException, match="dies"):
            ctx.multiprocessing.spawn(program, (ctx,), nprocs=2)
        assert ctx.findings == []


def exchanges(rank, ctx, batched):
    """Send to the other rank and receive from it, in this order or as one call."""
    dist.init_process_group()
    ctx.cuda.set_device(rank)
    x, y = ctx.ones(4), ctx.zeros(4)
    if batched:
        ends = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
        for work in dist.batch_isend_irecv(ends):
            work.wait()
    else:
        dist.send(x, 1 - rank)
        dist.recv(y, 1 - rank)
    assert y.tolist() == [1.0] * 4


def test_an_exchange_that_needs_sends_to_be_buffered_is_a_deadlock_under_strict(run):
    """Its two sends each wait for a receive that comes after the other; a batch is the cure."""
    run(exchanges, 2, False)
    run(exchanges, 2, True, strict=True)
    with pytest.raises(DeadlockError) as caught:
        run(exchanges, 2, False, strict=True)
    assert {state.ranks for state in caught.value.waits} == {(0,), (1,)}


def test_a_hang_names_the_message_of_a_rank_that_has_returned():
    """In a ring of odd size whose parity chooses the group, two neighbours choose unlike ones."""

    def program(rank):
        dist.init_process_group("nccl")
        groups = [dist.new_group(), dist.new_group()]
        sent, got = simrank.ones(4), simrank.zeros(4)
        mine, theirs = groups[rank % 2], groups[1 - rank % 2]
        works = [
            dist.isend(sent, (rank + 1) % 3, group=mine),
            dist.irecv(got, (rank - 1) % 3, group=theirs),
        ]
        for work in works:
            work.wait()
        simrank.synchronize()

    with pytest.raises(DeadlockError) as raised, simrank.Context("hgx_h100") as context:
        context.multiprocessing.spawn(program, nprocs=3, share_args=True)
    (returned,) = [state for state in raised.value.waits if state.ranks == (2,)]
    assert returned.state.startswith(
        "returned, but its send to rank 0 on group 'group_1' was never"
    )
