"""Watched memory: a program that spins on a flag is parked until the flag changes (K2)."""

from __future__ import annotations

import operator
import random  # noqa: TID251 - seeded
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast
from weakref import WeakKeyDictionary

import numpy as np

from simrank.engine import Handle

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.device.device import Device
    from simrank.device.memory import AddressSpace, Storage, Touched
    from simrank.engine import Engine

Array = np.ndarray[Any, Any]


class Poll(NamedTuple):
    """A polled range: bytes of a storage, the last exclusive, and its number of writes."""

    storage: Storage
    low: int
    high: int
    version: int


class WatchCondition(NamedTuple):
    """The condition of a wait on one integer: its value, and the comparison that ends it.

    Attributes:
        storage: Where.
        low: The integer's first byte.
        dtype: Its type.
        comparison: How the wait compares it, by the name of Python's tree, while it goes on.
        bound: With what.
        is_exclusive: Whether the look may change it: then the first waiter decides for the others.
    """

    storage: Storage
    low: int
    dtype: np.dtype[Any]
    comparison: str
    bound: int
    is_exclusive: bool

    def may_end(self) -> bool:
        """Return whether the wait would end now."""
        return not COMPARE[self.comparison](self.value(), self.bound)

    def value(self) -> int:
        """Return the integer as it is now."""
        raw = self.storage.array(np.dtype(np.uint8))[self.low : self.low + self.dtype.itemsize]
        return int(raw.view(self.dtype)[0])

    def change_text(self) -> str:
        """Return the current value and the value that would end the wait, for reports."""
        return f"{self.value()} to {end_text(self.comparison, self.bound)}"


COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge,
    "NotEq": operator.ne, "Eq": operator.eq,
}  # fmt: skip


_END_TEXTS = {
    "Lt": "{} or more", "LtE": "more than {}", "Gt": "{} or less", "GtE": "less than {}",
    "NotEq": "{}", "Eq": "anything but {}",
}  # fmt: skip


def end_text(comparison: str, bound: int) -> str:
    """Return the values that end a wait which goes on while a comparison holds, for reports."""
    return _END_TEXTS[comparison].format(bound)


class WaitingKernel(Protocol):
    """A kernel some of whose programs wait for memory."""

    @property
    def name(self) -> str:
        """Return its name."""

    @property
    def device(self) -> Device:
        """Return the device."""

    def waiting_programs(self, storage: Storage) -> str:
        """Return the programs that wait for a storage, with their conditions, for reports."""


class Watch(Handle):
    """A wait for a change of some bytes.

    Attributes:
        is_memory: True: no call of any rank need end it; for the deadlock report.
        polls: What was read last.
        run: The kernel whose program waits, or None.
        program_id: Which program.
        test: What of the bytes ends the wait; None: any change of them may.
    """

    is_memory = True
    __slots__ = ("polls", "program_id", "run", "test")

    def __init__(
        self,
        polls: list[Poll],
        run: WaitingKernel | None = None,
        program_id: int = 0,
        test: WatchCondition | None = None,
    ) -> None:
        super().__init__()
        self.polls = polls
        self.test = test
        self.run = run
        self.program_id = program_id

    def describe(self) -> str:
        """Return the awaited memory; the same text for all programs that wait for it."""
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
    """The waits for memory of one Context.

    Waits with equal tests are asked once per write. Of those whose look may change the memory, as
    programs that fight for a lock, one is woken; it hands over once it has looked: see `passed_on`.

    Attributes:
        versions: The number of writes of each watched storage.
        listener: Notified of every write to watched memory, or None.
    """

    def __init__(self) -> None:
        self.listener: Callable[[Storage, int, int], None] | None = None
        self.versions: WeakKeyDictionary[Storage, int] = WeakKeyDictionary()
        self._watches: WeakKeyDictionary[Storage, dict[Watch, None]] = WeakKeyDictionary()
        self._tests: WeakKeyDictionary[Storage, dict[WatchCondition, dict[Watch, None]]] = (
            WeakKeyDictionary()
        )
        self._random: random.Random | None = None

    def version(self, storage: Storage) -> int:
        """Return a number that changes with every write to a storage."""
        return self.versions.setdefault(storage, 0)

    def add(self, watch: Watch) -> None:
        """Add a watch, which completes at the next write to its range, or when its test may end."""
        if watch.test is not None:
            tests = self._tests.setdefault(watch.test.storage, {})
            tests.setdefault(watch.test, {})[watch] = None
            return
        for storage in dict.fromkeys(poll.storage for poll in watch.polls):
            self._watches.setdefault(storage, {})[watch] = None

    def remove(self, watch: Watch) -> None:
        """Forget a watch."""
        if watch.test is not None:
            tests = self._tests.get(watch.test.storage, {})
            tests.get(watch.test, {}).pop(watch, None)
            if not tests.get(watch.test):
                tests.pop(watch.test, None)
            return
        for storage in dict.fromkeys(poll.storage for poll in watch.polls):
            self._watches.get(storage, {}).pop(watch, None)

    def wrote(self, engine: Engine, storage: Storage, low: int, high: int) -> None:
        """Wake the programs that watch some of the bytes from `low` to `high`, exclusive."""
        if storage not in self.versions:
            return  # It has never been read.
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
        self.passed_on(engine, storage, low, high)

    def passed_on(self, engine: Engine, storage: Storage, low: int, high: int) -> None:
        """Wake those whose test may end by bytes from `low` to `high`: one, if it is exclusive."""
        for test, watches in [*self._tests.get(storage, {}).items()]:
            if test.low >= high or low >= test.low + test.dtype.itemsize or not test.may_end():
                continue
            for watch in [self._chosen(engine, watches)] if test.is_exclusive else [*watches]:
                self.remove(watch)
                watch.finish(engine)

    def _chosen(self, engine: Engine, watches: dict[Watch, None]) -> Watch:
        """Return the wait that is woken: the oldest, or by luck where the run has a seed."""
        if not engine.seed or len(watches) == 1:
            return next(iter(watches))
        if self._random is None:
            self._random = random.Random(f"{engine.seed}: waits for one lock")
        return self._random.choice([*watches])

    def operation_wrote(self, engine: Engine, touched: Touched) -> None:
        """Wake the programs that watch memory written by an operation that is no kernel."""
        for buffer in touched.writes:
            storage = buffer.storage
            if storage.device is not None:
                self.wrote(engine, storage, 0, storage.size_bytes)


def watchers_of(space: AddressSpace) -> Watchers:
    """Return the watchers of a Context's memory, made at first use."""
    if space.watchers is None:
        space.watchers = Watchers()
    return cast("Watchers", space.watchers)
