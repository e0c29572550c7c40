"""What programs have loaded: rows of ranges, exact where a load leaves bytes out."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simrank.kernels.reads import Reads

ITEM = 4
LOADS = st.lists(
    st.tuples(st.integers(1, 5), st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True)),
    max_size=90,
)


@given(loads=LOADS, stored=st.lists(st.integers(0, 30), min_size=1, max_size=4, unique=True))
def test_a_store_meets_exactly_the_loads_of_its_elements(loads, stored):
    """Against a plain list of who has loaded what."""
    reads = Reads()
    for epoch, (reader, elements) in enumerate(loads):
        reads.add(np.array(elements) * ITEM, ITEM, reader, epoch, 0)
    expected = {reader for reader, elements in loads if set(elements) & set(stored)}
    found = {reader for reader, _, _ in reads.touched_by(np.array(stored) * ITEM, ITEM)}
    assert found == expected


@given(loads=LOADS, gone=st.sets(st.integers(1, 5)))
def test_forgotten_programs_are_the_only_ones_that_go(loads, gone):
    """What is left is found as before, and new loads are found too."""
    reads = Reads()
    for epoch, (reader, elements) in enumerate(loads):
        reads.add(np.array(elements) * ITEM, ITEM, reader, epoch, 0)
    everything = np.arange(31) * ITEM
    before = sorted(reads.touched_by(everything, ITEM))
    reads.forget(gone.__contains__)
    assert sorted(reads.touched_by(everything, ITEM)) == [r for r in before if r[0] not in gone]
    reads.add(everything, ITEM, 9, 99, 1)
    assert (9, 99, 1) in reads.touched_by(everything[:1], ITEM)
