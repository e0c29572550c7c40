"""A collective in flight: the ends of its ranks, projected from what is left and a rate (E11)."""

from __future__ import annotations

from itertools import groupby
from math import ceil
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.collectives.schedule import IntArray
    from simrank.engine import Engine, Wakeup


class Landing(NamedTuple):
    """Ranks that end together.

    Attributes:
        after_ps: When, counted from the collective's beginning, at its nominal speed.
        group_ranks: Who, in group order.
    """

    after_ps: int
    group_ranks: tuple[int, ...]


class Lands(Protocol):
    """What is told of ranks that end."""

    def end(self, group_ranks: Sequence[int]) -> None:
        """End these ranks now."""


def landings(ends_ps: IntArray, group_ranks: IntArray) -> tuple[Landing, ...]:
    """Return ends as groups of ranks, the first ones first.

    Shapes: (m ranks)
        ends_ps, group_ranks: [m]
    """
    order = ends_ps.argsort(kind="stable")
    pairs = zip(ends_ps[order].tolist(), group_ranks[order].tolist(), strict=True)
    return tuple(
        Landing(end_ps, tuple(rank for _, rank in ranks))
        for end_ps, ranks in groupby(pairs, key=lambda pair: pair[0])
    )


def _nothing() -> None:
    """It has no bytes in flight."""


class Flight:
    """A collective, or the decided part of one, on its way to the ends of its ranks.

    Its ends are one entry of the engine's queue at a time. They are projected: `set_rate` settles
    what has been done so far and moves those that are still ahead.

    Args:
        engine: The engine.
        call: Told of the ranks that end.
        begin_ps: When it began, in picoseconds.
        ahead: The ends, sorted.

    Attributes:
        let_go: Called when it is cancelled: takes its bytes out of flight.
    """

    __slots__ = (
        "_ahead",
        "_begin_ps",
        "_call",
        "_cursor",
        "_done_ps",
        "_engine",
        "_rate",
        "_since_ps",
        "_wakeup",
        "let_go",
    )

    def __init__(
        self, engine: Engine, call: Lands, begin_ps: int, ahead: tuple[Landing, ...]
    ) -> None:
        self._engine = engine
        self._call = call
        self._ahead = ahead
        self._cursor = 0
        self._begin_ps = self._since_ps = begin_ps
        self._done_ps = 0.0
        self.let_go: Callable[[], None] = _nothing
        self._rate = 1.0
        self._wakeup: Wakeup = engine.call_at(self._end_ps(), self._land)

    @property
    def last_end_ps(self) -> int:
        """When the last ranks end at nominal speed."""
        return self._begin_ps + self._ahead[-1].after_ps

    def set_rate(self, rate: float) -> None:
        """Go on at another speed from now on.

        Args:
            rate: Picoseconds of nominal time per picosecond; 1 is the nominal speed, 0 stands.
        """
        if rate == self._rate:
            return
        now_ps = self._engine.now_ps
        self._done_ps += (now_ps - self._since_ps) * self._rate
        stood, self._since_ps, self._rate = self._rate == 0, now_ps, rate
        if self._cursor < len(self._ahead):
            if not stood:
                self._engine.cancel(self._wakeup)
            if rate:
                self._wakeup = self._engine.call_at(self._end_ps(), self._land)

    def cancel(self) -> None:
        """Forget the ends that are still ahead: they are projected anew."""
        if self._cursor < len(self._ahead) and self._rate:
            self._engine.cancel(self._wakeup)
        self._cursor = len(self._ahead)
        self.let_go()

    @property
    def is_over(self) -> bool:
        """Whether no end is ahead any more."""
        return self._cursor == len(self._ahead)

    def _end_ps(self) -> int:
        """Return when the next ranks end, as it looks now."""
        left_ps = self._ahead[self._cursor].after_ps - self._done_ps
        end_ps = self._since_ps + (left_ps if self._rate == 1.0 else left_ps / self._rate)
        return max(ceil(end_ps), self._engine.now_ps)

    def _land(self) -> None:
        landing = self._ahead[self._cursor]
        self._cursor += 1
        if self._cursor < len(self._ahead):
            self._wakeup = self._engine.call_at(self._end_ps(), self._land)
        else:
            self.let_go = _nothing  # What it called refers back.
        self._call.end(landing.group_ranks)
