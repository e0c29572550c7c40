"""The last place where two ranks were together before their calls differed, or are swapped.

The tracks of two ranks are walked side by side. Where they execute different lines they have
parted; they meet again at the nearest line that both execute in the same frame (or in one of those
that called it, once both have left it). A place where they are together is *even* if they have made
the same calls to each other so far: the same collectives on groups that both belong to, the same
messages between them. They diverged for good at the last even place, if calls differ from there
on, or if they never met again. Branches without calls that the two rejoin are passed over, and so
are those whose calls are made up for by the next place where they are together.

Each call that the lines are followed of has labels: its line, and the places in containers of the
program that hold its tensor, such as `grads['bias']`. Two calls are swapped where one rank gives
first what another one gives second. Ranks that take the two branches of one `if` for a call, as in
a rotation of roles, are passed over.
"""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from simrank.device.tensors.printing import address_of
from simrank.engine import SourceLine
from simrank.errors import RankState
from simrank.trace.divergence.meanings import DifferentThings, meanings_at
from simrank.trace.divergence.track import CALL, COMM, EXIT, LINE, RAISED, kind_of, line_of

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterator
    from types import FrameType

    from simrank.collectives.schedule import IntArray
    from simrank.distributed.group import ProcessGroup
    from simrank.distributed.request import Request, Signature
    from simrank.trace.divergence.meanings import Meanings
    from simrank.trace.divergence.track import Track

_FIRST_CHUNK = 64


class TrackPosition(NamedTuple):
    """Positions in two tracks at which the ranks were together."""

    ours: int
    theirs: int


class FrameStep(NamedTuple):
    """A step of a frame, without its calls.

    Attributes:
        level: 0 in the frame; -1 in the one that called it, and so on.
        event: What.
        at: Where in the events.
    """

    level: int
    event: int
    at: int


def elements(events: array[int], index: int) -> Iterator[FrameStep]:
    """Yield the steps from an index on, in the running frame and the frames below it."""
    level = depth = 0
    for at in range(index, len(events)):
        event = events[at]
        kind = kind_of(event)
        if kind == COMM:
            continue
        if kind == CALL:
            if not depth:
                yield FrameStep(level, event, at)
            depth += 1
        elif kind == EXIT and depth:
            depth -= 1
        elif not depth:
            yield FrameStep(level, event, at)
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
        self._first = TrackPosition(ours.first, theirs.first)
        self._arrays = np.array(self._a, np.int64), np.array(self._b, np.int64)
        self._matters = matters
        self._uneven: dict[int, int] = {}
        self._even: TrackPosition | None = None  # Indices, as everything below.
        self._is_open = False
        self._target = -1  # Of ours, and where theirs is together with it.
        self._found: int | None = None

    def diverged_at(self, start: TrackPosition) -> TrackPosition | None:
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
        return TrackPosition(even.ours + self._first.ours, even.theirs + self._first.theirs)

    def aligned(self, start: TrackPosition, target: int) -> int | None:
        """Return the position in another track that corresponds to one here, or None."""
        self._target = target - self._first.ours
        self._walked(start)
        return None if self._found is None else self._found + self._first.theirs

    def _walked(self, start: TrackPosition) -> None:
        i, j = start.ours - self._first.ours, start.theirs - self._first.theirs
        a, b = self._a, self._b
        while True:
            same = _common(self._arrays[0][i:], self._arrays[1][j:])
            if same:
                if i <= self._target < i + same:
                    self._found = j + self._target - i
                if not self._uneven:
                    self._even = TrackPosition(i + same - 1, j + same - 1)
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


def _met(a: array[int], i: int, b: array[int], j: int) -> TrackPosition | None:
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
            return TrackPosition(at_ours, at_theirs)
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


# ---- equal calls that ranks make in opposite orders: values are swapped, and nothing fails ----

# Calls to which members contribute parts that belong together; of others each gives its own.
_ALIKE = frozenset(("all_reduce", "broadcast", "reduce", "reduce_scatter"))
_WINDOW = 8  # Assumed: how far apart swapped calls may be.
_MAX_PENDING = 1024  # Assumed: calls of a group that not all members have made.
_MAX_HELD = 1024  # Assumed: larger containers are not searched.
_MAX_FOUND = 16


class _Given(NamedTuple):
    """A rank's argument of a call: its line, the tensor's name in the program, and other names."""

    line: SourceLine
    labels: frozenset[str]
    meanings: Meanings


class _Call(NamedTuple):
    """A call of all members of a group."""

    seq: int
    signature: Signature
    by_rank: dict[int, _Given]


