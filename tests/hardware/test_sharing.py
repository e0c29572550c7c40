"""Max-min fair sharing: its defining properties on random problems."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simrank.hardware import max_min_rates

numbers = st.floats(0.01, 100.0)


@st.composite
def problems(draw):
    """Return demands, capacities, caps and weights of one sharing problem."""
    num_resources = draw(st.integers(1, 5))
    some = st.dictionaries(st.integers(0, num_resources - 1), numbers, max_size=num_resources)
    demands = [list(draw(some).items()) for _ in range(draw(st.integers(1, 8)))]
    capacities = draw(st.lists(numbers, min_size=num_resources, max_size=num_resources))
    per_activity = {"min_size": len(demands), "max_size": len(demands)}
    caps = draw(st.lists(numbers | st.just(np.inf), **per_activity))
    weights = draw(st.lists(numbers, **per_activity))
    return demands, np.array(capacities), np.array(caps), np.array(weights)


def loads(demands, rates, num_resources):
    """Return how much of each resource is in use."""
    used = np.zeros(num_resources)
    for pairs, rate in zip(demands, rates, strict=True):
        for resource, demand in pairs:
            used[resource] += demand * rate
    return used


@given(problem=problems())
def test_no_resource_and_no_cap_is_exceeded(problem):
    """Up to rounding."""
    demands, capacities, caps, weights = problem
    rates = max_min_rates(demands, capacities, caps, weights)

    assert (rates <= caps).all()
    finite = np.where(np.isinf(rates), 0.0, rates)
    assert (loads(demands, finite, len(capacities)) <= capacities * (1 + 1e-9)).all()


@given(problem=problems())
def test_every_activity_has_a_bottleneck(problem):
    """At its cap, or on a full resource where none of greater share gets less: max-min."""
    demands, capacities, caps, weights = problem
    rates = max_min_rates(demands, capacities, caps, weights)
    finite = np.where(np.isinf(rates), 0.0, rates)
    is_full = loads(demands, finite, len(capacities)) >= capacities * (1 - 1e-9)
    share = rates / weights
    for activity, pairs in enumerate(demands):
        if rates[activity] == caps[activity]:
            continue
        users = [
            [other for other, theirs in enumerate(demands) if resource in dict(theirs)]
            for resource, _ in pairs
            if is_full[resource]
        ]
        assert any(share[activity] >= share[others].max() * (1 - 1e-9) for others in users)


@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
def test_the_order_of_activities_does_not_matter(problem, seed):
    """A permuted problem has the permuted rates."""
    demands, capacities, caps, weights = problem
    order = np.random.default_rng(seed).permutation(len(demands))
    rates = max_min_rates(demands, capacities, caps, weights)
    permuted = max_min_rates(
        [demands[index] for index in order], capacities, caps[order], weights[order]
    )

    np.testing.assert_allclose(permuted, rates[order], rtol=1e-9)


@given(num_flows=st.integers(1, 50), capacity=numbers)
def test_equal_flows_get_exactly_equal_rates(num_flows, capacity):
    """Bit for bit, so that arrivals that should tie do tie."""
    rates = max_min_rates([[(0, 1.0)]] * num_flows, [capacity])

    assert len(set(rates.tolist())) == 1
    assert rates.sum() == pytest.approx(capacity)


def test_a_flow_over_two_links_gets_its_share_of_the_tighter_one():
    """The textbook case: what one flow cannot use goes to the other."""
    rates = max_min_rates([[(0, 1.0)], [(0, 1.0), (1, 1.0)], [(1, 1.0)]], [10.0, 4.0])

    assert rates.tolist() == [8.0, 2.0, 2.0]


def test_weights_and_caps_shape_the_shares():
    """Weight 3 gets three times weight 1; what a cap leaves goes to the others."""
    flows = [[(0, 1.0)], [(0, 1.0)]]

    assert max_min_rates(flows, [8.0], weights=[1.0, 3.0]).tolist() == [2.0, 6.0]
    assert max_min_rates(flows, [8.0], caps=[1.0, np.inf]).tolist() == [1.0, 7.0]


def test_what_nothing_limits_is_infinite():
    """No resource, or one without limit."""
    assert max_min_rates([[], [(0, 1.0)]], [np.inf]).tolist() == [np.inf, np.inf]
    assert max_min_rates([], [1.0]).tolist() == []


def test_a_resource_without_capacity_stops_its_users():
    """A failed link has rate zero, and the others are not disturbed."""
    assert max_min_rates([[(0, 1.0)], [(1, 1.0)]], [0.0, 5.0]).tolist() == [0.0, 5.0]


@pytest.mark.parametrize(
    ("demands", "keys", "message"),
    [
        ([[(1, 1.0)]], {}, "resources are 0 to 0"),
        ([[(0, 0.0)]], {}, "demand"),
        ([[(0, 1.0)]], {"caps": [-1.0]}, "negative"),
        ([[(0, 1.0)]], {"caps": [1.0, 1.0]}, "caps must hold 1"),
        ([[(0, 1.0)]], {"weights": [0.0]}, "weight"),
    ],
)
def test_numbers_out_of_range_are_refused(demands, keys, message):
    """With the name of what is wrong."""
    with pytest.raises(ValueError, match=message):
        max_min_rates(demands, [1.0], **keys)
