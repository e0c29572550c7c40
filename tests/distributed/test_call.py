"""Calls matched per group and sequence number: every mismatch names ranks, columns and lines."""

import pytest

import simrank.distributed as dist
from simrank.errors import CollectiveMismatchError, DeadlockError, SpawnException

ODD = 3


def mismatch_of(run, program, nprocs=8):
    with pytest.raises(SpawnException) as caught:
        run(program, nprocs)
    (error,) = caught.value.errors.values()
    assert isinstance(error, CollectiveMismatchError)
    return error


def line_of(text):
    """Return the number of the line of this file that holds `text` as its comment."""
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if line.rstrip().endswith(text))


DIFFERENT_CALLS = {
    "op": lambda ctx, x: dist.broadcast(x, 0),
    "reduce_op": lambda ctx, x: dist.all_reduce(x, dist.ReduceOp.MAX),
    "dtype": lambda ctx, x: dist.all_reduce(ctx.ones(4, dtype="float16")),
    "count": lambda ctx, x: dist.all_reduce(ctx.ones(5)),
}


@pytest.mark.parametrize("column", DIFFERENT_CALLS)
def test_a_call_that_differs_is_reported_with_the_column(run, column):
    """Ranks 0-2 called all_reduce; rank 3 something else; 4-7 have not called yet."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4)
        if rank == ODD:
            DIFFERENT_CALLS[column](ctx, x)
        else:
            dist.all_reduce(x)  # the common call

    error = mismatch_of(run, program)
    assert column in error.differing
    if column != "op":
        assert error.differing == (column,)
    assert [variant.ranks for variant in error.variants] == [(0, 1, 2), (3,)]
    assert error.not_called == (4, 5, 6, 7)
    assert error.seq == 1
    assert error.group == "default_pg"
    assert error.variants[0].line == line_of("# the common call")
    assert error.variants[0].file == __file__


def test_roots_that_differ_are_a_mismatch(run):
    """Broadcast from rank 0 and from rank 1."""

    def program(rank, ctx):
        dist.init_process_group()
        dist.broadcast(ctx.ones(4), 1 if rank == ODD else 0)

    error = mismatch_of(run, program)
    assert error.differing == ("root",)
    assert [variant.columns["root"] for variant in error.variants] == ["0", "1"]


def test_each_distinct_call_site_is_shown(run):
    """Ranks that made the same call at different lines have a line each."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank == 0:
            dist.all_reduce(ctx.ones(4))  # first site
        elif rank == 1:
            dist.all_reduce(ctx.ones(4))  # second site
        else:
            dist.all_reduce(ctx.ones(5))  # third site

    error = mismatch_of(run, program, 3)
    lines = [line_of(f"# {name} site") for name in ("first", "second", "third")]
    assert [variant.line for variant in error.variants] == lines


def test_the_text_of_a_mismatch_shows_only_what_differs(run):
    """One line per set of ranks; columns that agree are left out."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4 + (rank == ODD))
        dist.all_reduce(x)  # golden

    error = mismatch_of(run, program)
    line = line_of("# golden")
    assert str(error) == (
        "mismatch (proved) at t=2.000 us: "
        "the ranks of group 'default_pg' differ in count at call #1\n"
        f"  ranks 0-2: all_reduce count=4 at test_call.py:{line}\n"
        f"  rank 3: all_reduce count=5 at test_call.py:{line}\n"
        "  ranks 4-7: not there yet: not started\n"
        "  to fix: give every rank a tensor of the same size: pad it, or send the sizes first"
    )
    assert error.to_json()["differing"] == ("count",)


def test_split_sizes_that_are_no_transposes_name_the_pair(run):
    """What one sends is not what the other expects."""

    def program(rank, ctx):
        dist.init_process_group()
        receive = [2, 2, 2] if rank != 1 else [2, 2, 3]
        out = ctx.empty(sum(receive))
        dist.all_to_all_single(out, ctx.ones(6), receive, [2, 2, 2])

    error = mismatch_of(run, program, 3)
    assert error.differing == ("splits",)
    by_rank = {variant.ranks[0]: variant.columns["splits"] for variant in error.variants}
    assert by_rank == {1: "expects 3 elements from rank 2", 2: "sends 2 elements to rank 1"}


def test_the_third_call_of_a_group_is_number_three(run):
    """Sequence numbers count per group; other groups do not matter."""

    def program(rank, ctx):
        dist.init_process_group()
        group = dist.new_group([0, 1], group_desc="tp0")
        x = ctx.ones(4)
        for _ in range(5):
            dist.all_reduce(x)
        for _ in range(2):
            dist.all_reduce(x, group=group)
        dist.all_reduce(x if rank == 0 else ctx.ones(1), group=group)

    error = mismatch_of(run, program, 2)
    assert (error.group, error.seq) == ("tp0", 3)


def test_a_rank_that_never_calls_is_a_deadlock_that_names_everybody(run):
    """The waiting ranks, their operation and line; the rank that returned."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4)
        if rank != ODD:
            dist.all_reduce(x)  # never joined
            x.tolist()

    with pytest.raises(DeadlockError) as caught:
        run(program, 8)
    error = caught.value
    waiting, ended = error.waits
    assert (waiting.ranks, waiting.waits) == ((0, 1, 2, 4, 5, 6, 7), True)
    assert waiting.state == "all_reduce #1 on group 'default_pg'"
    assert waiting.line == line_of("# never joined")
    assert (ended.ranks, ended.state, ended.waits) == ((3,), "returned", False)
    assert "same collectives in order" in error.to_fix


