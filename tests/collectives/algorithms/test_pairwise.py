"""Pairwise all_to_all: one peer per round, nothing where nothing is sent."""

from simrank.collectives import Problem, build


def test_each_round_is_a_permutation():
    """Round k goes k places on; round 0 stays at home."""
    for shift, steps in enumerate(build(Problem("all_to_all", 5, 2), "pairwise").rounds()):
        assert ((steps.dst - steps.src) % 5 == shift).all()


def test_empty_messages_are_not_sent():
    """Rank 1 sends nothing to rank 0, so rank 0 does not wait for it."""
    schedule = build(Problem("all_to_all", 2, 0, splits=(1, 2, 0, 3)), "pairwise")
    _, exchange = schedule.rounds()
    assert (exchange.src.tolist(), exchange.dst.tolist()) == ([0], [1])
    assert not schedule.synchronizing
