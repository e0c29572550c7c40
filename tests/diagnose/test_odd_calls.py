"""Steps from call to call that one rank takes and no other: what it did instead."""

import pytest

from simrank.diagnose.odd_calls import OddCalls
from simrank.diagnose.records import CallArguments, CallColumns, Group, Records, StackLine


def records(*ranks):
    """Return records of calls; a letter is a line, which asks for what its lower case says."""
    letters = sorted({letter for calls in ranks for letter in calls})
    made = Records(groups=[Group("0", "default_pg", tuple(range(len(ranks))))])
    made.asked = [CallArguments(letter.lower(), ((1,),), (), ("Float",), ()) for letter in letters]
    made.asked = [made.asked[letters.index(x)] for x in letters]
    made.stacks += [(StackLine("t.py", ord(letter), "f"),) for letter in letters]
    kinds = sorted({letter.lower() for letter in letters})
    made.asked = [CallArguments(kind, ((1,),), (), ("Float",), ()) for kind in kinds]
    for rank, calls in enumerate(ranks):
        lane = made.lanes[rank] = CallColumns(rank, "")
        for number, letter in enumerate(calls):
            lane.groups.append(0)
            lane.numbers.append(number)
            lane.asked.append(kinds.index(letter.lower()))
            lane.stacks.append(1 + letters.index(letter))
    return made


LOOP = "abcd" * 4


@pytest.mark.parametrize(
    ("calls", "kind"),
    [
        ("abcd" * 2 + "acd" + "ab", "skipped"),
        ("abcd" * 2 + "abXcd" + "ab", "additional"),
        ("abcd" * 2 + "abbcd" + "ab", "additional"),
        ("abcd" * 2 + "acbd" + "abcd", "swapped"),
        ("abcd" * 2 + "aXcd" + "ab", "other"),
        ("abcd" * 2 + "aC", "swapped"),
        ("abcd" * 2 + "aX", "unclear"),
    ],
)
def test_what_follows_an_odd_call_tells_what_was_done(calls, kind):
    """`C` is a line of a branch that asks for what line `c` does."""
    step = OddCalls(records(LOOP, calls, LOOP, LOOP)).of_rank(1)
    assert (step.kind, step.is_clear) == (kind, True)


def test_ranks_that_do_the_same_have_no_odd_step():
    """However far each of them has come."""
    assert not OddCalls(records(LOOP, LOOP[:9], LOOP[:11], LOOP)).clear(range(4))


def test_the_way_out_of_a_loop_is_not_odd():
    """All take it once, be it from different lines."""
    odd = OddCalls(records("ab" * 4 + "e", "b" * 4 + "e", "b" * 4 + "e", "b" * 4 + "e"))
    assert not odd.clear(range(4))


def test_calls_that_are_moved_tell_by_how_many():
    """Above 0 a rank left calls out; below 0 it made more."""
    whole = "abcdefgh"
    for calls, by in (("abdefgh", 1), ("abXcdefgh", -1), ("abcXefgh", 0)):
        at, moved = OddCalls(records(whole, whole, calls)).shift(2, range(3), 0)
        assert (at, moved) == (calls.index("X") if "X" in calls else 2, by)
