"""Races within a launch whose programs neither wait nor publish.

They run in lockstep, as if a barrier stood behind every line; on a device nothing orders two of
them. A load of what another program stores is luck, and so is what stays of two stores of different
values. Where there are atomics the programs may have ordered each other by them: then what they did
is played again with vector clocks (`replay`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simrank.engine import user_site
from simrank.kernels.machine import EVERYBODY
from simrank.kernels.races.accesses import Access, Fence, Finding
from simrank.kernels.races.findings import ProgramRaceError, access_at, created_at
from simrank.kernels.races.replay import replay

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from simrank.device.memory import Storage
    from simrank.device.races import RaceChecker
    from simrank.engine import CallSite
    from simrank.kernels.machine import Order
    from simrank.kernels.machine.arrays import Array

_NOBODY = -1
_SEVERAL = -3


class LaunchAccesses:
    """What the programs of one launch do to memory that it may write.

    Args:
        kernel: The kernel's name.
        rank: Whose launch it is.
        watched: Memory that the launch may write; what else it stores to is added.
        shared: Memory that several ranks reach.
    """

    def __init__(
        self,
        kernel: str,
        rank: int | None,
        watched: Iterable[Storage],
        shared: Container[Storage] = (),
    ) -> None:
        self._kernel = kernel
        self._rank = rank
        self._watched = set(watched)
        self._shared = shared
        self._new: list[Access | Fence] = []
        self._done: list[Access | Fence] = []

    def watches(self, storage: Storage) -> bool:
        """Return whether loads of some memory need to be noted: somebody may write it."""
        return storage in self._watched or storage in self._shared

    def loads(self, storage: Storage, index: Array, itemsize: int, owners: Array) -> None:
        """Note a load of elements, and which program loads each."""
        first = index.reshape(-1) * itemsize
        self._new.append(Access(storage, first, itemsize, _flat(owners), user_site()))

    def stores(self, storage: Storage, index: Array, values: Array, owners: Array) -> None:
        """Note a store of elements that is about to happen, and which program stores each."""
        self._watched.add(storage)
        flat = index.reshape(-1)
        typed = np.ascontiguousarray(np.broadcast_to(values, index.shape)).reshape(-1)
        raw = typed.view(np.uint8).reshape(len(flat), -1)
        itemsize = raw.shape[1]
        access = Access(storage, flat * itemsize, itemsize, _flat(owners), user_site())
        there = storage.array(np.dtype(f"u{itemsize}")).take(flat)
        held = there.view(np.uint8).reshape(len(flat), -1)
        self._new.append(access._replace(raw=raw, held=held))

    def atomics(
        self,
        storage: Storage,
        index: Array,
        itemsize: int,
        owners: Array,
        asked: tuple[Order, bool],
    ) -> None:
        """Note atomics: which program does each, how they order, and whether they write."""
        order, writes = asked
        first = index.reshape(-1) * itemsize
        access = Access(storage, first, itemsize, _flat(owners), user_site())
        self._new.append(access._replace(order=order, writes=writes))

    def fence(self, owners: Array) -> None:
        """Note a fence of programs."""
        self._new.append(Fence(owners))

    def drop(self) -> None:
        """Forget the accesses of a batch that is undone."""
        self._new.clear()

    def commit(self) -> None:
        """Keep the accesses of a batch that has come to its end."""
        self._done += self._new
        self._new.clear()

    def check(self, checker: RaceChecker) -> None:
        """Look for races in what the launch has done.

        Raises:
            ProgramRaceError: There is one, and races are errors.
        """
        found = self.found()
        if found and any(isinstance(a, Access) and a.order is not None for a in self._done):
            found = replay(self._done)
        for finding in found:
            first, second = finding.first, finding.second
            error = ProgramRaceError(
                checker.now_ps,
                self._rank,
                access_at(self._name(finding.programs[0]), first.verb, first.site),
                access_at(self._name(finding.programs[1]), second.verb, second.site),
                created_at(second.storage),
            )
            checker.note(error, (self._kernel, first.site, second.site, first.verb, second.verb))

    def shared(self) -> list[Access]:
        """Return the loads and stores of memory that several ranks reach."""
        plain = [a for a in self._done if isinstance(a, Access) and a.order is None]
        return [access for access in plain if access.storage in self._shared]

    def hints(self) -> list[str]:
        """Return what may be a race, as lines; nothing where atomics may have ordered programs."""
        if any(isinstance(access, Access) and access.order is not None for access in self._done):
            return []
        return [self._hint(*finding) for finding in self.found()]

    def _hint(self, first: Access, second: Access, programs: tuple[int, int]) -> str:
        one, other = (
            f"{self._name(program)} {access.verb}{_at(access.site)}"
            for program, access in zip(programs, (first, second), strict=True)
        )
        return f"{one} where {other}: nothing orders them; races='report' looks at all of them"

    def found(self) -> list[Finding]:
        """Return what would be races if nothing ordered two programs."""
        by_storage: dict[Storage, list[Access]] = {}
        for access in self._done:
            if isinstance(access, Access) and access.order is None:
                by_storage.setdefault(access.storage, []).append(access)
        result: list[Finding] = []
        for storage, accesses in by_storage.items():
            if any(access.raw is not None for access in accesses):
                shadow = _Shadow(storage.size_bytes, _unit_bytes(accesses))
                for access in accesses:
                    result += shadow.add(access)
        return result

    def _name(self, program: int) -> str:
        which = "every program" if program == EVERYBODY else f"program {program}"
        return f"{which} of kernel '{self._kernel}' of rank {self._rank}"


def _flat(owners: Array) -> Array:
    """Return which program each lane is of, in half the memory that indices take."""
    return owners.reshape(-1).astype(np.int32, copy=False)


def _at(site: CallSite | None) -> str:
    return "" if site is None else f" at {site.line()}"


def _unit_bytes(accesses: Iterable[Access]) -> int:
    """Return the largest unit of which all elements are whole ones: mostly an element."""
    smallest = min(access.itemsize for access in accesses)
    return smallest if all(access.is_aligned(smallest) for access in accesses) else 1


class _Shadow:
    """Which program of the launch has last stored, and which have loaded, each unit of memory.

    Args:
        size_bytes: Of the memory.
        unit_bytes: What every access touches whole ones of.
    """

    def __init__(self, size_bytes: int, unit_bytes: int) -> None:
        size = -(-size_bytes // unit_bytes)
        self._unit_bytes = unit_bytes
        self._unit = np.dtype(f"u{unit_bytes}")
        self._accesses: list[Access] = []
        self._writers = np.full(size, _NOBODY, np.int32)
        self._values = np.zeros(size, self._unit)
        self._changed = np.zeros(size, np.bool_)
        self._writes = np.zeros(size, np.int32)
        self._readers = np.full(size, _NOBODY, np.int32)
        self._reads = np.zeros(size, np.int32)

    def add(self, access: Access) -> list[Finding]:
        """Return what an access races with, one of a kind, and remember it."""
        self._accesses.append(access)
        index = access.units(self._unit_bytes)
        owners = np.broadcast_to(access.owners[:, None], index.shape)
        return self._load(index, owners) if access.raw is None else self._store(index, owners)

    def _load(self, index: Array, owners: Array) -> list[Finding]:
        before = self._writers[index]
        wrong = self._changed[index] & (before >= 0) & (before != owners)
        result = self._finding(self._writes, before, index, owners, wrong)
        readers = self._readers[index]
        new = np.where((readers == _NOBODY) | (readers == owners), owners, _SEVERAL)
        self._readers[index] = new
        self._readers[index[self._readers[index] != new]] = _SEVERAL  # Two in this access.
        self._reads[index] = len(self._accesses) - 1
        return result

    def _store(self, index: Array, owners: Array) -> list[Finding]:
        access = self._accesses[-1]
        assert access.raw is not None, "it is a store"
        assert access.held is not None, "it is a store"
        raw = access.raw.view(self._unit)
        differs = raw != access.held.view(self._unit)
        readers, writers = self._readers[index], self._writers[index]
        read = differs & (readers != _NOBODY) & ((readers != owners) | (owners == EVERYBODY))
        wrong = (writers >= 0) & (writers != owners) & (self._values[index] != raw)
        result = self._finding(self._reads, readers, index, owners, read)
        result += self._finding(self._writes, writers, index, owners, wrong)
        result += self._in_one_line(access)
        self._writers[index] = owners
        self._values[index] = raw
        self._changed[index] |= differs
        self._writes[index] = len(self._accesses) - 1
        return result

    def _in_one_line(self, access: Access) -> list[Finding]:
        """Return where two programs store different values to one place at the same line."""
        assert access.raw is not None, "it is a store"
        if (access.first[1:] > access.first[:-1]).all():  # Mostly: each place once.
            return []
        order = np.argsort(access.first, kind="stable")
        first, raw, owners = access.first[order], access.raw[order], access.owners[order]
        wrong = (first[1:] == first[:-1]) & (owners[1:] != owners[:-1])
        wrong &= (raw[1:] != raw[:-1]).any(axis=1)
        if not wrong.any():
            return []
        at = int(wrong.argmax())
        return [Finding(access, access, (int(owners[at]), int(owners[at + 1])))]

    def _finding(
        self, numbers: Array, others: Array, index: Array, owners: Array, wrong: Array
    ) -> list[Finding]:
        if not wrong.any():
            return []
        lane, unit = np.argwhere(wrong)[0].tolist()
        before = self._accesses[int(numbers[index[lane, unit]])]
        other, own = int(others[lane, unit]), int(owners[lane, unit])
        if other == _SEVERAL:  # The last one that is not the same.
            byte_there = index[lane, unit] * self._unit_bytes - before.first
            here = (byte_there >= 0) & (byte_there < before.itemsize)
            programs = before.owners[here & (before.owners != own)]
            other = int(programs[-1]) if len(programs) else EVERYBODY
        return [Finding(before, self._accesses[-1], (other, own))]
