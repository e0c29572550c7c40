"""A collective in flight: ends that are projected, and move when its speed changes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simrank.distributed.flight import Flight, Landing, landings
from simrank.engine import Engine


class Ends:
    """Notes who ends when."""

    def __init__(self, engine):
        self.engine = engine
        self.seen = []

    def end(self, group_ranks):
        self.seen.append((self.engine.now_ps, tuple(group_ranks)))


def fly(ahead, changes=(), begin_ps=0):
    """Return the ends of a flight whose rate changes at some times."""
    engine = Engine()
    ends = Ends(engine)
    flight = Flight(engine, ends, begin_ps, ahead)
    for time_ps, rate in changes:
        engine.call_at(time_ps, lambda rate=rate: flight.set_rate(rate))
    engine.run()
    return ends.seen


def test_ranks_that_end_together_are_one_landing_and_the_first_come_first():
    """Equal ends in group order."""
    found = landings(np.array([30, 10, 30, 20]), np.array([0, 1, 2, 3]))
    assert found == (Landing(10, (1,)), Landing(20, (3,)), Landing(30, (0, 2)))


def test_at_nominal_speed_ends_are_where_they_were_computed():
    """Counted from the beginning, which may lie before now."""
    assert fly((Landing(10, (1,)), Landing(30, (0, 2)))) == [(10, (1,)), (30, (0, 2))]


def test_half_the_speed_doubles_what_is_left():
    """What has been done stays done; ends that lie behind do not move."""
    ahead = (Landing(10, (1,)), Landing(30, (0,)))
    assert fly(ahead, [(20, 0.5)]) == [(10, (1,)), (40, (0,))]
    assert fly(ahead, [(4, 0.5)]) == [(16, (1,)), (56, (0,))]
    assert fly(ahead, [(20, 0.5), (24, 1.0)]) == [(10, (1,)), (32, (0,))]


@given(
    st.lists(st.integers(1, 1000), min_size=1, max_size=5, unique=True),
    st.lists(st.tuples(st.integers(0, 1500), st.sampled_from([0.25, 0.5, 1.0])), max_size=5),
)
def test_ends_are_the_times_at_which_the_work_is_done(after, changes):
    """The rate, summed over time up to an end, is the nominal time of that end."""
    ahead = tuple(Landing(ps, (number,)) for number, ps in enumerate(sorted(after)))
    changes = sorted(changes, key=lambda change: change[0])
    seen = fly(ahead, changes)
    assert [ranks for _, ranks in seen] == [landing.group_ranks for landing in ahead]
    for (end_ps, _), landing in zip(seen, ahead, strict=True):
        done, since_ps, rate = 0.0, 0, 1.0
        for time_ps, next_rate in changes:
            if time_ps > end_ps:
                break
            done, since_ps, rate = done + (time_ps - since_ps) * rate, time_ps, next_rate
        done += (end_ps - since_ps) * rate
        assert landing.after_ps <= done < landing.after_ps + 1.001