class Swaps:
    """The latest calls of each group, and swapped ones.

    Attributes:
        found: What findings say of them.
        things: The names under which they are made.
    """

    def __init__(self) -> None:
        self.things = DifferentThings()
        self.found: dict[tuple[str, SourceLine], str] = {}
        self._pending: WeakKeyDictionary[ProcessGroup, dict[int, _Call]] = WeakKeyDictionary()
        self._latest: WeakKeyDictionary[ProcessGroup, list[_Call]] = WeakKeyDictionary()

    def note(self, group: ProcessGroup, rank: int, request: Request, frame: FrameType) -> None:
        """Record a call before it is matched; compare the last member's with the earlier ones."""
        signature, seq = request.signature, group.num_calls(group.group_rank(rank)) + 1
        pending = self._pending.setdefault(group, {})
        call = pending.setdefault(seq, _Call(seq, signature, {}))
        if call.signature == signature:  # Else it is a mismatch.
            line = SourceLine(frame.f_code.co_filename, frame.f_lineno)
            address = None if request.is_staged else address_of(request.source)
            call.by_rank[rank] = _Given(line, _labels(address, frame), meanings_at(frame))
        if len(call.by_rank) == group.size():
            del pending[seq]
            meanings = {each: given.meanings for each, given in sorted(call.by_rank.items())}
            self.things.note(group, f"{signature.op} #{seq}", meanings)
            if signature.op not in _ALIKE or request.is_staged:
                return
            latest = self._latest.setdefault(group, [])
            for before in latest:
                if before.signature == signature:
                    self._compare(group, before, call)
            latest[:] = [*latest[1 - _WINDOW :], call]
        elif len(pending) > _MAX_PENDING:
            del pending[next(iter(pending))]

    def _compare(self, group: ProcessGroup, first: _Call, second: _Call) -> None:
        ours, *others = sorted(first.by_rank)
        for theirs in others:
            pair = _swapped(first, second, ours, theirs)
            key = (group.name, first.by_rank[ours].line)
            if pair is None or key in self.found or len(self.found) >= _MAX_FOUND:
                continue
            numbers = f"{first.signature.op} #{first.seq} and #{second.seq} on '{group.name}'"
            one, other = pair
            reported = [
                RankState((ours,), f"first {one}, then {other}", *first.by_rank[ours].line),
                RankState((theirs,), f"first {other}, then {one}", *first.by_rank[theirs].line),
            ]
            self.found[key] = (
                f"equal calls in opposite orders (suspected), {numbers}: "
                f"{reported[0]}; {reported[1]}"
            )


def _swapped(first: _Call, second: _Call, ours: int, theirs: int) -> tuple[str, str] | None:
    """Return the labels that two ranks give in opposite orders, or None."""
    ours_first, ours_second = first.by_rank[ours], second.by_rank[ours]
    theirs_first, theirs_second = first.by_rank[theirs], second.by_rank[theirs]
    ones = (ours_first.labels - theirs_first.labels) & (theirs_second.labels - ours_second.labels)
    twos = (theirs_first.labels - ours_first.labels) & (ours_second.labels - theirs_second.labels)
    if not ones or not twos or _are_branches(ours_first.line, theirs_first.line):
        return None
    return _clearest(ones), _clearest(twos)


def _clearest(labels: frozenset[str]) -> str:
    """Return the place in a container where there is one, and else the line."""
    return min(labels, key=lambda label: (not label.endswith("]"), label))


def _labels(address: int | None, frame: FrameType) -> frozenset[str]:
    """Return the program's names of a tensor, and the running line."""
    labels = {f"line {frame.f_lineno}"}
    if address is not None:
        for name, value in list(frame.f_locals.items()):
            labels.update(_in_container(name, value, address))
    return frozenset(labels)


def _in_container(name: str, value: object, address: int) -> list[str]:
    if type(value) is dict:
        items = list(value.items()) if len(value) <= _MAX_HELD else []
    elif type(value) in (list, tuple):
        held: list[object] = list(value)  # type: ignore[call-overload]
        items = list(enumerate(held)) if len(held) <= _MAX_HELD else []
    else:
        return []
    found = [key for key, each in items if type(key) in (str, int) and address_of(each) == address]
    return [f"{name}[{key!r}]" for key in found]


@lru_cache(maxsize=64)
def _are_branches(one: SourceLine, other: SourceLine) -> bool:
    """Return whether two lines stand on the two sides of one `if`."""
    if one.file != other.file or one.line == other.line:
        return False
    try:
        tree = ast.parse("".join(linecache.getlines(one.file)))
    except SyntaxError:
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and node.orelse:
            sides = [
                (_contains(node.body, place.line), _contains(node.orelse, place.line))
                for place in (one, other)
            ]
            if sorted(sides) == [(False, True), (True, False)]:
                return True
    return False


def _contains(body: list[ast.stmt], line: int) -> bool:
    return body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno)
