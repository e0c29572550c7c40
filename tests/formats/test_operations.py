"""Which nodes of a trace may begin, and when."""

from hypothesis import given
from hypothesis import strategies as st

from simrank.formats.operations import ANY, CALC, RECV, SEND, Progress, TraceNode, in_cycle


def nodes(*requires, irequires=()):
    """Calcs, each with those that it requires."""
    starts = dict(irequires)
    return [
        TraceNode(f"n{number}", CALC, "f:1", requires=tuple(each), irequires=starts.get(number, ()))
        for number, each in enumerate(requires)
    ]


def test_a_node_begins_when_all_that_it_requires_are_over():
    """The first of the trace first, whatever came free first."""
    progress = Progress(nodes((), (), (0, 1), (1, 1)))
    assert list(progress.begun()) == [0, 1]
    progress.end(1)
    assert list(progress.begun()) == [3]
    progress.end(0)
    assert list(progress.begun()) == [2]


def test_irequires_waits_for_a_beginning_only():
    """Which may set others free at once."""
    progress = Progress(nodes((), (), (), irequires=[(1, (0,)), (2, (1,))]))
    assert list(progress.begun()) == [0, 1, 2]


def test_a_cycle_names_its_first_node():
    """Those that nothing holds up are no part of it."""
    assert in_cycle(nodes((), (2,), (1,))).label == "n1"
    assert in_cycle(nodes((), (0,), (1,))) is None
    assert in_cycle([]) is None


@given(st.lists(st.sets(st.integers(0, 20), max_size=3), max_size=20))
def test_every_node_begins_once_where_each_requires_earlier_ones(requires):
    """After all of those are over."""
    made = nodes(*({each for each in before if each < n} for n, before in enumerate(requires)))
    progress, over = Progress(made), []
    while begun := list(progress.begun()):
        for number in begun:
            assert set(made[number].requires) <= set(over)
        for number in begun:
            over.append(number)
            progress.end(number)
    assert sorted(over) == list(range(len(made)))


def test_nodes_say_what_they_are():
    """With the place in the trace."""
    send = TraceNode("l1", SEND, "t.goal:3", size_bytes=8, peer=1, tag=2)
    recv = TraceNode("l2", RECV, "t.goal:4", size_bytes=2048, peer=ANY)
    calc = TraceNode("l3", CALC, "t.goal:5", duration_ps=1_500_000)
    assert send.describe() == "l1: send 8 B to rank 1 with tag 2 (t.goal:3)"
    assert recv.describe() == "l2: recv 2 KiB from any rank with tag 0 (t.goal:4)"
    assert calc.describe() == "l3: calc 1.500 us (t.goal:5)"
