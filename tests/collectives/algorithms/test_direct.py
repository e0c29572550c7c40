"""Direct algorithms: few rounds, many steps, one rounding."""

import pytest

from simrank.collectives import Problem, algorithms_for, build


@pytest.mark.parametrize(
    ("collective", "algorithm", "rounds"),
    [
        ("all_reduce", "one_shot", 1),
        ("all_reduce", "two_shot", 2),
        ("all_gather", "direct", 1),
        ("reduce_scatter", "direct", 1),
    ],
)
def test_rounds_do_not_grow_with_ranks(collective, algorithm, rounds):
    """Every rank reads n - 1 others in each."""
    for world_size in (2, 7):
        schedule = build(Problem(collective, world_size, 14), algorithm)
        assert schedule.num_rounds == rounds
        for steps in schedule.rounds():
            others = int((steps.src != steps.dst).sum())
            assert others in (0, world_size * (world_size - 1))
        assert schedule.wide


def test_too_many_ranks_are_not_admitted():
    """The steps of a round grow with the square of the ranks."""
    assert "one_shot" in algorithms_for("all_reduce", 1024)
    assert "one_shot" not in algorithms_for("all_reduce", 1025)
    with pytest.raises(ValueError, match="runs on at most 1024 ranks, not on 2000"):
        build(Problem("all_reduce", 2000, 1), "one_shot")
