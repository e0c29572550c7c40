"""A problem refuses what no collective can mean."""

import numpy as np
import pytest

from simrank.collectives import Problem
from simrank.collectives.problem import node_size_of, runs_of


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"collective": "all_sum"}, "unknown collective 'all_sum'; choices: all_reduce"),
        ({"world_size": 0}, "at least 1"),
        ({"count": -1}, "got 4, 4 and -1"),
        ({"root": 4}, "root 4 is not one of 4 ranks"),
        ({"splits": (1, 2, 3, 4)}, "all_reduce takes no splits"),
        ({"node_size": 3}, "4 ranks cannot stand on nodes of 3 each"),
        ({"node_size": -4}, "nodes of -4"),
        ({"collective": "all_gather", "splits": (1, 2)}, "needs 4 splits"),
        ({"collective": "all_to_all", "splits": (-1,) * 16}, "minimum -1"),
    ],
)
def test_bad_problem_is_refused(arguments, message):
    """The message says what was expected and what came."""
    fields = {"collective": "all_reduce", "world_size": 4, "count": 8} | arguments
    with pytest.raises(ValueError, match=message):
        Problem(**fields)


def test_equal_problems_are_one_key():
    """Problems are frozen values, so they can be looked up."""
    assert {Problem("reduce", 2, 3), Problem("reduce", 2, 3)} == {Problem("reduce", 2, 3)}


@pytest.mark.parametrize(
    ("nodes", "size"),
    [
        ([0], 1),
        ([5, 5, 5], 3),
        ([0, 0, 1, 1, 3, 3], 2),
        ([2, 0, 1], 1),
        ([0, 0, 1], 0),
        ([0, 1, 1, 2], 0),
        ([0, 0, 1, 1, 0, 0], 0),
        ([0, 1, 0, 1], 0),
    ],
)
def test_node_size_needs_equal_runs_of_different_nodes(nodes, size):
    """Whatever the order of the nodes; a node that comes back is no run."""
    assert node_size_of(np.array(nodes)) == size


def test_nodes_are_counted_where_they_are_known():
    """Without a node size, the ranks might all be on one."""
    assert Problem("all_reduce", 8, 1).num_nodes == 1
    assert Problem("all_reduce", 8, 1, node_size=2).num_nodes == 4


def test_runs_are_told_in_the_order_of_ranks():
    """A node that comes back is another run."""
    assert runs_of(np.array([0, 0, 1, 0, 2, 2, 2])) == [2, 1, 1, 3]
    assert runs_of(np.array([5])) == [1]
