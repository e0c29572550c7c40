"""Pairwise all_to_all: one peer per round, nothing where nothing is sent."""

from simrank.collectives import Problem, build


def test_each_round_is_a_permutation():
    """Round k goes k positions on; round 0 stays at home."""
    for shift, steps in enumerate(build(Problem("all_to_all", 5, 2), "pairwise").rounds()):
        assert ((steps.dst - steps.src) % 5 == shift).all()


def test_empty_messages_are_not_sent():
    """Rank 1 sends nothing to rank 0, so rank 0 does not wait for it."""
    schedule = build(Problem("all_to_all", 2, 0, splits=(1, 2, 0, 3)), "pairwise")
    _, exchange = schedule.rounds()
    assert (exchange.src.tolist(), exchange.dst.tolist()) == ([0], [1])
    assert not schedule.synchronizing


def test_direct_sends_to_all_peers_in_one_round():
    """A local round, then every pair once; empty parts are left out."""
    local, exchange = build(Problem("all_to_all", 4, 2), "direct").rounds()
    assert local.src.tolist() == local.dst.tolist() == [0, 1, 2, 3]
    pairs = sorted(zip(exchange.src.tolist(), exchange.dst.tolist(), strict=True))
    assert pairs == [(a, b) for a in range(4) for b in range(4) if a != b]
    uneven = build(Problem("all_to_all", 2, 0, splits=(1, 2, 0, 3)), "direct")
    assert [steps.num_steps for steps in uneven.rounds()] == [2, 1]
