"""What a flag carried when it first might have ended a wait."""

import simrank
from simrank.kernels.races import values as values_of
from simrank.kernels.races.values import FlagValues, Look, Wait


def flags(*values):
    """Return values of a flag that went from 0 to each; each carries one program more."""
    with simrank.Context() as ctx:
        storage, known, before = ctx.zeros(1, dtype=ctx.int32).storage, FlagValues(), 0
    for program, value in enumerate(values, 1):
        known.note(storage, 0, (before, value), {0: dict.fromkeys(range(1, program + 1), 1)})
        before = value
    return known, Look(known.of(storage, 0), {}, (0,), False), storage


def sure(comparison, bound, *values):
    _, look, _ = flags(*values)
    clock = values_of.sure(look, Wait(comparison, bound))
    return clock if clock is None else set(clock)


def test_a_count_is_sure_of_those_that_it_waits_for():
    """Who came later has come by luck."""
    assert sure("Lt", 2, 1, 2, 3) == {1, 2}
    assert sure("LtE", 2, 1, 2, 3) == {1, 2, 3}
    assert sure("Lt", 0, 1, 2, 3) == set()


def test_a_flag_that_was_set_back_begins_anew():
    """What ended a wait before it is past."""
    assert sure("NotEq", 1, 1, 0, 1, 1) == {1, 2, 3}
    assert sure("Gt", 0, 1, 0, 0) == {1, 2}
    assert sure("GtE", 1, 1, 0) == {1, 2}
    assert sure("Eq", 0, 0, 1) == {1, 2}


def test_what_is_not_known_says_nothing():
    """A value that ends nothing, and a flag that nobody has written."""
    assert sure("Lt", 5, 1, 2) is None
    assert sure("Lt", 1) is None


def test_a_write_that_was_not_seen_makes_what_was_before_unsure():
    """Nothing is left out then of what the flag carries."""
    known, look, storage = flags(1, 2)
    known.note(storage, 0, (7, 8), {0: {9: 1}})
    look = look._replace(values=known.of(storage, 0))
    assert values_of.sure(look, Wait("Lt", 1)) == {9: 1}
    known.forget(storage, 0, 4)
    assert known.of(storage, 0) == ()
