"""The last place where two ranks were together before their calls differed for good.

The tracks of two ranks are walked side by side. Where they execute different lines they have
parted; they meet again at the nearest line that both execute in the same frame (or in one of those
that called it, once both have left it). A place where they are together is *even* if they have
made the same calls to each other so far: the same collectives on groups that both belong to, the
same messages between them. They parted for good at the last even place, if calls differ from
there on, or if they never met again. Branches without calls that the two rejoin are passed over,
and so are those whose calls are made up for by the next place where they are together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simrank.trace.divergence.track import CALL, COMM, EXIT, LINE, RAISED, kind_of, line_of

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterator

    from simrank.collectives.schedule import IntArray
    from simrank.trace.divergence.track import Track

_FIRST_CHUNK = 64


class Place(NamedTuple):
    """Positions in two tracks at which the ranks were together."""

    ours: int
    theirs: int


class Element(NamedTuple):
    """A step of a frame, without its calls.

    Attributes:
        level: 0 in the frame; -1 in the one that called it, and so on.
        event: What.
        at: Where in the events.
    """

    level: int
    event: int
    at: int


def elements(events: array[int], index: int) -> Iterator[Element]:
    """Yield the steps from an index on, in the running frame and the frames below it."""
    level = depth = 0
    for at in range(index, len(events)):
        event = events[at]
        kind = kind_of(event)
        if kind == COMM:
            continue
        if kind == CALL:
            if not depth:
                yield Element(level, event, at)
            depth += 1
        elif kind == EXIT and depth:
            depth -= 1
        elif not depth:
            yield Element(level, event, at)
            level -= kind == EXIT


class Walk:
    """Two tracks side by side, from a place where both began.

    Args:
        ours: One.
        theirs: The other.
        matters: Whether a call, by its number, is one that both ranks have a part in.
    """

    def __init__(self, ours: Track, theirs: Track, matters: Callable[[int], bool]) -> None:
        self._a, self._b = ours.events, theirs.events
        self._first = Place(ours.first, theirs.first)
        self._arrays = np.array(self._a, np.int64), np.array(self._b, np.int64)
        self._matters = matters
        self._uneven: dict[int, int] = {}
        self._even: Place | None = None  # Indices, as everything below.
        self._is_open = False
        self._target = -1  # Of ours, and where theirs is together with it.
        self._found: int | None = None

    def diverged_at(self, start: Place) -> Place | None:
        """Return the last common line of two ranks; None where no line explains the divergence."""
        self._walked(start)
        even = self._even
        if even is None:
            return None
        goes_on = [
            _goes_on(events, at) for events, at in zip((self._a, self._b), even, strict=True)
        ]
        if all(goes_on):
            found = self._is_open or bool(self._uneven)
        else:  # One of them stays there: in a call that the other one has gone past?
            ours = any(count > 0 for count in self._uneven.values())
            theirs = any(count < 0 for count in self._uneven.values())
            found = (ours and goes_on[1]) or (theirs and goes_on[0])
        if not found:
            return None
        return Place(even.ours + self._first.ours, even.theirs + self._first.theirs)

    def aligned(self, start: Place, target: int) -> int | None:
        """Return the position in another track that corresponds to one here, or None."""
        self._target = target - self._first.ours
        self._walked(start)
        return None if self._found is None else self._found + self._first.theirs

    def _walked(self, start: Place) -> None:
        i, j = start.ours - self._first.ours, start.theirs - self._first.theirs
        a, b = self._a, self._b
        while True:
            same = _common(self._arrays[0][i:], self._arrays[1][j:])
            if same:
                if i <= self._target < i + same:
                    self._found = j + self._target - i
                if not self._uneven:
                    self._even = Place(i + same - 1, j + same - 1)
            i, j = self._past_calls(a, i + same, 1), self._past_calls(b, j + same, -1)
            if i >= len(a) or j >= len(b):
                return
            if a[i] != b[j]:
                met = _met(a, i, b, j)
                if met is None:
                    self._is_open = True
                    self._count(a, i, len(a), 1)
                    self._count(b, j, len(b), -1)
                    return
                self._count(a, i, met.ours, 1)
                self._count(b, j, met.theirs, -1)
                i, j = met

    def _past_calls(self, events: array[int], index: int, sign: int) -> int:
        end = index
        while end < len(events) and kind_of(events[end]) == COMM:
            end += 1
        self._count(events, index, end, sign)
        return end

    def _count(self, events: array[int], start: int, end: int, sign: int) -> None:
        for at in range(start, end):
            event = events[at]
            if kind_of(event) == COMM and self._matters(event):
                count = self._uneven.pop(event, 0) + sign
                if count:
                    self._uneven[event] = count


def _common(a: IntArray, b: IntArray) -> int:
    """Return with how many equal events both begin."""
    same, chunk = 0, _FIRST_CHUNK
    while True:
        length = min(chunk, len(a) - same, len(b) - same)
        if length <= 0:
            return same
        differing = np.flatnonzero(a[same : same + length] != b[same : same + length])
        if len(differing):
            return same + int(differing[0])
        same += length
        chunk *= 2


def _met(a: array[int], i: int, b: array[int], j: int) -> Place | None:
    """Return the nearest place where both are together again; None where they never are."""
    ours, theirs = elements(a, i), elements(b, j)
    seen_ours: dict[tuple[int, int], tuple[int, int]] = {}
    seen_theirs: dict[tuple[int, int], tuple[int, int]] = {}
    step = 0
    while True:
        one, other = next(ours, None), next(theirs, None)
        if one is None and other is None:
            return None
        if one is not None:
            seen_ours.setdefault((one.level, one.event), (step, one.at))
        if other is not None:
            seen_theirs.setdefault((other.level, other.event), (step, other.at))
        met = [
            (seen_ours[key][0] + seen_theirs[key][0], seen_ours[key][1], seen_theirs[key][1])
            for each in (one, other)
            if each is not None and (key := (each.level, each.event)) in seen_ours
            and key in seen_theirs
        ]  # fmt: skip
        if met:
            _, at_ours, at_theirs = min(met)
            return Place(at_ours, at_theirs)
        step += 1


def _goes_on(events: array[int], index: int) -> bool:
    """Return whether anything but calls of groups follows."""
    return any(kind_of(events[at]) != COMM for at in range(index + 1, len(events)))


def line_before(events: array[int], index: int) -> int | None:
    """Return the index of the line that runs at an index, in its frame or the one that called."""
    depth = 0
    for at in range(index, -1, -1):
        kind = kind_of(events[at])
        if kind == EXIT:
            depth += 1
        elif kind == CALL:
            depth -= depth > 0
        elif kind == LINE and not depth:
            return at
    return None


def without_unwinding(events: array[int]) -> array[int]:
    """Return a track without the frames that an exception has left at its end."""
    end = len(events)
    while end and kind_of(events[end - 1]) == EXIT and line_of(events[end - 1]) == RAISED:
        end -= 1
    return events[:end]
