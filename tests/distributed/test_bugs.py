"""Seeded bugs: each fault and each class of the MPI Bugs Initiative that applies, on 8 ranks.

Every program is right but for one planted mistake; the report must name the right ranks, the
operation and the line, at once: no time limit is needed.
"""

import gc
from datetime import timedelta

import pytest

import simrank
import simrank.distributed as dist
from simrank.errors import (
    CollectiveMismatchError,
    DeadlockError,
    IllegalTransportError,
    LivelockError,
    SimrankError,
    SpawnException,
)

NUM_RANKS = 8
ODD = 3
OTHERS = tuple(rank for rank in range(NUM_RANKS) if rank != ODD)
LARGE = 2**26  # elements of float32: far above any protocol buffer


def line_of(text):
    """Return the number of the line of this file that holds `text` as its comment."""
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if line.rstrip().endswith(text))


def spawn_and_catch(program, **options):
    """Run a program on 8 ranks and return what it raises."""
    gc.collect()
    with pytest.raises(SimrankError) as caught, simrank.Context("hgx_h100", **options) as context:
        context.multiprocessing.spawn(program, (context,), nprocs=NUM_RANKS)
        context.drain()
    error = caught.value
    if isinstance(error, SpawnException):
        (error,) = error.errors.values()
    return error


def mismatch(program, **options):
    """Return the mismatch that a program ends in, and its variants by their ranks."""
    error = spawn_and_catch(program, **options)
    assert isinstance(error, CollectiveMismatchError)
    return error, {variant.ranks: variant for variant in error.variants}


def deadlock(program, **options):
    """Return the deadlock that a program ends in, and its states by their ranks."""
    error = spawn_and_catch(program, **options)
    assert isinstance(error, DeadlockError)
    assert error.proved
    assert len(str(error).splitlines()) <= 16
    return error, {state.ranks: state for state in error.waits}


# ---- call, datatype, operator and root matching ----

CALLS = {
    "all_reduce": lambda x, xs: dist.all_reduce(x),
    "broadcast": lambda x, xs: dist.broadcast(x, 0),
    "reduce": lambda x, xs: dist.reduce(x, 0),
    "all_gather": lambda x, xs: dist.all_gather(xs, x),
    "reduce_scatter": dist.reduce_scatter,
    "all_to_all": lambda x, xs: dist.all_to_all(xs, [t.clone() for t in xs]),
    "gather": lambda x, xs: dist.gather(x, xs if dist.get_rank() == 0 else None, 0),
    "scatter": lambda x, xs: dist.scatter(x, xs if dist.get_rank() == 0 else None, 0),
    "barrier": lambda x, xs: dist.barrier(),
    "all_gather_object": lambda x, xs: dist.all_gather_object([None] * NUM_RANKS, 1),
    "broadcast_object_list": lambda x, xs: dist.broadcast_object_list([1]),
}


@pytest.mark.parametrize("call", CALLS)
def test_another_call_is_named_on_the_rank_that_made_it(call):
    """Rank 3 calls something else under the same number."""
    other = "all_reduce" if call != "all_reduce" else "broadcast"

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x, xs = ctx.ones(4), [ctx.ones(4) for _ in range(NUM_RANKS)]
        CALLS[other if rank == ODD else call](x, xs)  # differs in the call
        x.tolist()

    error, variants = mismatch(program)
    assert "op" in error.differing
    assert variants[(0, 1, 2)].columns["op"] == call
    assert variants[(ODD,)].columns["op"] == other
    assert error.not_called == (4, 5, 6, 7)


ARGUMENTS = {
    "dtype": lambda ctx, odd: dist.all_gather(
        [ctx.ones(4, dtype="int32" if odd else "int64") for _ in range(8)],
        ctx.ones(4, dtype="int32" if odd else "int64"),
    ),
    "reduce_op": lambda ctx, odd: dist.reduce_scatter(
        ctx.ones(4), [ctx.ones(4)] * 8, dist.ReduceOp.MIN if odd else dist.ReduceOp.SUM
    ),
    "root": lambda ctx, odd: dist.gather(
        ctx.ones(4), [ctx.ones(4)] * 8 if dist.get_rank() == (ODD if odd else 0) else None,
        ODD if odd else 0,
    ),
    "count": lambda ctx, odd: dist.scatter(
        ctx.ones(5 if odd else 4), [ctx.ones(4)] * 8 if dist.get_rank() == 0 else None, 0
    ),
}  # fmt: skip


