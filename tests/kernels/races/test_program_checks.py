"""What programs have loaded: rows of ranges, exact where a load leaves bytes out."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simrank.kernels.races.program_checks import Reads

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
    found = {reader for reader, *_ in reads.touched_by(np.array(stored) * ITEM, ITEM)}
    assert found == expected


@given(
    loads=st.lists(
        st.tuples(st.sampled_from([1, 4, 8]), st.sets(st.integers(0, 12), min_size=1)), max_size=9
    ),
    stored=st.sets(st.integers(0, 12), min_size=1),
    itemsize=st.sampled_from([1, 4, 8]),
)
def test_elements_of_other_sizes_meet_where_they_share_a_byte(loads, stored, itemsize):
    """Against sets of bytes."""

    def bytes_of(elements, size):
        return {element * size + byte for element in elements for byte in range(size)}

    reads = Reads()
    for reader, (size, elements) in enumerate(loads):
        reads.add(np.array(sorted(elements)) * size, size, reader, 1, 0)
    wanted = bytes_of(stored, itemsize)
    expected = {r for r, (size, elements) in enumerate(loads) if bytes_of(elements, size) & wanted}
    touched = reads.touched_by(np.array(sorted(stored)) * itemsize, itemsize)
    assert {reader for reader, *_ in touched} == expected


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
    assert (9, 99, 1, False) in reads.touched_by(everything[:1], ITEM)
