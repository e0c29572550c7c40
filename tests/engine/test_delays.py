"""Delays: bounded, decided by seed and point alone, written and read as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simrank.engine import Engine
from simrank.engine.delays import KINDS, DelayPoint, Delays


def nowhere():
    """Stand for a call site."""


@given(st.integers(1, 10**9), st.integers(1, 10**12), st.integers(-1, 1000))
def test_no_delay_is_longer_than_the_bound(seed, max_ps, rank):
    """Whatever the seed and the point."""
    delays = Delays(seed, max_ps=max_ps)
    drawn = [delays.draw(kind, rank, nowhere) for kind in KINDS for _ in range(20)]
    assert all(0 <= delay <= max_ps for delay in drawn)


@given(st.integers(1, 1000))
def test_a_delay_depends_on_its_own_point_alone(seed):
    """Draws of other ranks and kinds in between change nothing."""
    alone, beside = Delays(seed), Delays(seed)
    first = [alone.draw("h", 3, nowhere) for _ in range(30)]
    second = []
    for _ in range(30):
        beside.draw("w", 3, nowhere)
        beside.draw("h", 2, nowhere)
        second.append(beside.draw("h", 3, nowhere))
    assert first == second


@given(
    st.integers(1, 10**6),
    st.lists(st.tuples(st.sampled_from("hwstc"), st.integers(-1, 99), st.integers(0, 999))),
)
def test_delays_are_read_as_they_are_written(seed, points):
    """Text and back."""
    delays = Delays(seed, only=[DelayPoint(*point) for point in points])
    again = Delays.parse(str(delays))
    assert (again.seed, again.only) == (delays.seed, delays.only)


def test_a_seed_alone_delays_whatever_it_picks():
    """And no points at all delay nothing."""
    every, none = Delays.parse("4"), Delays.parse("4:")
    assert every.only is None
    assert none.only == frozenset()
    assert not any(none.draw("h", 0, nowhere) for _ in range(100))


@pytest.mark.parametrize("text", ["", "x", "0", "-3", "4:q1.2", "4:h", "4:h1", "4:h1.x", "4:,h"])
def test_other_text_is_refused_with_what_was_expected(text):
    """A replay that is mistyped never runs as something else."""
    with pytest.raises(ValueError, match="expected a seed from 1"):
        Delays.parse(text)


def test_only_the_listed_points_are_late():
    """The others keep their numbers."""
    every = Delays(6)
    lengths = [every.draw("h", 0, nowhere) for _ in range(400)]
    chosen = next(number for number, length in enumerate(lengths) if length)
    listed = Delays(6, only=[DelayPoint("h", 0, chosen)])
    assert [listed.draw("h", 0, nowhere) for _ in range(400)] == [
        length if number == chosen else 0 for number, length in enumerate(lengths)
    ]


def test_seeds_differ_in_how_many_and_how_long():
    """Some delay much and some a little, some all ranks and some a few."""
    shares, lengths, whole = set(), set(), set()
    for seed in range(1, 60):
        delays = Delays(seed)
        drawn = [delays.draw("h", rank, nowhere) for rank in range(16) for _ in range(64)]
        late = [length for length in drawn if length]
        shares.add(len(late) * 8 // len(drawn))
        lengths.add(len(str(max(late, default=0))))
        whole.add(len({delay.point.rank for delay in delays.applied}))
    assert len(shares) >= 3
    assert len(lengths) >= 4
    assert 16 in whole
    assert min(whole) < 4


def test_a_bound_below_one_picosecond_and_a_seed_below_one_are_refused():
    """Seed 0 is the order without delays."""
    with pytest.raises(ValueError, match="seed 0"):
        Delays(0)
    with pytest.raises(ValueError, match="at most 0 ps"):
        Delays(1, max_ps=0)


def test_a_sleep_is_never_shortened():
    """A delayed task comes back late, in the order of its own program."""
    engine = Engine(delays=Delays(6))
    seen = []

    def body():
        for _ in range(20):
            before = engine.now_ps
            engine.sleep(1000)
            seen.append(engine.now_ps - before)

    engine.start_task(body, "sleeper", 0)
    engine.run()
    assert all(passed >= 1000 for passed in seen)
    assert max(seen) > 1000