@pytest.mark.parametrize("column", ARGUMENTS)
def test_an_argument_that_differs_is_the_only_column_shown(column):
    """Datatype, operator, root and count of list calls."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        ARGUMENTS[column](ctx, rank == ODD)

    error, variants = mismatch(program)
    assert error.differing == (column,)
    assert set(variants) == {(0, 1, 2), (ODD,)}
    assert all(variant.file == __file__ for variant in error.variants)


def test_a_size_that_one_rank_expects_otherwise_names_the_pair():
    """Uneven all_gather: rank 3 thinks that rank 0 sends five elements."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        sizes = [4, *range(1, NUM_RANKS)]
        if rank == ODD:
            sizes[0] = 5
        out = [ctx.empty(size) for size in sizes]
        dist.all_gather(out, ctx.ones(sizes[rank]))  # sizes

    error, variants = mismatch(program)
    assert error.differing == ("splits",)
    assert variants[(0,)].columns["splits"] == "sends 4 elements to rank 3"
    assert variants[(ODD,)].columns["splits"] == "expects 5 elements from rank 0"
    assert variants[(ODD,)].line == line_of("# sizes")


# ---- who never comes ----


@pytest.mark.parametrize("how", ["skips", "raises"])
def test_a_rank_that_never_calls_or_raises_is_the_culprit(how):
    """A deadlock names it; what it raised is the error itself."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank == ODD and how == "raises":
            raise KeyError("mine")
        if rank != ODD:
            x = ctx.ones(2, device="cpu")
            dist.all_reduce(x)  # all but one

    if how == "raises":
        with pytest.raises(SpawnException) as caught, simrank.Context("hgx_h100") as ctx:
            ctx.multiprocessing.spawn(program, (ctx,), nprocs=NUM_RANKS)
        assert list(caught.value.errors) == [ODD]
        return
    _, states = deadlock(program)
    assert states[OTHERS].line == line_of("# all but one")
    assert states[OTHERS].state.startswith("all_reduce #1")
    assert states[(ODD,)].state == "returned"


def test_groups_in_another_order_are_a_deadlock_that_shows_both():
    """Communicator matching: two groups of the same ranks, used in another order by rank 3."""

    def program(rank, ctx):
        dist.init_process_group()
        groups = [dist.new_group(group_desc=name) for name in ("first", "second")]
        for group in groups if rank != ODD else groups[::-1]:
            dist.all_reduce(ctx.ones(1, device="cpu"), group=group)  # crossed

    _, states = deadlock(program)
    assert states[OTHERS].state == "all_reduce #1 on group 'first'"
    assert states[(ODD,)].state == "all_reduce #1 on group 'second'"
    assert states[OTHERS].line == states[(ODD,)].line == line_of("# crossed")


def test_new_group_with_other_ranks_shows_every_call():
    """Rank 3 leaves one out."""

    def program(rank, ctx):
        dist.init_process_group()
        dist.new_group([0, 1] if rank == ODD else [0, 1, 2])  # makes

    error, variants = mismatch(program)
    assert error.differing == ("ranks",)
    assert variants[(ODD,)].columns["ranks"] == "[0, 1]"
    assert variants[(0, 1, 2)].line == variants[(ODD,)].line == line_of("# makes")


def test_a_member_that_never_made_the_group_is_told_so():
    """Rank 3 skips new_group, and returns."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank != ODD:
            group = dist.new_group(group_desc="tp")
            dist.all_reduce(ctx.ones(1), group=group)

    _, states = deadlock(program)
    assert "returned, but all_reduce #1 on group 'tp' is incomplete" in states[OTHERS].state
    culprit = states[(ODD,)].state
    assert culprit == (
        "returned without all_reduce #1 on group 'tp'; it never called new_group for it"
    )


# ---- messages ----


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_cycle_of_sends_shows_every_rank(backend):
    """Everybody sends to the next first: large messages with nccl, any with gloo."""

    def program(rank, ctx):
        dist.init_process_group(backend)
        x = ctx.empty(LARGE) if backend == "nccl" else ctx.ones(1, device="cpu")
        dist.send(x, (rank + 1) % NUM_RANKS)  # first
        dist.recv(x, (rank - 1) % NUM_RANKS)
        ctx.synchronize()

    _, states = deadlock(program, data=False)
    assert len(states) == NUM_RANKS
    for rank in range(NUM_RANKS):
        assert states[(rank,)].state.startswith(f"send to rank {(rank + 1) % NUM_RANKS} on")
        assert states[(rank,)].line == line_of("# first")


