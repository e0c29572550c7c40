"""Leaks: Works without a wait, messages without a receive.

Works are counted by source line: memory is bounded (E10).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from simrank.errors import RankState

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from simrank.device import Operation
    from simrank.engine import CallSite, SourceLine


class _Message(NamedTuple):
    """A message that has not been received yet."""

    what: str
    site: CallSite | None
    src: int
    dst: int


Key = tuple[str, "CallSite | None", int]


class Leaks:
    """Works, messages and groups that are still open, in all spawns of a Context.

    Attributes:
        half_made: Groups that some ranks have made, and others never called `new_group` for.
        undestroyed: Default groups that ranks have not destroyed at their end; torch warns of it.
        any_source: Lines that receive from any source: another seed may give other numbers (E4).
    """

    def __init__(self) -> None:
        self.any_source: dict[CallSite | None, None] = {}
        self.undestroyed: dict[str, set[int]] = {}
        self._counts: dict[Key, int] = {}
        self._messages: dict[Hashable, _Message] = {}
        self._opposite: dict[Hashable, RankState] = {}
        self.half_made: list[RankState] = []
        self._unordered: dict[tuple[str, frozenset[str]], list[int]] = {}

    def started(self, what: str, site: CallSite | None, rank: int) -> Key:
        """Count a Work that was handed out; the result takes it back."""
        key = (what, site, rank)
        self._counts[key] = self._counts.get(key, 0) + 1
        return key

    def waited(self, key: Key) -> None:
        """Take a Work back: it was waited for, or seen to be complete."""
        left = self._counts.get(key, 0) - 1
        if left > 0:
            self._counts[key] = left
        else:
            self._counts.pop(key, None)

    @contextmanager
    def of_library(self, rank: int) -> Iterator[None]:
        """Take back what a rank starts meanwhile: the library drops it, as its program cannot."""
        before = {key: count for key, count in self._counts.items() if key[2] == rank}
        yield
        for key in [key for key in self._counts if key[2] == rank]:
            self._counts[key] = min(self._counts[key], before.get(key, 0))
            if not self._counts[key]:
                del self._counts[key]

    def buffered(
        self, message: Hashable, what: str, site: CallSite | None, ends: tuple[int, int]
    ) -> None:
        """Record a message whose sender has gone on before it was received."""
        self._messages[message] = _Message(what, site, *ends)

    def unreceived(self) -> list[tuple[int, str, CallSite | None]]:
        """Return source rank, operation and call site of each message that was not received."""
        return [(each.src, each.what, each.site) for each in self._messages.values()]

    def lost_messages(self) -> list[RankState]:
        """Return one line per set of ranks whose messages of one line were never received."""
        counts: dict[Key, int] = {}
        for what, site, src, _ in self._messages.values():
            key = (f"{what} never received", site, src)
            counts[key] = counts.get(key, 0) + 1
        return _states_of(counts)

    def received(self, message: Hashable) -> None:
        """Note that it has been received."""
        self._messages.pop(message, None)

    def opposite(self, one: Operation, other: Operation, calls: str) -> None:
        """Note two ranks that issue the same two calls in opposite orders."""
        key = frozenset((one.issued_at, other.issued_at))
        if key not in self._opposite:
            ranks = tuple(sorted({one.rank or 0, other.rank or 0}))
            text = f"issue {calls} in opposite orders, and nothing orders them: NCCL may hang"
            file, line = (None, None) if one.issued_at is None else one.issued_at.line()
            self._opposite[key] = RankState(ranks, text, file, line, waits=False)

    def unordered_threads(self, group: str, rank: int, calls: tuple[str, str]) -> None:
        """Note two threads of a rank that use one group, where nothing orders their calls."""
        if all(rank not in ranks for (name, _), ranks in self._unordered.items() if name == group):
            self._unordered.setdefault((group, frozenset(calls)), []).append(rank)

    def threads(self) -> list[RankState]:
        """Return the sets of ranks whose threads use one group in an order that is luck."""
        text = "two threads use group '{}', and nothing orders their calls (suspected): {}"
        return [
            RankState(tuple(sorted(ranks)), text.format(group, ", ".join(sorted(calls))))
            for (group, calls), ranks in self._unordered.items()
        ]

    def forget(self, rank: int) -> None:
        """Forget what a rank has not waited for, sent or received: it died before it could."""
        for key, message in list(self._messages.items()):
            if rank in (message.src, message.dst):
                del self._messages[key]
        self._counts = {
            (what, site, starter): count
            for (what, site, starter), count in self._counts.items()
            if starter != rank
        }

    def clear(self) -> None:
        """Forget everything: the ranks were aborted, and had no chance to wait."""
        self._counts.clear()
        self._messages.clear()

    def rank_returned(self, rank: int, group: str) -> None:
        """Note that a rank has returned and has not destroyed its default group."""
        self.undestroyed.setdefault(group, set()).add(rank)

    def notes(self) -> list[RankState]:
        """Return harmless leftovers, per set of ranks."""
        text = "returned without destroy_process_group() of '{}'"
        return [
            RankState(tuple(sorted(ranks)), text.format(group), waits=False)
            for group, ranks in self.undestroyed.items()
        ]

    def message_races(self) -> list[SourceLine]:
        """Return the lines whose results may depend on the order of messages."""
        return sorted({site.line() for site in self.any_source if site is not None})

    def report(self) -> list[RankState]:
        """Return one line per set of ranks that left equal things undone at the same line.

        Those are Works that were not waited for, messages that were not received, groups that not
        all have made, and calls in opposite orders.
        """
        counts = {
            (f"{what} never waited for", site, rank): count
            for (what, site, rank), count in self._counts.items()
        }
        states = [*self.half_made, *self._opposite.values()]
        states += [*_states_of(counts), *self.lost_messages()]
        return sorted(states, key=lambda state: (state.ranks, state.file or "", state.line or 0))


def _states_of(counts: dict[Key, int]) -> list[RankState]:
    """Return one line per set of ranks that left equal things undone at the same line."""
    ranks_by_text: dict[tuple[str, CallSite | None, int], list[int]] = {}
    for (what, site, rank), count in counts.items():
        ranks_by_text.setdefault((what, site, count), []).append(rank)
    states = []
    for (what, site, count), ranks in ranks_by_text.items():
        file, line = (None, None) if site is None else site.line()
        times = f" ({count} times)" if count > 1 else ""
        states.append(RankState(tuple(sorted(ranks)), f"{what}{times}", file, line, waits=False))
    return states
