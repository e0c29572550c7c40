"""The table of algorithms: look-up, options, registration."""

import pytest

from simrank.collectives import Problem, Schedule, algorithms_for, build, register_algorithm
from simrank.collectives import algorithms as module
from simrank.collectives.algorithms import Algorithm, auto_algorithms
from simrank.collectives.schedule import ChunkTable


def test_equal_problems_build_one_schedule():
    """Players keep what they know about a schedule under its identity."""
    first = build(Problem("all_reduce", 4, 9), "ring")
    assert build(Problem("all_reduce", 4, 9), "ring", options={}) is first
    assert build(Problem("all_reduce", 4, 9), "ring", options={"num_channels": 2}) is not first


def test_names_depend_on_the_number_of_ranks():
    """Recursive algorithms of all_gather and reduce_scatter need powers of two."""
    assert algorithms_for("all_gather", 8) == ["ring", "direct", "halving_doubling"]
    assert algorithms_for("all_gather", 6) == ["ring", "direct"]
    assert "halving_doubling" in algorithms_for("all_reduce", 6)
    assert auto_algorithms("broadcast", 10_000) == ["binomial"]


def test_what_needs_a_library_is_chosen_by_its_rules_only():
    """Not every cluster has a switch that reduces: `auto` without NCCL does not try it."""
    own, nccls = auto_algorithms("all_reduce", 8), auto_algorithms("all_reduce", 8, library=True)
    assert {"tree", "nvls", "nvls_tree", "hierarchical"} == set(nccls) - set(own)


@pytest.mark.parametrize(
    ("collective", "algorithm", "options", "message"),
    [
        ("all_reduce", "rings", {}, "choices: ring, one_shot, two_shot, halving_doubling, tree"),
        ("all_reduce", "ring", {"chunk": 1}, "no option 'chunk'; choices: num_channels, num_loops"),
        ("all_reduce", "ring", {"num_loops": 0}, "num_loops must be an integer of at least 1"),
        ("all_reduce", "ring", {"num_loops": True}, "got True"),
        ("all_reduce", "one_shot", {"chunk": 1}, "choices: none"),
        ("broadcast", "chain", {"num_chunks": -1}, "at least 0"),
        ("all_gather", "halving_doubling", {}, "runs on powers of two, not on 6"),
    ],
)
def test_unknown_names_and_options_are_refused(collective, algorithm, options, message):
    """The message names the choices."""
    with pytest.raises(ValueError, match=message):
        build(Problem(collective, 6, 5), algorithm, options=options)


def test_a_new_algorithm_is_one_line(monkeypatch):
    """Registered algorithms are found like built-in ones; a name is taken once."""
    monkeypatch.setattr(module, "_TABLE", dict(module._TABLE))

    def nothing(problem, options):
        assert not options
        table = ChunkTable.split(problem.count, 1)
        return Schedule(problem.collective, "nothing", 1, lambda: iter(()), 0, table, table)

    line = Algorithm("all_reduce", "nothing", nothing, {}, lambda world_size: world_size == 1)
    register_algorithm(line)
    assert algorithms_for("all_reduce", 1)[-1] == "nothing"
    assert build(Problem("all_reduce", 1, 12345), "nothing").num_rounds == 0
    with pytest.raises(ValueError, match="already has an algorithm 'nothing'"):
        register_algorithm(line)
    with pytest.raises(ValueError, match="unknown collective 'sum'"):
        register_algorithm(Algorithm("sum", "nothing", nothing, {}))