def test_a_send_that_nobody_receives_is_reported_even_if_it_is_buffered():
    """Gloo: the sender waits; the peer that returned is named."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        if rank == ODD:
            dist.send(ctx.ones(1, device="cpu"), 5)  # unmatched

    _, states = deadlock(program)
    assert states[(ODD,)].state == "send to rank 5 on group 'default_pg'"
    assert states[(ODD,)].line == line_of("# unmatched")
    assert states[tuple(OTHERS)].state == "returned"


def test_tags_that_differ_are_in_the_report():
    """Tag matching: gloo has tags."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        x = ctx.ones(1, device="cpu")
        if rank == 0:
            dist.send(x, 1, tag=7)
        if rank == 1:
            dist.recv(x, 0, tag=8)

    _, states = deadlock(program)
    assert states[(0,)].state.startswith("send to rank 1 with tag 7")
    assert states[(1,)].state.startswith("recv from rank 0 with tag 8")


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_ends_of_a_message_that_differ_name_both_lines(backend):
    """Datatype matching of messages."""

    def program(rank, ctx):
        dist.init_process_group(backend)
        device = "cpu" if backend == "gloo" else None
        if rank == 0:
            dist.send(ctx.ones(3, device=device), 1)  # sends three
        if rank == 1:
            dist.recv(ctx.ones(3, dtype="int32", device=device), 0)  # takes ints

    error, variants = mismatch(program)
    assert "dtype" in error.differing
    assert variants[(0,)].line == line_of("# sends three")
    assert variants[(1,)].line == line_of("# takes ints")


def test_a_batch_and_a_single_recv_do_not_meet_with_nccl():
    """They use other communicators: both wait, as on hardware."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        x = ctx.empty(LARGE)
        if rank == 0:
            dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1)])[0].wait()
        if rank == 1:
            dist.recv(x, 0)
        ctx.synchronize()

    _, states = deadlock(program, data=False)
    assert states[(0,)].state.startswith("send to rank 1")
    assert states[(1,)].state.startswith("recv from rank 0")


def test_a_receive_from_any_source_that_gets_nothing_says_so():
    """Message race turned into a wait: one receive too many."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        x = ctx.ones(1, device="cpu")
        if rank:
            dist.send(x, 0)
        else:
            for _ in range(NUM_RANKS):
                dist.recv(x)  # one too many

    _, states = deadlock(program)
    assert states[(0,)].state == "recv from any rank on group 'default_pg'"
    assert states[(0,)].line == line_of("# one too many")


# ---- requests, resources, groups ----


def test_a_work_that_nobody_waits_for_is_listed_as_a_leak():
    """Request lifecycle: collected per Context with ranks and line."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(1)
        for _ in range(2):
            work = dist.all_reduce(x, async_op=True)  # leaks
            if rank != ODD:
                work.wait()

    with simrank.Context("hgx_h100") as context:
        context.multiprocessing.spawn(program, (context,), nprocs=NUM_RANKS)
    (leak,) = context.comm_library.leaks.report()
    assert leak.ranks == (ODD,)
    assert leak.state == "all_reduce on group 'default_pg' never waited for (2 times)"
    assert leak.line == line_of("# leaks")


def test_a_poll_for_a_message_that_never_comes_is_a_livelock():
    """Request lifecycle: is_completed in a loop."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        if rank == ODD:
            work = dist.irecv(ctx.ones(1, device="cpu"), 0)
            while not work.is_completed():
                pass

    error = spawn_and_catch(program)
    assert isinstance(error, LivelockError)
    assert error.waits[0].ranks == (ODD,)


def test_a_call_on_a_destroyed_group_is_named():
    """Invalid communicator."""

    def program(rank, ctx):
        dist.init_process_group()
        group = dist.new_group(group_desc="gone")
        dist.destroy_process_group(group)
        if rank == ODD:
            dist.all_reduce(ctx.ones(1), group=group)

    error = spawn_and_catch(program)
    assert isinstance(error, ValueError)
    assert "all_reduce on group 'gone', which rank 3 has destroyed" in str(error)


