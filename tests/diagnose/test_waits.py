"""Who waits for whom, and which calls do not fit each other."""

import simrank.distributed as dist
from simrank.diagnose.records import CallArguments
from simrank.diagnose.waits import MatchedCalls, Waits, _must_agree

from .jobs import records_of


def asked(op, inputs, outputs=None, dtype="Float"):
    return CallArguments(op, (inputs,), (outputs or inputs,), (dtype,), (dtype,))


def test_what_must_agree_depends_on_the_operation():
    """Lists of all_gather may differ on the way in, splits of all-to-all everywhere."""
    for op, other, agrees in (
        ("all_reduce", asked("all_reduce", (2, 4)), True),
        ("all_reduce", asked("all_reduce", (9,)), False),
        ("all_reduce", asked("all_reduce", (8,), dtype="Half"), False),
        ("all_gather", asked("all_gather", (3,), (8,)), True),
        ("all_to_all", asked("all_to_all", (3,), (5,)), True),
        ("reduce_scatter", asked("reduce_scatter", (8,), (3,)), True),
        ("barrier", asked("barrier", (1,)), True),
    ):
        assert (_must_agree(asked(op, (8,))) == _must_agree(other)) is agrees, (op, other)


def test_a_meeting_tells_who_waits_and_who_has_not_come(tmp_path):
    """Rank 2 skips a collective."""

    def program(rank, ctx):
        if rank != 2:
            dist.all_reduce(ctx.ones(4))
            ctx.synchronize()

    wait = Waits(records_of(tmp_path, program)).all[MatchedCalls(0, 1)]
    assert (sorted(wait.waiting), set(wait.absent), wait.mismatch) == ([0, 1, 3], {2}, None)


def test_sends_and_receives_are_joined_in_their_order(tmp_path):
    """Rank 1 receives once more than rank 0 sends."""

    def program(rank, ctx):
        for _ in range(3 + rank):
            (dist.recv if rank else dist.send)(ctx.zeros(4), 1 - rank)

    waits = Waits(records_of(tmp_path, program, 2))
    (wait,) = waits.all.values()
    assert (wait.meeting[2:], sorted(wait.waiting), set(wait.absent)) == ((0, 1), [1], {0})


def test_a_chain_of_waits_leads_back_to_its_cause(tmp_path):
    """Rank 1 waits for rank 0, which waits for rank 3."""

    def program(rank, ctx):
        pairs = [dist.new_group([0, 1]), dist.new_group([0, 3])]
        if rank == 0:
            dist.all_reduce(ctx.ones(4), group=pairs[1])
            ctx.synchronize()
        if rank in (0, 1):
            dist.all_reduce(ctx.ones(4), group=pairs[0])
            ctx.synchronize()

    waits = Waits(records_of(tmp_path, program))
    cause = next(meeting for meeting, wait in waits.all.items() if 3 in wait.absent)
    assert waits.ranks_in(waits.because_of([cause])) == {0, 1}
    assert waits.rings() == []


def test_long_chains_need_no_recursion():
    """Of thousands of pipeline stages."""
    meetings = [MatchedCalls(0, number) for number in range(5_000)]

    class Ring(Waits):
        def __init__(self):
            from simrank.diagnose.waits import Wait

            self.all = {m: Wait(m, stands_behind={meetings[m.number - 1]}) for m in meetings}

    assert Ring().rings() == [meetings]
