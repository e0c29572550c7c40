"""Vector clocks."""

from hypothesis import given
from hypothesis import strategies as st

from simrank.device.clocks import join

CLOCKS = st.dictionaries(st.integers(0, 5), st.integers(1, 9))


@given(one=CLOCKS, other=CLOCKS)
def test_whoever_joins_is_behind_all_that_both_were_behind(one, other):
    """The later step counts, of each; the other clock stays as it is."""
    joined, kept = dict(one), dict(other)
    join(joined, other)
    assert other == kept
    assert joined == {n: max(one.get(n, 0), other.get(n, 0)) for n in {*one, *other}}
