"""GOAL schedules: what is read, and what is said of those that are wrong."""

from pathlib import Path

import pytest
from hypothesis import given, settings

from simrank.errors import ConfigError
from simrank.formats.goal import is_goal, parse_goal, read_goal
from simrank.formats.operations import ANY, CALC, RECV, SEND
from tests.property.broken import broken, read_or_refused

TREE = Path(__file__).parent / "goal" / "binary_tree_16.goal"
TEXT = """\
num_ranks 2  // two

rank 0 {
l1: calc 100 cpu 1
l2: send 8b to 1 tag 5 cpu 0 nic 0
l2 requires l1
send 16b to 1
/* between
   lines */
l4: calc 7
l4 irequires l2
}
rank 1 {
a: recv 8b from 0 tag 5
recv 16b from -1
}
"""


def test_a_schedule_of_loggopsims_own_is_read():
    """A binomial tree: everybody but the root receives once, before it sends on."""
    trace = read_goal(TREE)
    assert len(trace.ranks) == 16
    assert trace.num_nodes == 30
    assert [node.peer for node in trace.ranks[0]] == [1, 2, 4, 8]
    first, *others = trace.ranks[1]
    assert (first.kind, first.peer, first.size_bytes) == (RECV, 0, 1)
    assert all(node.requires == (0,) for node in others)


def test_labels_orders_and_comments_are_read():
    """Nodes without a label have their number."""
    trace = parse_goal(TEXT, "t.goal")
    calc, send, plain, last = trace.ranks[0]
    assert (calc.kind, calc.duration_ps, calc.stream) == (CALC, 100_000, 1)
    assert (send.kind, send.peer, send.tag, send.requires) == (SEND, 1, 5, (0,))
    assert (plain.label, plain.size_bytes, plain.tag) == ("node 2", 16, 0)
    assert (last.irequires, last.place) == ((1,), "t.goal:10")
    assert trace.ranks[1][1].peer == ANY


def test_a_rank_may_stand_on_one_line():
    """And a rank without nodes may be left out."""
    trace = parse_goal("num_ranks 3\nrank 1 { a: calc 1; b: calc 2; b requires a }", "t")
    assert [len(nodes) for nodes in trace.ranks] == [0, 2, 0]
    assert trace.ranks[1][1].requires == (0,)


def test_a_schedule_is_known_by_its_first_words():
    """Behind comments, too."""
    assert is_goal("/* a\nb */ // c\n num_ranks 4")
    assert not is_goal('{"version": 1}')


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_ranks 2", "", "t.goal:3: expected `num_ranks` and a number, got rank 0 {"),
        ("num_ranks 2", "num_ranks 0", "t.goal:1: num_ranks: expected a number from 1 to"),
        ("rank 1", "rank 2", "t.goal:13: rank: expected a number from 0 to 1, got 2"),
        ("rank 1", "rank 0", "t.goal:13: expected each rank once, got rank 0 again"),
        ("rank 1 {", "rank 1", "t.goal:13: expected `rank 0 {`, got rank 1"),
        ("requires l1", "requires l9", "t.goal:6: expected a label of rank 0 that was defined"),
        ("requires l1", "needs l1", "t.goal:6: expected `l1: send 8b to 1 tag 0`"),
        ("8b to 1", "8 to 1", "t.goal:5: expected `l1: send 8b to 1 tag 0`"),
        ("send 8b to 1", "send 8b from 1", "t.goal:5: expected `send ... to` or `recv ... from`"),
        ("send 8b to 1", "send 8b to 0", "t.goal:5: expected another rank, got send to 0, its own"),
        ("send 8b to 1", "send 8b to -1", "t.goal:5: to: expected a number from 0 to 1, got -1"),
        ("from 0 tag 5", "from 0 tag -1", "t.goal:14: tag: expected a number from 0 to"),
        ("calc 100", "calc -1", "t.goal:4: calc: expected a number from 0 to"),
        ("l4: calc", "l1: calc", "t.goal:10: expected a label of its own, got l1 again"),
        ("l4 irequires l2", "l1 requires l2", "t.goal:12: expected an order in which the nodes"),
        ("from -1\n}", "from -1\n", "expected `}` at the end of a rank, got the end of the file"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old, new, message):
    """And what was expected."""
    assert old in TEXT
    with pytest.raises(ConfigError) as caught:
        parse_goal(TEXT.replace(old, new), "t.goal")
    assert message in str(caught.value)


@settings(max_examples=200, deadline=None)
@given(broken(TEXT.encode()))
def test_a_broken_schedule_is_read_or_refused(data):
    """Never anything else."""
    read_or_refused(parse_goal, data.decode("utf-8", "replace"), "t.goal")
