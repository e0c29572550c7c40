"""What is behind what as things happen, across ranks: vector clocks of streams and of hosts.

An operation is behind what its host knew when it was issued, behind its stream, and behind what its
stream waits for. Members of a collective are behind each other, who receives is behind who sends,
who takes a signal is behind who gave it, and hosts are behind each other where they meet. That
something ended earlier in simulated time orders nothing: on another day it is late.

Accesses to memory that ranks share are compared by these clocks; see `SharedAccesses`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import WeakKeyDictionary, WeakSet

from simrank.device.clocks import ALL_DEVICES, Clock, join

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from simrank.device.buffer import Buffer
    from simrank.device.memory import Storage
    from simrank.device.operation import Operation

_MAX_PUTS = 8  # assumed: the last operations that wrote integers which somebody may look at
_ROOT_GIVES = ("broadcast", "scatter")
_ROOT_TAKES = ("reduce", "gather")


class SharedAccesses(Protocol):
    """Who compares accesses to memory that ranks share."""

    def began(self, operation: Operation, doubted: Collection[Storage]) -> None:
        """Compare what an operation touches with what others have touched.

        Args:
            operation: It begins.
            doubted: Memory that no other rank reaches, but that is to be looked at.
        """

    def ended(self, operation: Operation) -> None:
        """Note that an operation has ended."""

    def met(self, operation: Operation, reads: Sequence[Buffer], writes: Sequence[Buffer]) -> None:
        """Compare what an operation touches once it has met those of other ranks.

        Args:
            operation: It runs.
            reads: What it reads of memory that ranks share.
            writes: What it writes there.
        """

    def flagged(self, storage: Storage, first: int) -> None:
        """Note that a stream has set a flag, or set it back."""


class Agent:
    """Something that does one thing after another: a stream, or a program's host.

    Attributes:
        number: Which.
        clock: What it is ordered behind, as far as it has issued.
        run: What it is ordered behind, as far as things have happened.
        next: What the next operation of a stream is behind besides.
        unseen: What a host is behind that had not ended when it went on, by stream.
    """

    __slots__ = ("clock", "next", "number", "run", "unseen")

    def __init__(self, number: int) -> None:
        self.number = number
        self.clock: Clock = {}
        self.run: Clock = {}
        self.next: Clock = {}
        self.unseen: dict[object, Operation] = {}

    @property
    def key(self) -> int:
        """Return what it is called in clocks of what happens; above zero are programs."""
        return -self.number

    def step(self) -> int:
        """Count a step, and return its number."""
        self.clock[self.number] = self.clock.get(self.number, 0) + 1
        return self.clock[self.number]


class _Put(NamedTuple):
    """Integers that an operation wrote: whoever sees them is behind it."""

    low: int
    high: int
    clock: Clock


class Turn:
    """An operation's turn in its stream; it keeps none of what the operation keeps.

    Attributes:
        stream: What the stream is called in clocks.
        step: Which step of it, once it has begun; 0 before.
        tells_accesses: As the operation has it.
    """

    __slots__ = ("__weakref__", "step", "stream", "tells_accesses")

    def __init__(self, stream: int, *, tells_accesses: bool) -> None:
        self.stream = stream
        self.step = 0
        self.tells_accesses = tells_accesses


class Doubt(NamedTuple):
    """Two operations of one rank that only a kernel that waits may have ordered."""

    storage: Storage
    first: Turn
    second: Turn


class RunOrder:
    """The clocks of what happens in one Context.

    Attributes:
        shared: Memory that several ranks reach.
        flags: What was handed to each flag, by storage, byte and the device that sees it.
        listener: Who compares accesses, or None.
        is_active: Whether anything is kept: some memory is shared, or there may be kernels. What
            was issued before is in front of all.
    """

    def __init__(self) -> None:
        self.shared: WeakSet[Storage] = WeakSet()
        self.flags: WeakKeyDictionary[Storage, dict[int, dict[int, Clock]]] = WeakKeyDictionary()
        self.listener: SharedAccesses | None = None
        self.is_active = False
        self._puts: WeakKeyDictionary[Storage, list[_Put]] = WeakKeyDictionary()
        self._doubts: WeakKeyDictionary[Turn, list[tuple[Doubt, Callable[[], None]]]] = (
            WeakKeyDictionary()
        )

    def share(self, storage: Storage) -> None:
        """Look at accesses to some memory from now on: other ranks will reach it."""
        self.is_active = True
        self.shared.add(storage.history_key)

    # ---- operations ----

    def issued(self, operation: Operation, stream: Agent, host: Agent) -> None:
        """Note what a new operation is behind, once ranks may share memory."""
        if not self.is_active:
            self.is_active = "triton" in sys.modules  # Its kernels reach whatever they are told.
            if not self.is_active:
                return
        for key, other in list(host.unseen.items()):
            if other.complete:
                join(host.run, other.run or {})
                del host.unseen[key]
        operation.run = dict(host.run)
        operation.turn = Turn(stream.key, tells_accesses=operation.tells_accesses)
        join(operation.run, stream.next)
        stream.next = {}
        operation.unseen = tuple(host.unseen.values())

    def began(self, operation: Operation, stream: Agent) -> None:
        """Let an operation take over what its stream has come behind."""
        if operation.run is None:
            return  # Issued before anybody looked.
        unseen, operation.unseen = operation.unseen, ()
        for other in unseen:
            join(operation.run, other.run or {})
        join(operation.run, stream.run)
        operation.run[stream.key] = stream.run.get(stream.key, 0) + 1
        if operation.turn is not None:
            operation.turn.step = operation.run[stream.key]
        stream.run = dict(operation.run)
        if all(other.complete for other in unseen):
            doubted = self._decide(operation)
            if self.listener is not None:
                self.listener.began(operation, doubted)

    def ended(self, operation: Operation, stream: Agent) -> None:
        """Let a stream take over what an operation has come behind."""
        if operation.run is None:
            return
        join(stream.run, operation.run)
        for buffer in () if operation.touched is None else operation.touched.writes:
            if buffer.storage.device is not None and buffer.array.dtype.kind in "iu":
                low, high = buffer.storage.bounds(buffer.array)
                puts = self._puts.setdefault(buffer.storage.history_key, [])
                puts.append(_Put(low, high, dict(operation.run)))
                del puts[:-_MAX_PUTS]
        if self.listener is not None:
            self.listener.ended(operation)

    # ---- doubts ----

    def doubt(self, doubt: Doubt, report: Callable[[], None]) -> None:
        """Compare two operations as the later one begins; `report` if nothing orders them."""
        for turn in (doubt.first, doubt.second):
            self._doubts.setdefault(turn, []).append((doubt, report))

    def _decide(self, operation: Operation) -> set[Storage]:
        """Compare an operation that begins with others that have.

        Returns:
            Memory of which programs of kernels know best who touches what.
        """
        result: set[Storage] = set()
        turn = operation.turn
        if turn is None or operation.run is None:
            return result
        for doubt, report in self._doubts.pop(turn, ()):
            other = doubt.first if turn is doubt.second else doubt.second
            if not other.step or turn.tells_accesses:
                continue  # The other one decides; or its programs do.
            if other.tells_accesses:
                result.add(doubt.storage)
            elif operation.run.get(other.stream, 0) < other.step:
                report()
        return result

    # ---- ranks ----

    def gather(
        self, ending: Iterable[Operation], arrived: Iterable[Operation], op: str, root: object
    ) -> None:
        """Let members of a collective take over what those have that they depend on.

        Args:
            ending: The members' parts that end.
            arrived: Those that have begun, in whatever rank.
            op: What the collective is called.
            root: The part of its root, or None.
        """
        if not self.is_active:
            return
        together: Clock = {}
        for part in arrived:
            if op not in _ROOT_GIVES or part is root:
                join(together, part.run or {})
        for operation in ending:
            if op in _ROOT_GIVES:
                join(operation.run or {}, together)
            elif op not in _ROOT_TAKES or operation is root:
                operation.run = together  # Its own is among them.

    def give(self, storage: Storage, first: int, clock: Clock | None) -> None:
        """Hand a clock to a flag that all devices see."""
        storage = storage.history_key
        by_scope = self.flags.setdefault(storage, {}).setdefault(first, {})
        join(by_scope.setdefault(ALL_DEVICES, {}), clock or {})
        if self.listener is not None:
            self.listener.flagged(storage, first)

    def take(self, storage: Storage, first: int, clock: Clock | None) -> None:
        """Take over what a flag carries."""
        storage = storage.history_key
        given = self.flags.get(storage, {}).get(first, {}).get(ALL_DEVICES, {})
        join({} if clock is None else clock, given)
        if self.listener is not None:
            self.listener.flagged(storage, first)
        self.take_put(storage, first, {} if clock is None else clock)

    def take_put(self, storage: Storage, first: int, clock: Clock) -> None:
        """Take over what operations have that wrote a byte."""
        for low, high, given in self._puts.get(storage, ()):
            if low <= first < high:
                join(clock, given)
