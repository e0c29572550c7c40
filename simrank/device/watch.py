"""Watched memory: a program that spins on a flag is parked until somebody writes it (rule K2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from simrank.engine import Handle

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.device.device import Device
    from simrank.device.memory import AddressSpace, Storage
    from simrank.device.races import Touched
    from simrank.engine import Engine

Array = np.ndarray[Any, Any]


class Poll(NamedTuple):
    """What was looked at: bytes of a storage, the last exclusive, and how often it was written."""

    storage: Storage
    low: int
    high: int
    version: int


class WaitingKernel(Protocol):
    """A kernel some of whose programs wait for memory."""

    @property
    def name(self) -> str:
        """Return its name."""

    @property
    def device(self) -> Device:
        """Return where it runs."""

    def waiting_programs(self, storage: Storage) -> str:
        """Return which of its programs wait for a storage, and what for, for reports."""


class Watch(Handle):
    """A wait for a change of some bytes.

    Attributes:
        is_memory: True: no call of any rank need end it; for the deadlock report.
        polls: What was read last.
        run: The kernel whose program waits, or None.
        program_id: Which program.
    """

    is_memory = True
    __slots__ = ("polls", "program_id", "run")

    def __init__(
        self,
        polls: list[Poll],
        run: WaitingKernel | None = None,
        program_id: int = 0,
    ) -> None:
        super().__init__()
        self.polls = polls
        self.run = run
        self.program_id = program_id

    def describe(self) -> str:
        """Return what it waits for; equal for all programs of a kernel that wait for the same."""
        assert self.run is not None, "programs of kernels describe what they wait for"
        storage = self.polls[0].storage
        if storage.device is None:
            whose = "of the host"
        elif storage.device is self.run.device:  # So that ranks in the same state look the same.
            whose = "of its own device"
        else:
            whose = f"of device {storage.device.index}"
        site = storage.site()
        where = "" if site is None else f" (allocated at {site.line()})"
        waiting = self.run.waiting_programs(storage)
        return f"kernel '{self.run.name}' {waiting} of a buffer {whose}{where}"


class Watchers:
    """Who waits for which memory of one Context.

    Attributes:
        versions: How often each storage was written while somebody looked.
        listener: Told of every write to what somebody has looked at, or None.
    """

    def __init__(self) -> None:
        self.listener: Callable[[Storage, int, int], None] | None = None
        self.versions: WeakKeyDictionary[Storage, int] = WeakKeyDictionary()
        self._watches: WeakKeyDictionary[Storage, list[Watch]] = WeakKeyDictionary()

    def version(self, storage: Storage) -> int:
        """Return a number that changes with every write to a storage."""
        return self.versions.setdefault(storage, 0)

    def add(self, watch: Watch) -> None:
        """Let a watch complete at the next write to what it polled."""
        for storage in dict.fromkeys(poll.storage for poll in watch.polls):
            self._watches.setdefault(storage, []).append(watch)

    def remove(self, watch: Watch) -> None:
        """Forget a watch."""
        for storage in dict.fromkeys(poll.storage for poll in watch.polls):
            watches = self._watches.get(storage)
            if watches is not None and watch in watches:
                watches.remove(watch)

    def wrote(self, engine: Engine, storage: Storage, low: int, high: int) -> None:
        """Wake whoever watches some of the bytes from `low` to `high`, exclusive."""
        if storage not in self.versions:
            return  # Nobody has ever looked at it.
        self.versions[storage] += 1
        if self.listener is not None:
            self.listener(storage, low, high)
        for watch in list(self._watches.get(storage, ())):
            if any(
                poll.storage is storage and poll.low < high and low < poll.high
                for poll in watch.polls
            ):
                self.remove(watch)
                watch.finish(engine)

    def operation_wrote(self, engine: Engine, touched: Touched) -> None:
        """Wake whoever watches what an operation other than a kernel has written."""
        for buffer in touched.writes:
            storage = buffer.storage
            if storage.device is not None:
                self.wrote(engine, storage, 0, storage.size_bytes)


def watchers_of(space: AddressSpace) -> Watchers:
    """Return the watchers of a Context's memory, made at first use."""
    if space.watchers is None:
        space.watchers = Watchers()
    return space.watchers
