"""What programs in lockstep did, played again with a vector clock for each: atomics may order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from simrank.device.clocks import join
from simrank.kernels.machine import EVERYBODY
from simrank.kernels.races.accesses import Access, Fence, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simrank.device.clocks import Clock
    from simrank.device.memory import Storage
    from simrank.kernels.machine.arrays import Array

_NOBODY = -1


class _Program:
    """A program: what it is behind, what it hands on with relaxed signals, what it has seen."""

    def __init__(self, number: int) -> None:
        self.clock: Clock = {number: 1}
        self.fenced: Clock = {}
        self.seen: Clock = {}


class _Bytes:
    """Of each byte the last store, and the last load of each program that has loaded it.

    Attributes:
        accesses: All of them, in order; what is noted are their numbers.
    """

    def __init__(self, size_bytes: int) -> None:
        self.accesses: list[Access] = []
        self.writers = np.full(size_bytes, _NOBODY, np.int64)
        self.write_epochs = np.zeros(size_bytes, np.int64)
        self.writes = np.zeros(size_bytes, np.int32)
        self.readers: dict[int, tuple[Array, Array]] = {}  # Epochs and numbers, by program.

    def read_by(self, program: int) -> tuple[Array, Array]:
        """Return when a program has loaded each byte, and in which access."""
        if program not in self.readers:
            size = len(self.writers)
            self.readers[program] = np.zeros(size, np.int32), np.zeros(size, np.int32)
        return self.readers[program]


class _Replay:
    def __init__(self) -> None:
        self._programs: dict[int, _Program] = {}
        self._flags: dict[tuple[Storage, int], Clock] = {}
        self._bytes: dict[Storage, _Bytes] = {}

    def program(self, number: int) -> _Program:
        if number not in self._programs:
            self._programs[number] = _Program(number)
        return self._programs[number]

    def atomic(self, access: Access) -> None:
        """Let each lane take over what its flag carries, and hand over."""
        order = access.order
        assert order is not None, "it is an atomic"
        for first, owner in zip(access.first.tolist(), access.owners.tolist(), strict=True):
            program = self.program(owner)
            flag = self._flags.setdefault((access.storage, first), {})
            if order.scope == "cta":  # No two programs are in one.
                continue
            carried = dict(flag)
            if access.writes:
                join(flag, program.clock if order.releases else program.fenced)
            join(program.clock if order.acquires else program.seen, carried)
            if order.releases:
                program.clock[owner] += 1

    def fence(self, owners: Array) -> None:
        """Order what programs signal after this behind all before."""
        for owner in owners.tolist():
            program = self.program(owner)
            join(program.clock, program.seen)
            program.fenced = dict(program.clock)
            program.clock[owner] += 1

    def plain(self, access: Access) -> Iterator[Finding]:
        """Yield what a load or store races with."""
        known = self._bytes.get(access.storage)
        if known is None:
            known = self._bytes[access.storage] = _Bytes(access.storage.size_bytes)
        known.accesses.append(access)
        index = access.bytes
        for owner in np.unique(access.owners).tolist():
            if owner != EVERYBODY:
                yield from self._of_one(known, owner, np.flatnonzero(access.owners == owner), index)

    def _of_one(self, known: _Bytes, owner: int, lanes: Array, index: Array) -> Iterator[Finding]:
        access, own = known.accesses[-1], index[lanes]
        program = self.program(owner)
        number, epoch = len(known.accesses) - 1, program.clock[owner]
        if access.raw is None:
            yield from self._behind_store(known, owner, own)
            epochs, numbers = known.read_by(owner)
            epochs[own], numbers[own] = epoch, number
            return
        assert access.held is not None, "it is a store"
        changed = own[(access.raw != access.held)[lanes]]
        yield from self._behind_store(known, owner, changed)
        yield from self._behind_loads(known, owner, changed)
        known.writers[changed], known.write_epochs[changed] = owner, epoch
        known.writes[changed] = number

    def _behind_store(self, known: _Bytes, owner: int, index: Array) -> Iterator[Finding]:
        clock, writers = self.program(owner).clock, known.writers[index]
        for writer in np.unique(writers).tolist():
            if writer in (_NOBODY, owner):
                continue
            mine = index[writers == writer]
            late = mine[known.write_epochs[mine] > clock.get(writer, 0)]
            if len(late):
                before = known.accesses[int(known.writes[late[0]])]
                yield Finding(before, known.accesses[-1], (writer, owner))

    def _behind_loads(self, known: _Bytes, owner: int, index: Array) -> Iterator[Finding]:
        clock = self.program(owner).clock
        for reader, (epochs, numbers) in known.readers.items():
            late = index[epochs[index] > clock.get(reader, 0)] if reader != owner else index[:0]
            if late.size:
                before = known.accesses[int(numbers[late[0]])]
                yield Finding(before, known.accesses[-1], (reader, owner))


def replay(accesses: Sequence[Access | Fence]) -> list[Finding]:
    """Return which accesses of two programs nothing orders, one for each pair of lines.

    Args:
        accesses: What the programs of a launch did, in an order in which it may have happened.
    """
    state, found = _Replay(), dict[Any, Finding]()
    for access in accesses:
        if isinstance(access, Fence):
            state.fence(access.owners)
            continue
        if access.order is not None:
            state.atomic(access)
            continue
        for finding in state.plain(access):
            key = finding.first.site, finding.second.site, finding.first.verb
            found.setdefault(key, finding)
    return list(found.values())
