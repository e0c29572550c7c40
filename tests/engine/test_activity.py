"""Activities: work is conserved whatever the rates do, ends are exact and in order (E11)."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simrank.engine import Activity, ActivityPool, Claim, Engine, Resource
from simrank.engine.activity import rate_alone
from simrank.errors import DeadlockError
from simrank.hardware.sharing import solve_rates


@pytest.fixture(name="engine")
def fixture_engine():
    """Return a new engine."""
    return Engine()


@pytest.fixture(name="pool")
def fixture_pool(engine):
    """Return a pool of activities that share max-min fairly."""
    return ActivityPool(engine, solve_rates)


def start_at(engine, pool, time_ps, activity):
    """Put an activity in flight at a simulated time."""
    engine.call_at(time_ps, lambda: pool.start(activity))


@given(
    work=st.integers(1, 10**13),
    changes=st.lists(st.tuples(st.integers(1, 10**12), st.integers(0, 20)), max_size=8),
)
def test_work_is_the_integral_of_the_rate(work, changes):
    """One activity under any changes of capacity ends when exact arithmetic says, to 1 ps."""
    engine = Engine()
    pool = ActivityPool(engine, solve_rates)
    link, ends = Resource("link", 1.0), []
    pool.start(Activity(float(work), [(link, 1.0)], lambda: ends.append(engine.now_ps)))
    left, now, rate, expected = Fraction(work), 0, 1, None
    for delay, capacity in [*changes, (0, 1)]:
        if expected is None and rate and left <= rate * delay:
            expected = now + left / rate
        left, now, rate = left - rate * delay, now + delay, capacity
        engine.call_at(now, lambda c=capacity: pool.change(link, capacity=float(c)))
    expected = now + left / rate if expected is None else expected
    engine.run()

    assert len(ends) == 1
    assert abs(ends[0] - expected) <= 1 + expected * Fraction(1, 10**12)


@given(
    arrivals=st.lists(st.tuples(st.integers(0, 100), st.integers(1, 1000)), min_size=1, max_size=8)
)
def test_activities_that_share_one_resource_keep_it_busy(arrivals):
    """Fair sharing serves the work of all: the busy time of the resource is that of a queue."""
    engine = Engine()
    pool = ActivityPool(engine, solve_rates)
    link, ends = Resource("link", 1.0), []
    for time_ps, work in arrivals:
        activity = Activity(float(work), [(link, 1.0)], lambda: ends.append(engine.now_ps))
        start_at(engine, pool, time_ps, activity)
    engine.run()
    free_ps = 0
    for time_ps, work in sorted(arrivals):
        free_ps = max(free_ps, time_ps) + work

    assert len(ends) == len(arrivals)
    assert ends == sorted(ends)
    assert free_ps <= ends[-1] <= free_ps + len(arrivals)
    assert (link.users, len(pool)) == ({}, 0)


@given(works=st.lists(st.integers(1, 1000), min_size=1, max_size=8))
def test_equal_demands_end_in_order_of_their_work(works):
    """Of activities that start together the smaller never ends after the larger."""
    engine = Engine()
    pool = ActivityPool(engine, solve_rates)
    link, ends = Resource("link", 1.0), []
    for work in works:
        pool.start(Activity(float(work), [(link, 1.0)], lambda w=work: ends.append(w)))
    engine.run()

    assert ends == sorted(works)


def test_changes_of_one_time_are_solved_once(engine):
    """However many start, end and change together."""
    calls = []

    def solve(activities):
        calls.append(len(activities))
        return solve_rates(activities)

    pool = ActivityPool(engine, solve)
    link = Resource("link", 2.0)
    for _ in range(5):
        pool.start(Activity(100.0, [(link, 1.0)], lambda: None))
    pool.change(link, capacity=5.0)
    pool.change(link, capacity=1.0)
    engine.run()

    assert calls == [5]
    assert engine.now_ps == 500


def test_an_activity_alone_needs_no_solver(engine):
    """Its rate is the least of its own and what its resources give."""

    def solve(_activities):
        raise AssertionError("nobody shares")

    pool = ActivityPool(engine, solve)
    activity = Activity(100.0, [(Resource("r", 8.0), 4.0)], lambda: None, max_rate=10.0)
    pool.start(activity)
    engine.run()

    assert rate_alone(activity) == 2.0
    assert engine.now_ps == 50


def test_an_activity_without_demands_runs_at_its_own_rate(engine, pool):
    """And one without work, or without any limit, ends at once."""
    ends = []
    pool.start(Activity(10.0, [], lambda: ends.append(engine.now_ps), max_rate=2.0))
    pool.start(Activity(0.0, [], lambda: ends.append(engine.now_ps)))
    pool.start(Activity(7.0, [], lambda: ends.append(engine.now_ps)))
    engine.run()

    assert ends == [0, 0, 5]


def test_a_dropped_activity_gives_its_share_away(engine, pool):
    """It never ends; the others speed up from there on. A second drop is nothing."""
    link, ends = Resource("link", 1.0), []
    dropped = Activity(100.0, [(link, 1.0)], lambda: ends.append("dropped"))
    pool.start(dropped)
    pool.start(Activity(100.0, [(link, 1.0)], lambda: ends.append(engine.now_ps)))
    engine.call_at(50, lambda: (pool.drop(dropped), pool.drop(dropped)))
    engine.run()

    assert ends == [125]
    assert engine.now_ps == 125


def test_what_is_held_is_not_shared(engine, pool):
    """A collective that spins on SMs leaves the rest to kernels, until it gives them back."""
    sms, ends = Resource("SMs", 4.0), []
    pool.start(Activity(100.0, [(sms, 4.0)], lambda: ends.append(engine.now_ps), max_rate=1.0))
    engine.call_at(20, lambda: pool.change(sms, held=2))
    engine.call_at(60, lambda: pool.change(sms, held=-2))
    engine.run()

    assert ends == [120]


def test_zero_capacity_stalls_until_it_is_given_back(engine, pool):
    """The work done before stays done."""
    link, ends = Resource("link", 1.0), []
    pool.start(Activity(100.0, [(link, 1.0)], lambda: ends.append(engine.now_ps)))
    engine.call_at(30, lambda: pool.change(link, capacity=0.0))
    engine.call_at(1000, lambda: pool.change(link, capacity=1.0))
    engine.run()

    assert ends == [1070]
    assert not engine.pending


def test_work_that_is_stalled_for_ever_is_a_deadlock_that_names_the_resource(engine, pool):
    """Also when no task waits for it."""
    link = Resource("link gpu0-switch0", 1.0)
    stalled = Activity(100.0, [(link, 1.0)], lambda: None)
    pool.start(stalled)
    engine.call_at(30, lambda: pool.change(link, capacity=0.0))

    with pytest.raises(DeadlockError) as caught:
        engine.run()

    assert str(caught.value).splitlines() == [
        "deadlock (proved) at t=0.000 us: nothing can complete what is in flight",
        "  in flight: work stalled, nothing left of link gpu0-switch0",
    ]
    pool.drop(stalled)
    engine.run()


def test_long_work_under_many_changes_does_not_slip(engine, pool):
    """A second of work that ends on a picosecond still does after a hundred settlements."""
    link, ends = Resource("link", 1.0), []
    pool.start(Activity(1e12, [(link, 1.0)], lambda: ends.append(engine.now_ps)))
    for number in range(1, 101):
        capacity = 1.0 if number % 2 == 0 else 0.5
        engine.call_at(number * 10**9, lambda c=capacity: pool.change(link, capacity=c))
    engine.run()

    assert ends == [10**12 + 50 * 10**9 // 2]


STARTS = st.tuples(st.integers(0, 60), st.integers(0, 4), st.integers(1, 40), st.integers(0, 30))
CHANGES = st.tuples(st.integers(0, 90), st.integers(0, 5), st.integers(0, 3))


@given(
    groups=st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=5, max_size=5),
    starts=st.lists(STARTS, min_size=1, max_size=12),
    changes=st.lists(CHANGES, max_size=4),
)
def test_claims_change_no_end(groups, starts, changes):
    """Whether activities of a group claim their links or not: the same ends, to the picosecond."""

    def ends_of(*, claimed):
        engine = Engine()
        pool, links = ActivityPool(engine, solve_rates), [Resource(f"{i}", 1.0) for i in range(6)]
        demands = [tuple((links[i], 1.0 / (i + 1)) for i in sorted(group)) for group in groups]
        claims, ends = [Claim(each) for each in demands], []
        for number, (time_ps, group, work, dropped_ps) in enumerate(starts):
            done = lambda n=number: ends.append((n, engine.now_ps))  # noqa: E731 - one of many
            activity = Activity(float(work), demands[group], done, max_rate=1.0)
            activity.claim = claims[group] if claimed and number % 3 else None
            start_at(engine, pool, time_ps, activity)
            if dropped_ps > 25:
                engine.call_at(time_ps + dropped_ps, lambda a=activity: pool.drop(a))
        for time_ps, link, capacity in changes:
            change = lambda i=link, c=capacity: pool.change(links[i], capacity=float(c))  # noqa: E731
            engine.call_at(time_ps, change)
        for link in links:  # In the end all goes on.
            engine.call_at(200, lambda one=link: pool.change(one, capacity=1.0))
        engine.run()
        assert not len(pool)
        assert not any(link.users for link in links)
        return ends

    assert ends_of(claimed=True) == ends_of(claimed=False)


def test_a_claim_spares_the_look_at_its_resources_until_somebody_else_asks(engine, pool):
    """A newcomer on one link makes both share it, and the claim is taken again later."""
    links = [Resource(f"link {i}", 1.0) for i in range(3)]
    claim, ends = Claim(tuple((link, 1.0) for link in links)), []

    def start(demands, own):
        activity = Activity(100.0, demands, lambda: ends.append(engine.now_ps), max_rate=1.0)
        activity.claim = own
        pool.start(activity)

    start(claim.demands, claim)
    assert claim.is_whole
    assert not any(link.users for link in links)
    engine.call_at(50, lambda: start([(links[1], 1.0)], None))
    engine.run()
    assert ends == [150, 200]
    assert not claim.is_whole
    start(claim.demands, claim)
    assert claim.is_whole
    engine.run()
    assert ends == [150, 200, 300]
