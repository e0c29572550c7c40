"""Keys that order equal times."""

from hypothesis import given
from hypothesis import strategies as st

from simrank.engine import Wakeup
from simrank.engine.queue import tie_keys


def test_seed_0_keeps_queueing_order():
    """Keys grow by one."""
    draw = tie_keys(0)

    assert [draw() for _ in range(5)] == [0, 1, 2, 3, 4]


@given(seed=st.integers(1, 2**63))
def test_other_seeds_draw_unique_keys_that_they_decide(seed):
    """The same seed draws the same; no two keys are equal, so entries are never compared."""
    draw, again = tie_keys(seed), tie_keys(seed)
    keys = [draw() for _ in range(100)]

    assert keys == [again() for _ in range(100)]
    assert len(set(keys)) == 100
    assert keys != sorted(keys)


def test_keys_stay_unique_beyond_one_draw_of_the_generator():
    """Equal random numbers are told apart by their running number."""
    draw = tie_keys(5)
    keys = [draw() for _ in range(10_000)]

    assert len(set(keys)) == len(keys)


def test_a_new_wakeup_is_queued_and_strong():
    """Unless it is said to be weak."""
    wakeup = Wakeup(print)

    assert (wakeup.queued, wakeup.cancelled, wakeup.weak) == (True, False, False)
    assert Wakeup(print, weak=True).weak
