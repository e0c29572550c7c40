"""Equal calls from different lines: told where a run fails, never otherwise."""

import pytest

import simrank
import simrank.distributed as dist
from simrank.distributed.mismatched_calls import MadeCall, mismatch_error
from simrank.engine.callsite import CallSite
from simrank.errors import CollectiveMismatchError, DeadlockError, SpawnException

WORLD = 3


def first(x):
    dist.all_reduce(x)  # first


def second(x):
    dist.all_reduce(x)  # second


def line_of(function):
    """Return the line of the only call in a function."""
    return function.__code__.co_firstlineno + 1


def fails(program, **settings):
    """Return what a program on three ranks ends with."""
    with pytest.raises(Exception) as caught, simrank.Context("hgx_h100", **settings) as ctx:  # noqa: PT011
        ctx.multiprocessing.spawn(program, nprocs=WORLD)
    error = caught.value
    return next(iter(error.errors.values())) if isinstance(error, SpawnException) else error


def lines_of(error):
    """Return the lines of an error's unlike calls, by rank."""
    return {rank: side.line for side in error.unlike.sides for rank in side.ranks}


def skips_the_first(rank):
    dist.init_process_group("nccl")
    x = simrank.ones(4)
    if rank != 1:
        first(x)
    second(x)


def test_a_hang_names_the_first_equal_calls_from_different_lines():
    """Where the ranks lost step; the last line is where they noticed."""
    error = fails(skips_the_first)
    assert isinstance(error, DeadlockError)
    assert error.unlike.name == "all_reduce #1 on group 'default_pg'"
    assert lines_of(error) == {0: line_of(first), 1: line_of(second), 2: line_of(first)}
    assert f"  {error.unlike}\n  to fix: " in str(error)
    assert error.to_json()["unlike"]["name"] == error.unlike.name


def branches_then_skips(rank):
    dist.init_process_group("nccl")
    x = simrank.ones(4)
    if rank == 0:
        dist.broadcast(x, 0)
    else:
        dist.broadcast(x, 0)
    for step in range(4):
        if (rank, step) != (1, 2):
            first(x)
        second(x)
    dist.all_reduce(simrank.ones(2))


def test_a_mismatch_names_them_and_passes_over_branches_that_ranks_take_for_good_reasons():
    """Lines at which the ranks have met before tell more than lines of one rank alone."""
    error = fails(branches_then_skips)
    assert isinstance(error, CollectiveMismatchError)
    assert error.unlike.name == "all_reduce #6 on group 'default_pg'"
    assert lines_of(error) == {0: line_of(first), 1: line_of(second)}  # Rank 2 has not called.


def same_lines(rank):
    dist.init_process_group("nccl")
    x = simrank.ones(4)
    first(x)
    if rank == 0:
        second(x)


def test_without_such_calls_nothing_is_added():
    """The report is as short as ever."""
    error = fails(same_lines)
    assert error.unlike is None
    assert "different lines" not in str(error)
    assert "unlike" not in error.to_json()


@pytest.mark.parametrize("program", [skips_the_first, branches_then_skips])
def test_a_report_offers_divergence_unless_it_was_on(program):
    """As a note of the error."""
    offered = [n for n in fails(program).__notes__ if "`--checks all`" in n]
    assert len(offered) == 1
    notes = getattr(fails(program, divergence=True), "__notes__", ())
    assert not any("--checks" in note for note in notes)


def branches(rank):
    dist.init_process_group("nccl")
    x = simrank.ones(4)
    if rank == 0:
        dist.broadcast(x, 0)
    else:
        dist.broadcast(x, 0)
    dist.destroy_process_group()


@pytest.mark.parametrize("divergence", [False, True])
def test_a_program_that_is_right_gets_no_finding(divergence):
    """Equal calls on branches are legal."""
    with simrank.Context("hgx_h100", divergence=divergence) as ctx:
        ctx.multiprocessing.spawn(branches, nprocs=WORLD)
    assert ctx.findings == []


