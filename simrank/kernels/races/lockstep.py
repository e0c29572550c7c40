"""Races within a launch whose programs neither wait nor publish: nothing orders two of them.

Where two store different values to the same bytes the result is luck. A launch with atomics is not
looked at: its programs may have agreed by them who stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.engine import user_site
from simrank.kernels.races.findings import ProgramRaceError, access_at, created_at

if TYPE_CHECKING:
    from simrank.device.memory import Storage
    from simrank.device.races import RaceChecker
    from simrank.engine import CallSite
    from simrank.kernels.machine import Statistics
    from simrank.kernels.machine.arrays import Array


class _Store(NamedTuple):
    """One store: [n] first byte of each element, [n, bytes] what, [n] the programs, and where."""

    storage: Storage
    first: Array
    raw: Array
    owners: Array
    site: CallSite | None


class _Shadow:
    """Which program of the launch has stored each byte last, what, and where in the source."""

    def __init__(self, size_bytes: int) -> None:
        self.owners = np.full(size_bytes, -1, np.int64)
        self.values = np.zeros(size_bytes, np.uint8)
        self.sites = np.zeros(size_bytes, np.int32)


class LaunchStores:
    """The stores of one launch.

    Args:
        checker: Whom races are told.
        kernel: The kernel's name.
        rank: Whose launch it is.
        statistics: What the launch does.
    """

    def __init__(
        self, checker: RaceChecker, kernel: str, rank: int | None, statistics: Statistics
    ) -> None:
        self._checker = checker
        self._kernel = kernel
        self._rank = rank
        self._statistics = statistics
        self._new: list[_Store] = []
        self._shadows: dict[int, _Shadow] = {}
        self._sites: list[CallSite | None] = []

    def note(self, storage: Storage, index: Array, values: Array, owners: Array) -> None:
        """Note a store of elements; it counts once its batch has come to its end."""
        flat = np.atleast_1d(np.asarray(index)).reshape(-1)
        typed = np.ascontiguousarray(np.broadcast_to(values, np.shape(index))).reshape(-1)
        raw = typed.view(np.uint8).reshape(len(flat), -1)
        first = flat * raw.shape[1]
        self._new.append(_Store(storage, first, raw, owners.reshape(-1), user_site()))

    def drop(self) -> None:
        """Forget the stores of a batch that is undone."""
        self._new.clear()

    def commit(self) -> None:
        """Check the stores of a batch, and remember them.

        Raises:
            ProgramRaceError: Two programs have stored different values, and races are errors.
        """
        stores, self._new = self._new, []
        if self._statistics.num_atomics:
            return
        for store in stores:
            shadow = self._shadows.get(store.storage.address)
            if shadow is None:
                shadow = _Shadow(store.storage.size_bytes)
                self._shadows[store.storage.address] = shadow
            self._check_each_other(store)
            self._check_earlier(store, shadow)
            index = store.first[:, None] + np.arange(store.raw.shape[1])
            shadow.owners[index] = store.owners[:, None]
            shadow.values[index] = store.raw
            shadow.sites[index] = len(self._sites)
            self._sites.append(store.site)

    def _check_each_other(self, store: _Store) -> None:
        order = np.argsort(store.first, kind="stable")
        first, raw, owners = store.first[order], store.raw[order], store.owners[order]
        wrong = (first[1:] == first[:-1]) & (owners[1:] != owners[:-1])
        wrong &= (raw[1:] != raw[:-1]).any(axis=1)
        if wrong.any():
            at = int(wrong.argmax())
            self._report(store, int(owners[at]), int(owners[at + 1]), store.site)

    def _check_earlier(self, store: _Store, shadow: _Shadow) -> None:
        index = store.first[:, None] + np.arange(store.raw.shape[1])
        before = shadow.owners[index]
        others = (before >= 0) & (before != store.owners[:, None])
        wrong = others & (shadow.values[index] != store.raw)
        if wrong.any():
            lane, byte = np.argwhere(wrong)[0].tolist()
            wrong_byte = index[lane, byte]
            site = self._sites[int(shadow.sites[wrong_byte])]
            self._report(store, int(shadow.owners[wrong_byte]), int(store.owners[lane]), site)

    def _report(self, store: _Store, first: int, second: int, site: CallSite | None) -> None:
        error = ProgramRaceError(
            self._checker.now_ps,
            self._rank,
            access_at(self._name(first), "writes", site),
            access_at(self._name(second), "writes", store.site),
            created_at(store.storage),
        )
        self._checker.note(error, (self._kernel, site, store.site, "stores of one launch"))

    def _name(self, program: int) -> str:
        return f"program {program} of kernel '{self._kernel}' of rank {self._rank}"