def test_a_group_destroyed_with_work_pending_waits_for_it_and_is_reported():
    """Rank 3 never calls; the others leave with their call in flight."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank != ODD:
            dist.all_reduce(ctx.ones(1), async_op=True)  # pending
        dist.destroy_process_group()

    _, states = deadlock(program)
    assert states[OTHERS].state.startswith("all_reduce #1")
    assert states[OTHERS].line == line_of("# pending")


def test_a_monitored_barrier_names_who_did_not_come():
    """Rank 0 says it in torch's words, at the simulated time of the limit."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        if rank not in (ODD, 5):
            dist.monitored_barrier(timeout=timedelta(seconds=2), wait_all_ranks=True)

    with pytest.raises(SpawnException) as caught, simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=NUM_RANKS)
    error = caught.value.errors[0]
    assert str(error) == "[Rank 0]: Ranks 3, 5 failed to pass monitoredBarrier in 2000 ms"
    assert 2 * 10**12 <= ctx.now_ps < 2.1 * 10**12


INVALID = {
    "root": (ValueError, lambda ctx: dist.broadcast(ctx.ones(1), 99)),
    "peer": (ValueError, lambda ctx: dist.isend(ctx.ones(1), dist.get_rank())),
    "tensor": (TypeError, lambda ctx: dist.all_gather([1], ctx.ones(1))),
    "list": (RuntimeError, lambda ctx: dist.all_gather([ctx.ones(1)], ctx.ones(1))),
    "on the host": (IllegalTransportError, lambda ctx: dist.all_reduce(ctx.ones(1, device="cpu"))),
    "operator": (ValueError, lambda ctx: dist.all_reduce(ctx.ones(1), dist.ReduceOp.BAND)),
    "datatype": (TypeError, lambda ctx: dist.all_reduce(ctx.ones(1, dtype="int16"))),
    "splits": (RuntimeError, lambda ctx: dist.all_to_all_single(ctx.ones(8), ctx.ones(8), [8])),
    "group size": (ValueError, lambda ctx: dist.new_subgroups(3)),
    "backend": (ValueError, lambda ctx: dist.monitored_barrier()),
}


@pytest.mark.parametrize("what", INVALID)
def test_an_invalid_parameter_raises_on_the_rank_that_gave_it(what):
    """At once, as torch does, whatever the others do."""
    kind, call = INVALID[what]

    def program(rank, ctx):
        dist.init_process_group("nccl")
        if rank == ODD:
            call(ctx)
        dist.barrier()

    with pytest.raises(SpawnException) as caught, simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=NUM_RANKS)
    assert list(caught.value.errors) == [ODD]
    assert type(caught.value.errors[ODD]) is kind