# ---- the error of calls that differ: one line per distinct call and line of the program ----


def site(function):
    return CallSite(function.__code__, 0)


def here():
    pass


def test_equal_calls_of_one_line_are_told_together():
    """In the order of the first of them; the columns are text."""
    calls = [
        MadeCall(0, {"op": "all_reduce", "count": 4}, site(here)),
        MadeCall(3, {"op": "all_reduce", "count": 8}, site(here)),
        MadeCall(1, {"op": "all_reduce", "count": 4}, site(here)),
    ]
    error = mismatch_error(10**6, "tp0", 7, calls, [2])
    assert [variant.ranks for variant in error.variants] == [(0, 1), (3,)]
    assert error.differing == ("count",)
    assert error.variants[1].columns == {"op": "all_reduce", "count": "8"}
    assert error.variants[0].file == __file__
    assert error.not_called == (2,)
    assert "at call #7" in str(error)


def test_equal_calls_of_two_lines_are_two_variants():
    """Where they were made may be what is wrong."""
    calls = [
        MadeCall(0, {"op": "a"}, site(here)),
        MadeCall(1, {"op": "a"}, None),
        MadeCall(2, {"op": "b"}, None),
    ]
    error = mismatch_error(0, "g", 1, calls, ())
    assert [variant.ranks for variant in error.variants] == [(0,), (1,), (2,)]
    assert error.variants[1].line is None


# ---- work that was started and never waited for: listed by line, taken off by a wait ----


def test_a_wait_of_any_kind_takes_a_work_off_the_list_of_leaks(run):
    """wait, a positive poll, ctx.wait."""

    def program(rank, ctx):
        dist.init_process_group()
        x = ctx.ones(1)
        dist.all_reduce(x, async_op=True).wait()
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            pass
        ctx.wait(dist.all_reduce(x, async_op=True))
        dist.barrier(async_op=True).synchronize()

    assert run(program, 2).comm_library.leaks.report() == []


# ---- ranks that have lost step: all have made both of the calls that differ before ----


def in_step_until(rank, sizes):
    dist.init_process_group()
    for size in sizes[rank]:
        dist.all_reduce(simrank.ones(size))


@pytest.mark.parametrize(
    ("sizes", "cure"),
    [
        (([4, 8, 4, 8], [4, 8, 8]), "one has left a call out or made one more since"),
        (([4, 4, 8], [4, 4, 9]), "give every rank a tensor of the same size"),
    ],
)
def test_calls_that_all_have_made_before_are_a_matter_of_steps_not_of_sizes(sizes, cure):
    """As gathers of two modules, where ranks have other numbers of micro-batches."""
    with simrank.Context("hgx_h100") as ctx, pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(in_step_until, args=(sizes,), nprocs=2)
    assert cure in caught.value.__cause__.to_fix


def test_groups_that_wait_for_each_other_need_one_order():
    """Each of two ranks waits in the group that the other has not come to."""

    def program(rank):
        dist.init_process_group()
        groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        for group in groups if rank else groups[::-1]:
            x = simrank.ones(4)
            dist.all_reduce(x, group=group)
            x.sum().item()

    with simrank.Context("hgx_h100") as ctx, pytest.raises(DeadlockError) as caught:
        ctx.multiprocessing.spawn(program, nprocs=2)
    assert caught.value.to_fix.startswith("issue the collectives of all groups in the same order")


def test_the_failure_of_one_rank_names_those_that_wait_for_it():
    """In one line, with their call."""

    def program(rank):
        dist.init_process_group()
        if rank == 0:
            simrank.ones(4).sum().item()
            raise ValueError("bad batch")
        dist.barrier()

    with simrank.Context("hgx_h100") as ctx, pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(program, nprocs=3)
    line = program.__code__.co_firstlineno + 5
    text = str(caught.value)
    assert "simrank: ranks 1-2 wait for it in barrier #1 on group 'default_pg' at" in text
    assert f"test_findings.py:{line}" in text
