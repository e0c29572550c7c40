"""Chunk tables that algorithms share."""

import numpy as np

from simrank.collectives import Problem
from simrank.collectives.algorithms.layout import gathered_tables, split_sizes


def test_sizes_split_nearly_evenly():
    """Any shape gets a last axis of parts that add up."""
    parts = split_sizes(np.array([7, 0, 3]), 3)
    assert parts.tolist() == [[3, 2, 2], [0, 0, 0], [1, 1, 1]]


def test_even_blocks_share_one_short_table():
    """Chunk block * parts + part of the long buffer is part `part` of that rank's."""
    whole, own = gathered_tables(Problem("all_gather", 3, 5), 2)
    assert whole.size.tolist() == [3, 2] * 3
    assert own.size.tolist() == [3, 2]


def test_uneven_blocks_have_a_table_per_rank():
    """Ranks with empty blocks included."""
    whole, own = gathered_tables(Problem("reduce_scatter", 3, 0, splits=(2, 0, 4)))
    assert whole.start.tolist() == [0, 2, 2]
    assert own.size.tolist() == [[2], [0], [4]]
