"""What reports say: sets of ranks, lines, who ended, what is pending."""

import pytest

from simrank.engine import Engine, Handle, Task, TaskGroup
from simrank.engine.report import waiting_report
from simrank.errors import MAX_REPORT_LINES, DeadlockError


class Named(Handle):
    """A handle with a name."""

    __slots__ = ("name",)

    def __init__(self, name):
        super().__init__()
        self.name = name

    def describe(self):
        """Return the name."""
        return self.name


class Pending:
    """An operation that waits for ranks."""

    def __init__(self, name, ranks, *, is_collective):
        self.name = name
        self.ranks = ranks
        self.is_collective = is_collective

    def pending_ranks(self):
        """Yield the ranks that have issued it."""
        for rank in self.ranks:
            yield rank, self.name, None

    def absent_ranks(self):
        """Nobody is missed."""
        return ()


def deadlock(engine, *bodies):
    """Run bodies as ranks into a deadlock and return its error."""
    tasks = []
    for rank, body in enumerate(bodies):
        task = Task(engine, f"rank {rank}", rank)
        task.carry(body)
        tasks.append(task)
    group = TaskGroup(engine, "the program", tasks)
    group.start()
    with pytest.raises(DeadlockError) as caught:
        engine.run(group)
    return caught.value


def test_ranks_in_the_same_state_share_a_line_and_the_ended_come_last():
    """Ranks as ranges, waits first, then who returned and who raised what."""
    engine = Engine()
    one, other = Named("all_reduce #7 on group 'tp0'"), Named("recv from rank 0")

    def body(rank):
        if rank != 4:
            engine.wait(other if rank == 3 else one)

    error = deadlock(engine, *[lambda r=r: body(r) for r in range(6)])

    assert [(s.ranks, s.state, s.waits) for s in error.waits] == [
        ((0, 1, 2, 5), "all_reduce #7 on group 'tp0'", True),
        ((3,), "recv from rank 0", True),
        ((4,), "returned", False),
    ]
    assert {s.file.rpartition("/")[2] for s in error.waits if s.waits} == {"test_report.py"}


def test_a_rank_is_told_once_by_its_wait():
    """Operations that it has pending are left out then; those of ranks that ended are not."""
    engine = Engine()
    engine.pending[Pending("all_reduce #1", [0, 1], is_collective=True)] = None

    error = deadlock(engine, lambda: engine.wait(Named("all_reduce #1")), lambda: None)

    assert [(s.ranks, s.state) for s in error.waits] == [
        ((0,), "all_reduce #1"),
        ((1,), "returned, but all_reduce #1 is incomplete"),
    ]


@pytest.mark.parametrize(
    ("kinds", "hint"),
    [
        ([True], "make every rank of a group issue the same collectives in order"),
        ([False], "give every send a recv on its peer, and every recv a send"),
        ([True, False], None),
        ([None], None),
        ([], None),
    ],
)
def test_a_hint_is_given_only_where_it_is_certain(kinds, hint):
    """Mixed or unknown causes get none."""
    engine = Engine()
    for kind in kinds:
        engine.pending[Pending("something", [0], is_collective=kind)] = None

    assert deadlock(engine, lambda: engine.wait(Handle())).to_fix == hint


def test_the_report_of_ten_thousand_ranks_is_short():
    """At most 16 lines, however many different states there are."""
    engine = Engine()
    waits = [Named(f"recv from rank {rank}") for rank in range(100)]
    error = deadlock(
        engine, *[lambda r=r: engine.wait(waits[r % len(waits)]) for r in range(1_000)]
    )

    lines = str(error).splitlines()
    assert len(lines) <= MAX_REPORT_LINES
    assert lines[-1] == "  and 87 more sets of ranks"
    assert len(error.waits) == 100


def test_a_waiting_report_shows_who_waits_now():
    """It is the note of a time limit that passed."""
    engine = Engine()
    task = Task(engine, "rank 0", 0)
    task.carry(lambda: engine.wait(Named("a store key")))
    engine.enrol(task)

    assert waiting_report(engine) == ("simrank: when the time limit passed:\n  rank 0: not started")
    engine.wake([task])
    engine.step()
    assert "rank 0: a store key at test_report.py:" in waiting_report(engine)
