"""Which units of memory several programs of a launch have touched, and somebody has changed.

Nothing else can race. It is asked of every access, so it keeps little and looks at each once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simrank.kernels.machine import ALL_PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.kernels.machine.arrays import Array
    from simrank.kernels.races.accesses import Access

_NOBODY = -1


def doubtful(accesses: Sequence[Access], unit_bytes: int) -> Array:
    """Return the units that may be raced for.

    Args:
        accesses: All loads and stores of one storage.
        unit_bytes: What every access touches whole ones of.
    """
    size = -(-accesses[0].storage.size_bytes // unit_bytes)
    owners = np.full(size, _NOBODY, np.int32)
    several, changed = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
    for access in accesses:
        index = _index(access, unit_bytes)
        if isinstance(index, slice):
            own = access.owners
            if access.itemsize != unit_bytes:
                own = np.repeat(own, access.itemsize // unit_bytes)
            before = owners[index]
            several[index] |= ((before != own) & (before != _NOBODY)) | (own == ALL_PROGRAMS)
            owners[index] = own
            if access.raw is not None:
                changed[index] |= access.differs(unit_bytes).reshape(-1)
            continue
        own = np.broadcast_to(access.owners[:, None], index.shape)
        before = owners[index]
        several[index[((before != own) & (before != _NOBODY)) | (own == ALL_PROGRAMS)]] = True
        owners[index] = own
        several[index[owners[index] != own]] = True  # Two in this access.
        if access.raw is not None:
            changed[index[access.differs(unit_bytes)]] = True
    return np.flatnonzero(several & changed)


def _index(access: Access, unit_bytes: int) -> slice | Array:
    """Return [n, itemsize / unit_bytes] which units, or a slice where they follow each other."""
    if isinstance(access.places, range):
        return slice(access.places.start // unit_bytes, access.places.stop // unit_bytes)
    return access.units(unit_bytes)
