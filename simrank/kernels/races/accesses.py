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
        result: Array = self.first[:, None] + np.arange(self.itemsize)
        return result

    @property
    def verb(self) -> str:
        """Return what it does, for reports."""
        return "reads" if self.raw is None else "writes"


class Finding(NamedTuple):
    """Two accesses of two programs that nothing orders."""

    first: Access
    second: Access
    programs: tuple[int, int]