def test_the_text_of_a_stuck_exchange_is_short_and_complete():
    """Golden: one line per set of ranks in the same state, and plain data beside it."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        if rank < 2:
            x = ctx.ones(1, device="cpu")
            dist.send(x, 1 - rank)  # both send first
        if rank == ODD:
            dist.all_gather_object([None] * NUM_RANKS, rank)  # alone

    error, _ = deadlock(program)
    sends, alone = line_of("# both send first"), line_of("# alone")
    assert str(error) == (
        "deadlock (proved) at t=2.000 us: 3 rank(s) wait forever\n"
        f"  rank 0: send to rank 1 on group 'default_pg' at test_bugs.py:{sends}\n"
        f"  rank 1: send to rank 0 on group 'default_pg' at test_bugs.py:{sends}\n"
        f"  rank 3: all_gather_object #1 on group 'default_pg' at test_bugs.py:{alone}\n"
        "  ranks 2, 4-7: returned"
    )
    facts = error.to_json()
    assert facts["waits"][2]["ranks"] == (ODD,)
    assert facts["proved"] is True


def test_a_message_race_is_listed_with_its_line():
    """Any-source receives: another seed may give other numbers, and the run says so."""

    def program(rank, ctx):
        dist.init_process_group("gloo")
        x = ctx.ones(1, device="cpu")
        if rank == 0:
            for _ in range(1, NUM_RANKS):
                dist.recv(x)  # races
        else:
            dist.send(x, 0)

    with simrank.Context("hgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=NUM_RANKS)
    (line,) = ctx.comm_library.leaks.message_races()
    assert (line.file, line.line) == (__file__, line_of("# races"))


def test_right_programs_raise_no_alarm_and_leak_nothing():
    """All collectives, messages and groups, on both backends, races as errors."""

    def program(rank, ctx):
        dist.init_process_group()
        _, groups = dist.new_subgroups(4)
        for device in (None, "cpu"):
            x = ctx.ones(4, device=device)
            xs = [ctx.ones(4, device=device) for _ in range(NUM_RANKS)]
            for call in CALLS.values():
                call(x, xs)
            entries = [
                dist.P2POp(dist.isend, x, (rank + 1) % NUM_RANKS),
                dist.P2POp(dist.irecv, xs[0], (rank - 1) % NUM_RANKS),
            ]
            for work in dist.batch_isend_irecv(entries):
                work.wait()
            dist.all_reduce(x, group=groups[rank // 4], async_op=True).wait()
            x.tolist()
            xs[0].tolist()
        dist.destroy_process_group()

    with simrank.Context("hgx_h100", races="error") as ctx:
        ctx.multiprocessing.spawn(program, (ctx,), nprocs=NUM_RANKS)
    assert ctx.comm_library.leaks.report() == []
    assert ctx.races == []


def receives_first(rank, ctx, backend):
    """Receive from the rank before, then send to the next: each has its other end."""
    dist.init_process_group(backend)
    size = dist.get_world_size()
    x = ctx.ones(4, device="cpu" if backend == "gloo" else "cuda")
    dist.recv(x, (rank - 1) % size)
    x.tolist()
    dist.send(x, (rank + 1) % size)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_cycle_of_receives_is_named_with_its_cure(run, backend):
    """Every send has a recv: what is wrong is the order."""
    with pytest.raises(DeadlockError) as caught:
        run(receives_first, 3, backend)
    assert caught.value.to_fix.startswith("the ranks wait in a cycle, 0 -> 2 -> 1 -> 0: let one")


def test_ranks_that_wait_alike_share_a_line_where_they_are_many(run):
    """Each with its own peer, of which the first are shown; so are those of the cycle."""
    with pytest.raises(DeadlockError) as caught:
        run(receives_first, 200, "nccl", cluster={"name": "h100_ib", "nodes": 25})
    (state,) = caught.value.waits
    assert state.ranks == tuple(range(200))
    assert state.state.startswith("recv from ranks 199, 0, 1, 2, 3, 4, 5, 6, ... (in this order)")
    assert "0 -> 199 -> 198 -> 197 -> 196 -> 195 -> ... -> 1 -> 0" in caught.value.to_fix


def test_a_message_that_is_missing_outside_of_a_cycle_is_told_as_such(run):
    """The chain ends at a rank that waits for nobody."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4)
        if rank < 2:
            dist.recv(x, rank + 1)
            x.tolist()

    with pytest.raises(DeadlockError) as caught:
        run(program, 3)
    assert caught.value.to_fix == "give every send a recv on its peer, and every recv a send"


def test_groups_that_are_used_in_opposite_orders_are_the_cause_that_is_named(run):
    """All ranks have made all calls: none is missing."""

    def program(rank, ctx):
        dist.init_process_group()
        groups = [dist.new_group(), dist.new_group()]
        x = ctx.ones(4)
        for group in groups if rank % 2 else reversed(groups):
            dist.all_reduce(x, group=group)
        x.tolist()

    with pytest.raises(DeadlockError) as caught:
        run(program, 4)
    assert caught.value.to_fix.startswith("issue the collectives of all groups in the same order")


def test_a_rank_that_waits_for_something_else_is_not_told_to_call_a_collective(run):
    """A queue keeps it: no hint is certain."""

    def program(rank, ctx, queue):
        dist.init_process_group()
        if rank == 0:
            queue.get()
        dist.barrier()

    with pytest.raises(DeadlockError) as caught:
        run(program, 2, simrank.multiprocessing.Queue())
    assert caught.value.to_fix is None


def test_a_rank_that_never_called_new_group_is_told_so(run):
    """Though it has returned, and others have too."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank == 1:
            return
        group = dist.new_group([0, 1])
        if rank == 0:
            x = ctx.ones(4)
            dist.all_reduce(x, group=group)
            x.tolist()

    with pytest.raises(DeadlockError) as caught:
        run(program, 3)
    states = {state.ranks: state.state for state in caught.value.waits}
    assert states[1,].endswith("it never called new_group for it")
    assert states[2,] == "returned"
