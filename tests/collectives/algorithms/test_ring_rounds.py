"""What rounds of rings share."""

import numpy as np

from simrank.collectives.algorithms.ring_rounds import Rings, gather_rounds, reduce_rounds
from simrank.collectives.schedule import Buffer

TWO_RINGS = np.array([[[0, 2, 4], [1, 3, 5]]])


def test_chunks_go_around_each_ring():
    """Position p sends what belongs to the one `shift` before it, on its own ring."""
    rings = Rings(TWO_RINGS, TWO_RINGS * 10, num_chunks=10)
    assert rings.src.tolist() == [0, 2, 4, 1, 3, 5]
    assert rings.dst.tolist() == [2, 4, 0, 3, 5, 1]
    assert rings.chunks(1).tolist() == [40, 0, 20, 50, 10, 30]
    assert rings.phase(2).num_rounds == 4


def test_sums_end_where_their_owner_is():
    """After m - 1 hops, each has passed everybody."""
    rings = Rings(TWO_RINGS, TWO_RINGS, source=Buffer.OUTPUT)
    *_, last = reduce_rounds(rings, first_shift=1, last=lambda chunk: chunk)
    assert np.array_equal(last.dst_chunk, last.dst)
    first, *_ = gather_rounds(rings, first_shift=0)
    assert np.array_equal(first.src_chunk, first.src)
    assert set(last.operand_buffer.tolist()) == {Buffer.OUTPUT}
