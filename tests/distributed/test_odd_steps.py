"""The step from call to call that one rank takes and no other, in reports of failures."""

from collections import Counter

import pytest

import simrank
import simrank.distributed as dist
from simrank.distributed.call_history import Called
from simrank.distributed.odd_steps import oddest_step
from simrank.engine.callsite import SourceLine
from simrank.errors import DeadlockError
from tests.distributed import odd_programs


def calls(*names):
    """Return calls, of which equal names are the same object."""
    return [KNOWN.setdefault(name, Called(name, SourceLine("t.py", ord(name)))) for name in names]


KNOWN = {}


def test_a_skipped_call_is_named_with_its_neighbours():
    """Rank 1 goes from a straight to c, and elsewhere to b."""
    loop = calls(*"abcd" * 5)
    step = oddest_step({0: loop, 1: loop[:9] + loop[10:], 2: loop})
    assert step.ranks == (1,)
    assert (
        str(step)
        == "odd step: rank 1 skipped b at t.py:98: from a at t.py:97 straight to c at t.py:99"
    )


def test_a_call_made_once_more_is_named_with_what_comes_elsewhere():
    """Rank 1 makes a call of its own after a."""
    loop = calls(*"abcd" * 5)
    step = oddest_step({0: loop, 1: loop[:9] + calls("x") + loop[9:], 2: loop})
    assert step.ranks == (1,)
    assert (step.after, step.usual, step.is_skipped) == ("x at t.py:120", "b at t.py:98", False)


def test_ranks_of_one_loop_have_no_odd_step():
    """A step that is rare, such as the one out of the loop, is taken by all ranks."""
    loop = calls(*"aabacd" * 5, "e")
    assert oddest_step(dict.fromkeys(range(4), loop)) is None


def test_a_rank_that_is_ahead_at_the_end_of_its_loop_is_not_odd():
    """The others have not come there yet."""
    loop = calls(*"abc" * 5)
    assert oddest_step({0: loop + calls("e"), 1: loop[:8], 2: loop[:8]}) is None


def test_the_last_step_is_odd_where_the_others_went_on_together():
    """Of two ranks that part in their first loop, either may be wrong."""
    begin = calls(*"abcd")
    others = {rank: begin + calls("e") for rank in range(1, 4)}
    step = oddest_step({0: begin + calls("a"), **others})
    assert (step.ranks, step.usual) == ((0,), "e at t.py:101")
    assert oddest_step({0: begin + calls("a"), 1: begin + calls("e")}) is None  # Either may be.


def test_roles_that_differ_from_the_first_call_on_are_not_odd():
    """Stages of a pipeline take steps of their own, again and again."""
    first, later, last = calls(*"ab" * 6), calls(*"cbd" * 6), calls(*"cd" * 6)
    assert oddest_step({0: first, 1: later, 2: later, 3: last}) is None


@pytest.mark.parametrize("members", [(), (0,)])
def test_what_few_ranks_have_among_themselves_is_not_odd(members):
    """A message of rank 0, or a group of its own: another rank has left a whole loop out."""
    own = Called("x", SourceLine("t.py", 1), {members})
    loop = calls(*"abcd" * 5)
    histories = {0: [*loop[:9], own, *loop[9:]], 1: loop, 2: loop[4:], 3: loop}
    assert oddest_step(histories) is None
    own.groups.add((0, 1))  # Rank 1 does not make it.
    assert oddest_step(histories).ranks == (0,)


def test_a_hang_names_the_odd_step_by_default():
    """In its text and as data, without an option."""

    def program(rank, ctx):
        dist.init_process_group("nccl")
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        pair = pairs[rank // 2]
        for step in range(4):
            dist.all_reduce(ctx.ones(4), group=pair)
            if not (rank == 2 and step == 2):
                dist.all_reduce(ctx.ones(4))
            dist.all_reduce(ctx.ones(8), group=pair)

    with (
        pytest.raises(DeadlockError, match="odd step: rank 2 skipped all_reduce at") as caught,
        simrank.Context.for_ranks(4) as ctx,
    ):
        ctx.multiprocessing.spawn(program, args=(ctx,), nprocs=4)
    assert caught.value.odd_step.ranks == (2,)
    assert caught.value.to_json()["odd_step"]["is_skipped"]


def score(seeds):
    """Return how many failures there are, and how many have the right rank, its line, another."""
    found = Counter()
    for seed in seeds:
        program = odd_programs.draw(seed)
        error = odd_programs.failure(program, f"p{seed}.py")
        if error is None:
            continue  # The fault is harmless, as two calls that change places.
        found["failed"] += 1
        step = error.odd_step
        if step is not None:
            found["right" if step.ranks == (program.culprit,) else "wrong"] += 1
            lines = {int(text.rpartition(":")[2]) for text in (step.before, step.after, step.usual)}
            found["line"] += bool(lines & program.lines)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_odd_step_of_a_random_program_is_that_of_the_culprit(seed):
    """Whatever the axes, the calls and the fault."""
    found = score([seed])
    assert found["right"] == found["failed"]


@pytest.mark.slow
def test_the_odd_steps_of_a_thousand_random_programs_are_those_of_the_culprit():
    """The line of the fault is one of the step's."""
    found = score(range(1000, 2000))
    assert found["wrong"] <= 2
    assert found["right"] >= 0.95 * found["failed"]
    assert found["line"] >= 0.9 * found["failed"]


@pytest.mark.parametrize("seed", range(10))
def test_right_random_programs_end(seed):
    """The generator's programs are right without their fault."""
    assert odd_programs.failure(odd_programs.draw(seed, "none"), "p.py") is None
