"""Signals between streams over the signal pads of symmetric memory.

The sender of a signal sets a flag from 0 to 1, and the waiter sets it back to 0, as torch's own
kernels do it: a signal waits until the one before was taken.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.device import Operation
from simrank.device.watch import Poll, Watch, watchers_of
from simrank.engine.queue import HORIZON_PS
from simrank.errors import WaitTimeoutError, ranks_text
from simrank.units import PS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from simrank.device import Stream
    from simrank.device.memory import Storage
    from simrank.engine import CallSite, Wakeup

_FLAG = np.dtype(np.uint32)


class Flags(NamedTuple):
    """The flags of one member.

    Attributes:
        pads: The signal pads of all members.
        own: The member.
        channel: Flags of different channels have nothing to do with each other.
        ranks: Global ranks of the members, for reports.
    """

    pads: Sequence[Storage]
    own: int
    channel: int
    ranks: Sequence[int]


class SignalOperation(Operation):
    """Sets flags at some members of a group and takes flags that others set here.

    Args:
        stream: Where it runs.
        name: In the user's words.
        where: The signal pads of all members, and which part of them is this one's.
        peers: The members to signal, and those to wait for.
        timeout_ms: Simulated milliseconds after which it fails; 0: never.
        keeps: What must live until its end.
    """

    __slots__ = (
        "_channel", "_keeps", "_limit", "_open", "_own", "_pads", "_peers", "_ranks", "_timeout_ms",
        "is_collective",
    )  # fmt: skip
    kind = "kernel"

    def __init__(
        self,
        stream: Stream,
        name: str,
        where: Flags,
        peers: tuple[list[int], list[int]],
        timeout_ms: int,
        *,
        keeps: object,
    ) -> None:
        super().__init__(stream, name)
        self._keeps = keeps
        self._pads, self._own, self._channel, self._ranks = where
        self._peers = peers
        self._timeout_ms = timeout_ms
        self._open: set[tuple[str, int]] = set()
        self._limit: Wakeup | None = None
        # For the deadlock report: only a barrier is a call that every member makes.
        self.is_collective: bool | None = True if all(peers) else None

    def describe(self) -> str:
        """Return its name and the ranks that it waits for; before its begin, the blocker."""
        if self.start_ps < 0:
            return super().describe()
        waits = [self._ranks[peer] for what, peer in self._open if what == "wait"]
        untaken = [self._ranks[peer] for what, peer in self._open if what == "put"]
        parts = [f"no signal from {ranks_text(waits)}"] if waits else []
        parts += [f"the last signal not taken by {ranks_text(untaken)}"] if untaken else []
        return ": ".join([self.name, " and ".join(parts)]) if parts else self.name

    def pending_ranks(self) -> Iterator[tuple[int | None, str, CallSite | None]]:
        """Yield itself, for the deadlock report."""
        yield self.rank, self.describe(), self.issued_at

    def absent_ranks(self) -> Iterator[tuple[int, str]]:
        """Yield nothing: the text names the ranks that did not signal."""
        return iter(())

    def begin(self) -> None:
        """Send the signals on their way, and look for those that have come."""
        engine = self.stream.device.engine
        puts, waits = self._peers
        self._open = {("put", peer) for peer in puts} | {("wait", peer) for peer in waits}
        engine.pending[self] = None
        if self._timeout_ms:
            due_ps = min(engine.now_ps + self._timeout_ms * PS_PER_MS, HORIZON_PS)
            self._limit = engine.call_at(due_ps, self._expire, weak=True)
        for peer in puts:
            engine.call_at(engine.now_ps + self._latency_ps(peer), partial(self._put, peer))
        for peer in waits:
            self._wait(peer)
        if not self._open:
            self._all_done()

    def _latency_ps(self, peer: int) -> int:
        device, other = self.stream.device, self._pads[peer].device
        if other is None or other is device:
            return 0
        return int(device.network.cluster.paths([device.index], [other.index]).latency_ps[0])

    def _put(self, peer: int) -> None:
        """Set the flag at a member, or try again when it has been taken."""
        index = self._channel * len(self._pads) + self._own
        if self._swap(self._pads[peer], index, (0, 1), partial(self._put, peer)):
            engine = self.stream.device.engine
            done_ps = engine.now_ps + self._latency_ps(peer)
            engine.call_at(done_ps, partial(self._done, ("put", peer)))

    def _wait(self, peer: int) -> None:
        """Take the flag of a member, or try again when it has been set."""
        index = self._channel * len(self._pads) + peer
        if self._swap(self._pads[self._own], index, (1, 0), partial(self._wait, peer)):
            self._done(("wait", peer))

    def _swap(
        self, pad: Storage, index: int, change: tuple[int, int], again: Callable[[], None]
    ) -> bool:
        """Change a flag and wake its watchers; if it has another value, watch it."""
        if self not in self.stream.device.engine.pending:
            return False  # Dropped or failed meanwhile.
        engine = self.stream.device.engine
        watchers = watchers_of(self.stream.device.memory.space)
        flags = pad.array(_FLAG)
        low, high = index * _FLAG.itemsize, (index + 1) * _FLAG.itemsize
        if flags[index] != change[0]:
            watch = Watch([Poll(pad, low, high, watchers.version(pad))])
            watch.on_complete(again)
            watchers.add(watch)
            return False
        flags[index] = change[1]
        self._order(pad, low, is_given=change[1] == 1)
        watchers.wrote(engine, pad, low, high)
        return True

    def _order(self, pad: Storage, first: int, *, is_given: bool) -> None:
        """Hand what this is behind to a flag, or take over what the flag carries."""
        races = self.stream.device.races
        if races is not None and is_given:
            races.order.give(pad, first, self.run)
        elif races is not None:
            races.order.take(pad, first, self.run)

    def _done(self, what: tuple[str, int]) -> None:
        self._open.discard(what)
        if not self._open:
            self._all_done()

    def _all_done(self) -> None:
        """Complete, at the earliest after what every kernel takes."""
        device = self.stream.device
        if self not in device.engine.pending:
            return  # Dropped or failed meanwhile.
        self._release()
        least_ps = self.start_ps + device.spec.kernel_floor_ps
        device.engine.call_at(max(device.engine.now_ps, least_ps), self._end)

    def _end(self) -> None:
        if self.stream.head is self:
            self.end()

    def _expire(self) -> None:
        if self not in self.stream.device.engine.pending:
            return
        self._limit = None
        engine, timeout_ps = self.stream.device.engine, self._timeout_ms * PS_PER_MS
        error = WaitTimeoutError(engine.now_ps, self.rank, self.describe(), timeout_ps)
        self._release()
        self.raise_in_rank(error)
        self._open.clear()
        self.end()

    def _release(self) -> None:
        engine = self.stream.device.engine
        engine.pending.pop(self, None)
        if self._limit is not None:
            engine.cancel(self._limit)
            self._limit = None

    def drop(self) -> None:
        """Forget it: the rank was aborted."""
        self._release()
