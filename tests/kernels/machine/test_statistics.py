"""What a launch is counted to have done."""

import pytest

from simrank.kernels.machine import Dot, Extent, Statistics


class Memory:
    """Stands for a storage."""

    address, size_bytes, device = 4096, 1024, None


def counted():
    statistics = Statistics()
    statistics.count(Memory(), 16, 12, Extent(4, 9, 4), writes=False)
    statistics.count(Memory(), 16, 16, Extent(2, 5, 4), writes=True)
    return statistics


def test_traffic_is_bytes_of_active_lanes_and_the_range_they_touch():
    """Lanes that are masked off move nothing; the range is in bytes, its end exclusive."""
    statistics = counted()
    (traffic,) = statistics.traffic.values()
    assert (traffic.read_bytes, traffic.written_bytes) == (48, 64)
    assert (traffic.low, traffic.high) == (8, 40)
    assert (statistics.num_lanes, statistics.num_masked_lanes) == (32, 4)


@pytest.mark.parametrize("what", ["traffic", "flops", "atomics"])
def test_what_is_rolled_back_is_not_counted(what):
    """Restored counts are those of the snapshot, but for the steps that were done in vain."""
    statistics = counted()
    before = statistics.snapshot()
    if what == "traffic":
        statistics.count(Memory(), 8, 8, Extent(0, 255, 4), writes=True)
    elif what == "flops":
        statistics.count_flops(Dot("fp16", 4, 4, 4), 1000, 16)
    else:
        statistics.count_atomics(7)
    assert statistics.snapshot() != before
    statistics.restore(before)
    assert statistics.snapshot() == before
