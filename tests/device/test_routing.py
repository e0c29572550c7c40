"""Experts that tokens choose by a law."""

import numpy as np
import pytest

from simrank.device.routing import Routing


@pytest.mark.parametrize(("tokens", "experts", "chosen"), [(4096, 8, 2), (10, 64, 6), (1, 4, 4)])
@pytest.mark.parametrize("text", ["balanced", "zipf:1.2", "zipf:4", "3"])
def test_tokens_choose_each_expert_once(text, tokens, experts, chosen):
    """As many as asked for."""
    found = Routing.parse(text).experts(tokens, experts, chosen)
    assert found.shape == (tokens, chosen)
    assert found.min() >= 0
    assert found.max() < experts
    assert all(len(set(row)) == chosen for row in found.tolist())


def test_an_expert_has_at_most_all_tokens():
    """What is above goes to the others, by their shares."""
    loads = np.bincount(Routing.parse("zipf:3").experts(1000, 4, 2).ravel())
    rest = np.array([2.0, 3.0, 4.0]) ** -3
    assert loads[0] == 1000
    assert np.abs(loads[1:] - 1000 * rest / rest.sum()).max() <= 1


def test_a_seed_draws_by_rank_and_call():
    """The same for the same."""
    routing = Routing.parse("5")
    first, again, other = (routing.experts(64, 8, 2, key) for key in ((0, 1), (0, 1), (1, 1)))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize("text", ["even", "zipf", "zipf:-1", "zipf:1.2.3", "", "1.5"])
def test_an_unknown_routing_is_refused(text):
    """With those that there are."""
    with pytest.raises(ValueError, match="expected balanced, zipf:S with S"):
        Routing.parse(text)
