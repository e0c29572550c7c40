"""Accesses of programs in lockstep, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.kernels.machine import ALL_PROGRAMS

if TYPE_CHECKING:
    from simrank.device.memory import Storage
    from simrank.engine import CallSite
    from simrank.kernels.machine import Order
    from simrank.kernels.machine.arrays import Array


ATOMIC = "updates atomically"


class Fence(NamedTuple):
    """Programs that put all they did before in front of all that they signal after."""

    owners: Array


class Access(NamedTuple):
    """One line's access by all programs of a batch.

    Attributes:
        storage: Where.
        places: [n] the first byte of each element; a range where they follow each other.
        itemsize: Bytes of an element.
        spread: Which program, in any shape: mostly a row of its own for each, which takes no room;
            `ALL_PROGRAMS` where all do the same.
        site: The line.
        ids: The ids of all programs, for `ALL_PROGRAMS`.
        raw: [n, itemsize] what a store stores; None of others.
        held: [n, itemsize] what was there before a store.
        order: How an atomic orders; None of others.
        writes: Whether an atomic writes.
        takes: Whether an atomic's result is used: else it takes over nothing but by luck.
        is_early: Whether its programs have not waited for the launch in front.
    """

    storage: Storage
    places: Array | range
    itemsize: int
    spread: Array
    site: CallSite | None
    ids: Array
    raw: Array | None = None
    held: Array | None = None
    order: Order | None = None
    writes: bool = False
    takes: bool = True
    is_early: bool = False

    @property
    def is_plain(self) -> bool:
        """Return whether atomics of other programs race with the access."""
        return self.order is None or self.order.scope == "cta"

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return len(self.places)

    @property
    def first(self) -> Array:
        """Return [n] the first byte of each element."""
        return np.asarray(self.places, np.int64)

    @property
    def owners(self) -> Array:
        """Return [n] which program; `ALL_PROGRAMS` where all do the same."""
        return self.spread.reshape(-1)

    def by_all_programs(self) -> bool:
        """Return whether all programs of the batch do the same."""
        return self.spread.size > 0 and self.spread.flat[0] == ALL_PROGRAMS

    def units(self, unit_bytes: int) -> Array:
        """Return [n, itemsize / unit_bytes] which units, where all elements are whole ones."""
        first = self.first // unit_bytes
        if self.itemsize == unit_bytes:
            return first[:, None]
        result: Array = first[:, None] + np.arange(self.itemsize // unit_bytes)
        return result

    def differs(self, unit_bytes: int) -> Array:
        """Return [n, itemsize / unit_bytes] which units a store changes."""
        assert self.raw is not None, "it is a store"
        assert self.held is not None, "it is a store"
        unit = np.dtype(f"u{unit_bytes}")
        result: Array = self.raw.view(unit) != self.held.view(unit)
        return result

    def is_aligned(self, unit_bytes: int) -> bool:
        """Return whether all elements are whole units; a power of two."""
        places = self.places
        if isinstance(places, range):
            low_bits = places.start | self.itemsize
        else:
            low_bits = int(np.bitwise_or.reduce(places, initial=0)) | self.itemsize
        return low_bits & (unit_bytes - 1) == 0

    @property
    def verb(self) -> str:
        """Return the verb, for reports."""
        if self.order is not None:
            return ATOMIC
        return "reads" if self.raw is None else "writes"


def places_of(index: Array, itemsize: int) -> Array | range:
    """Return the first byte of elements; a range where they follow each other."""
    flat = index.reshape(-1)
    num = len(flat)
    if num and flat[-1] - flat[0] == num - 1 and (flat[1:] - flat[:-1] == 1).all():
        begin = int(flat[0]) * itemsize
        return range(begin, begin + num * itemsize, itemsize)
    return flat * itemsize


class Finding(NamedTuple):
    """Two accesses of two programs that nothing orders."""

    first: Access
    second: Access
    programs: tuple[int, int]
