"""What programs in lockstep did to memory, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from simrank.device.memory import Storage
    from simrank.engine import CallSite
    from simrank.kernels.machine import Order
    from simrank.kernels.machine.arrays import Array


class Fence(NamedTuple):
    """Programs that put all they did before in front of all that they signal after."""

    owners: Array


class Access(NamedTuple):
    """One line's access by all programs of a batch.

    Attributes:
        storage: Where.
        first: [n] the first byte of each element.
        itemsize: Bytes of an element.
        owners: [n] which program; `EVERYBODY` where all do the same.
        site: The line.
        raw: [n, itemsize] what a store stores; None of others.
        held: [n, itemsize] what was there before a store.
        order: How an atomic orders; None of others.
        writes: Whether an atomic writes.
    """

    storage: Storage
    first: Array
    itemsize: int
    owners: Array
    site: CallSite | None
    raw: Array | None = None
    held: Array | None = None
    order: Order | None = None
    writes: bool = False

    @property
    def bytes(self) -> Array:
        """Return [n, itemsize] which bytes."""
        return self.units(1)

    def units(self, unit_bytes: int) -> Array:
        """Return [n, itemsize / unit_bytes] which units, where all elements are whole ones."""
        first = self.first // unit_bytes
        if self.itemsize == unit_bytes:
            return first[:, None]
        result: Array = first[:, None] + np.arange(self.itemsize // unit_bytes)
        return result

    def is_aligned(self, unit_bytes: int) -> bool:
        """Return whether all elements are whole units; a power of two."""
        low_bits = int(np.bitwise_or.reduce(self.first, initial=0)) | self.itemsize
        return low_bits & (unit_bytes - 1) == 0

    @property
    def verb(self) -> str:
        """Return what it does, for reports."""
        return "reads" if self.raw is None else "writes"


class Finding(NamedTuple):
    """Two accesses of two programs that nothing orders."""

    first: Access
    second: Access
    programs: tuple[int, int]
