"""Rings through all ranks that share no link."""

import numpy as np
import pytest

from simrank.collectives.algorithms.ring import MAX_RANKS, disjoint_rings


@pytest.mark.parametrize("num_ranks", range(2, MAX_RANKS + 1))
def test_rings_use_each_directed_link_at_most_once(num_ranks):
    """All of them, but on 4 and 6 ranks, where there are not so many rings."""
    rings = disjoint_rings(num_ranks)
    assert len(rings) == num_ranks - (2 if num_ranks in (4, 6) else 1)
    assert (np.sort(rings, axis=1) == np.arange(num_ranks)).all()
    links = set(
        zip(rings.ravel().tolist(), np.roll(rings, -1, axis=1).ravel().tolist(), strict=True)
    )
    assert len(links) == rings.size