def test_ranks_that_return_with_a_collective_in_flight_are_reported(run):
    """Nobody waits on the host, yet the collective can never complete (E5)."""

    def program(rank, ctx):
        dist.init_process_group()
        if rank != ODD:
            dist.all_reduce(ctx.ones(4), async_op=True)

    with pytest.raises(DeadlockError, match="returned, but all_reduce #1") as caught:
        run(program, 4)
    assert caught.value.waits[0].ranks == (0, 1, 2)
    culprit = caught.value.waits[1]
    assert (culprit.ranks, culprit.waits) == ((ODD,), False)
    assert culprit.state == "returned without all_reduce #1 on group 'default_pg'"


def test_groups_used_in_different_order_are_a_deadlock(run):
    """Rank 0 waits in one group, rank 1 in the other."""

    def program(rank, ctx):
        dist.init_process_group()
        groups = [dist.new_group([0, 1], group_desc=name) for name in ("a", "b")]
        for group in groups if rank == 0 else reversed(groups):
            x = ctx.ones(1)
            dist.all_reduce(x, group=group)
            x.item()

    with pytest.raises(DeadlockError) as caught:
        run(program, 2)
    states = [(state.ranks, state.state) for state in caught.value.waits]
    assert states == [((0,), "all_reduce #1 on group 'a'"), ((1,), "all_reduce #1 on group 'b'")]


def test_a_wait_behind_a_blocked_collective_is_told_by_the_collective(run):
    """A host that reads a later result is told what blocks the stream, and where it was issued."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(4)
        if rank == 0:
            dist.all_reduce(x)  # blocks the stream
            (x + 1).tolist()

    with pytest.raises(DeadlockError) as caught:
        run(program, 2)
    state = caught.value.waits[0]
    assert state.state.startswith("all_reduce #1")
    assert state.line == line_of("# blocks the stream")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["deadlock", "mismatch", "raise"])
def test_ten_thousand_ranks_are_reported_in_under_two_seconds_and_sixteen_lines(kind):
    """The report is short, and the run with it fast (issue: under 2 s)."""
    import time

    import simrank

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(1 if kind != "mismatch" or rank != 7777 else 2)
        if rank == 7777 and kind == "raise":
            raise KeyError("rank 7777")
        if rank == 7777 and kind == "deadlock":
            return
        dist.all_reduce(x)
        x.tolist()

    context = simrank.Context({"name": "h100_ib", "nodes": 1250})
    start = time.perf_counter()
    with pytest.raises((DeadlockError, SpawnException)) as caught:
        context.multiprocessing.spawn(program, (context,), nprocs=10_000)
    assert time.perf_counter() - start < 2
    error = caught.value
    if kind != "deadlock":
        ((rank, error),) = error.errors.items()
        assert rank == 7777
    assert len(str(error).splitlines()) <= 16
    if kind == "deadlock":
        assert error.waits[0].ranks == tuple(r for r in range(10_000) if r != 7777)
