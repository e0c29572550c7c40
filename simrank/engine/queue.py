"""Entries of the engine's queue other than tasks, and the keys that order equal times."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_KEYS_PER_DRAW = 4096


class Firing(Protocol):
    """A queue entry that the engine calls at a simulated time and that is never cancelled."""

    def fire(self) -> None:
        """Happen."""


class Failure:
    """A queue entry that raises an error in the main program.

    Attributes:
        error: What is raised.
    """

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def fire(self) -> None:
        """Raise it.

        Raises:
            BaseException: The error.
        """
        raise self.error


class Wakeup:
    """A call that the engine makes at a simulated time, from the hub.

    Attributes:
        fire: What is called.
        cancelled: Skipped when due; the clock does not move to it.
        queued: Neither called nor cancelled yet.
        weak: Does not keep the simulation alive (a time limit, a poll, a sleep).
        lapses: Skipped when due and nothing else is queued (a fault of a run that is over).
    """

    __slots__ = ("cancelled", "fire", "lapses", "queued", "weak")

    def __init__(
        self, fire: Callable[[], None], *, weak: bool = False, lapses: bool = False
    ) -> None:
        self.fire = fire
        self.weak = weak or lapses
        self.lapses = lapses
        self.cancelled = False
        self.queued = True

    def void(self) -> None:
        """Make it call nothing; it is in the queue until its time, but keeps nothing alive."""
        self.cancelled, self.queued = True, False
        self.fire = _nothing


HORIZON_PS = 1 << 61  # Times and the sums of two of them fit an int64.


def void_wakeup() -> Wakeup:
    """Return a wakeup that does nothing but let the loop look around."""
    wakeup = Wakeup(_nothing)
    wakeup.void()
    return wakeup


def _nothing() -> None:
    """Happen: a void wakeup never does."""


def is_void(entry: object) -> bool:
    """Return whether a queued entry cannot change anything by itself."""
    return isinstance(entry, Wakeup) and (entry.cancelled or entry.lapses)


def tie_keys(seed: int) -> Callable[[], int]:
    """Return a function that draws one key per queue entry; equal times run in key order.

    Seed 0 is queueing order. Any other seed permutes ties: a random key, made unique by the
    running number in its low bits.
    """
    return count().__next__ if seed == 0 else _random_keys(seed).__next__


def _random_keys(seed: int) -> Iterator[int]:
    generator = np.random.Generator(np.random.PCG64(seed))
    number = 0
    while True:
        for draw in generator.integers(0, 1 << 20, _KEYS_PER_DRAW).tolist():
            number += 1
            yield (draw << 48) | number
