"""From addresses to storages."""

import numpy as np
import pytest

from simrank.device.memory import Storage
from simrank.kernels import machine
from simrank.kernels.memory import addresses
from simrank.kernels.memory.illegal import IllegalAccessError
from simrank.kernels.values import types


@pytest.fixture
def programs(ctx):
    """One program on the first device."""
    setting = machine.Setting("kernel", (1, 1, 1), ctx.devices[0], machine.Statistics())
    return machine.Programs(setting, np.array([0]))


def test_addresses_of_several_storages_are_told_apart(programs):
    """Each storage gets the elements that are its own, in the order of the lanes."""
    one, other = (Storage(programs.device, 64) for _ in range(2))
    lanes = np.array([one.address + 4, other.address, one.address + 8])
    segments = list(addresses.segments_of(programs, lanes, types.int32))
    by_storage = {s.storage: (np.flatnonzero(s.chosen), s.offsets) for s in segments}
    assert by_storage[one][0].tolist() == [0, 2]
    assert by_storage[one][1].tolist() == [1, 2]
    assert by_storage[other][1].tolist() == [0]


def test_addresses_of_one_storage_are_one_segment(programs):
    """Of which none need be chosen."""
    own = Storage(programs.device, 64)
    lanes = own.address + np.array([[0, 8], [16, 24]])
    (segment,) = addresses.segments_of(programs, lanes, types.int64)
    assert segment.chosen is None
    assert segment.offsets.tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(("offset", "words"), [(2, "misaligned"), (1 << 40, "of no allocation")])
def test_a_wrong_address_is_said(programs, offset, words):
    """Between elements, or nobody's."""
    own = Storage(programs.device, 64)
    with pytest.raises(IllegalAccessError, match=words):
        addresses.element_at(programs, own.address + offset, types.int32)


def test_what_is_no_pointer_is_refused():
    """In Triton's words."""
    with pytest.raises(ValueError, match="Unsupported ptr type"):
        addresses.pointee(3)
