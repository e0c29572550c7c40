"""Looks for bugs of order: runs a program under many seeded delays, and shrinks what fails.

Each seed permutes what happens at the same simulated time and makes host calls, wakeups, operations
and transfers late, each by a bounded time. A program that is right for every order passes; one that
is not fails under some seed, and that seed replays it exactly. What ranks print under a seed is
compared with what they print without delays, but for what follows the clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from simrank.engine import TimeLimitError
from simrank.engine.delays import DEFAULT_MAX_PS, Delay, DelayPoint, Delays
from simrank.errors import SimrankError, SpawnException

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Lines = Mapping[tuple[int, str], Sequence[str]]  # By rank and stream.

MAX_SHRINK_RUNS = 200  # Assumed: as many runs again as the default search makes.
_MAX_SHOWN = 8
_RECORD_NONE: tuple[DelayPoint, ...] = ()


@dataclass(frozen=True)
class OrderFailure:
    """A failure that delays bring about.

    Attributes:
        delays: What replays it: `Context(delays=str(failure.delays))`, with the same bound.
        error: What the program raised in the replay.
        applied: The delays that are left after shrinking, with the lines they fall on.
        num_seeds: Seeds that were tried, this one included.
        num_delays: Delays of the run that failed first.
    """

    delays: Delays
    error: Exception
    applied: tuple[Delay, ...]
    num_seeds: int
    num_delays: int

    def __str__(self) -> str:
        """Return the report: the failure, and its delays."""
        return self.describe("fails")

    def describe(self, verb: str) -> str:
        """Return the report; `verb` is what the seed does."""
        seed, kept = self.delays.seed, len(self.applied)
        head = (
            f"seed {seed} {verb}, {self.num_seeds} tried: shrunk from {self.num_delays} delay(s) "
        )
        if not kept:
            return head + "to none: another order of what happens at the same time is enough"
        lines = [head + f"to {kept}:"]
        lines += [f"  {delay}" for delay in self.applied[:_MAX_SHOWN]]
        if kept > _MAX_SHOWN:
            lines.append(f"  ... and {kept - _MAX_SHOWN} more")
        return "\n".join(lines)


def search(
    run: Callable[[Delays], object],
    num_seeds: int = 200,
    *,
    first_seed: int = 1,
    max_delay_ps: int = DEFAULT_MAX_PS,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> OrderFailure | None:
    """Run a program under the delays of many seeds until one fails, and shrink that.

    Args:
        run: Runs the whole program once, in a Context that it makes with these delays:
            `with simrank.Context(..., delays=delays) as ctx: ...`. Raises where it fails.
        num_seeds: How many seeds are tried at most.
        first_seed: The first of them, from 1.
        max_delay_ps: No delay is longer, in picoseconds.
        on_progress: Called with what is done now ("seeds" or "shrinking"), how many of it are
            done, and how many there are at most.

    Returns:
        The failure, or None if no seed fails.
    """
    for number in range(num_seeds):
        if on_progress is not None:
            on_progress("seeds", number, num_seeds)
        delays = Delays(first_seed + number, max_ps=max_delay_ps)
        error = _error_of(run, delays)
        if error is not None:
            search = _Shrinking(run, delays, _kind(error), on_progress)
            return search.result(error, num_seeds=number + 1)
    return None


def _error_of(run: Callable[[Delays], object], delays: Delays) -> Exception | None:
    try:
        run(delays)
    except TimeLimitError:  # The user's limit, in wall-clock time: no matter of order.
        raise
    except Exception as error:  # noqa: BLE001 - any failure is what is looked for
        return error
    return None


def _kind(error: Exception) -> str:
    """Return the identity of a failure: the type of the first root cause."""
    if isinstance(error, SpawnException) and error.errors:
        error = next(iter(error.errors.values()))  # type: ignore[assignment]
    return type(error).__name__


class _Shrinking:
    """Leaves delays out for as long as the same failure stays (Zeller's ddmin, 2002)."""

    def __init__(
        self,
        run: Callable[[Delays], object],
        failed: Delays,
        kind: str,
        on_progress: Callable[[str, int, int], None] | None,
    ) -> None:
        self._run = run
        self._failed = failed
        self._kind = kind
        self._on_progress = on_progress
        self._num_runs = 0

    def result(self, error: Exception, *, num_seeds: int) -> OrderFailure:
        """Return the smallest failure found, run once more to record its lines."""
        points = [delay.point for delay in self._failed.applied]
        kept = self._shrink(points)
        delays = self._failed.afresh(kept)
        replayed = _error_of(self._run, delays)
        if replayed is None or _kind(replayed) != self._kind:
            # The program does not repeat by itself: it reads something outside the simulation.
            error.add_note(
                "simrank: the replay of this failure did not fail: the program depends on "
                "something outside the simulation (a global that stays, a file, the clock)"
            )
            replayed, delays = error, self._failed
        return OrderFailure(
            delays.afresh(), replayed, tuple(delays.applied), num_seeds, len(points)
        )

    def _fails(self, points: Sequence[DelayPoint]) -> bool:
        if self._on_progress is not None:
            self._on_progress("shrinking", self._num_runs, MAX_SHRINK_RUNS)
        self._num_runs += 1
        error = _error_of(self._run, self._failed.afresh(points))
        return error is not None and _kind(error) == self._kind

    def _shrink(self, points: list[DelayPoint]) -> list[DelayPoint]:
        if self._fails(_RECORD_NONE):
            return []
        num_parts = 2
        while len(points) > 1 and self._num_runs < MAX_SHRINK_RUNS:
            smaller = self._smaller(points, num_parts)
            if smaller is not None:
                num_parts = 2 if len(smaller) <= len(points) // num_parts + 1 else num_parts - 1
                num_parts = max(num_parts, 2)
                points = smaller
            elif num_parts >= len(points):
                break
            else:
                num_parts = min(2 * num_parts, len(points))
        return points

    def _smaller(self, points: list[DelayPoint], num_parts: int) -> list[DelayPoint] | None:
        """Return one of the parts, or all but one of them, that still fails; or None."""
        size = -(-len(points) // num_parts)
        parts = [points[start : start + size] for start in range(0, len(points), size)]
        rests = [[p for p in points if p not in set(part)] for part in parts]
        for candidate in [*parts, *(rests if len(parts) > 2 else [])]:
            if self._num_runs >= MAX_SHRINK_RUNS:
                return None
            if len(candidate) < len(points) and self._fails(candidate):
                return candidate
        return None


# ---- what ranks print, and the order of their calls, beside a run without delays ----

# Assumed: the first changes digits, the others units, and seconds where a delay is far longer than
# the run.
_CLOCK_SCALES = (3, 1009, 1_000_003)
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)


class DifferentOutputError(SimrankError):
    """A rank prints, or its processes return, something else under delays."""


class _Line(NamedTuple):
    """A printed line: its text without numbers, and the numbers."""

    text: str
    numbers: list[str]


def _read(line: str) -> _Line:
    shown = " ".join(line.rpartition("\r")[2].split())  # Of a progress bar, its last state.
    return _Line(_NUMBER.sub("#", shown), _NUMBER.findall(shown))


class Comparison:
    """Compares runs under delays with a run without any.

    A number that a program prints may be a time, which every delay changes. Further runs
    without delays have clocks that run faster for the program alone: what they print otherwise
    follows the clock, and is not compared in lines of the same text. They are made at the first
    difference.

    Args:
        run: Runs the program once, and returns the lines of each rank.
        seed: The seed of the Context.

    Attributes:
        num_runs: Runs under delays that were compared.
        num_reordered: Of these, those with another order of calls, by kind of shared object.
        differing: The seeds under which ranks printed something else.
    """

    def __init__(self, run: Callable[[Delays], Lines], seed: int = 0) -> None:
        self._run, self._seed = run, seed
        plain = Delays.none(seed)
        self._lines = run(plain)
        self._orders = plain.orders.digests()
        self._clocked: _Clocked | None = None
        self.num_runs = 0
        self.num_reordered = dict.fromkeys(self._orders, 0)
        self.differing: list[int] = []

    def see(self, delays: Delays) -> None:
        """Run the program under delays, and note how the run differs."""
        lines = self._run(delays)
        self.num_runs += 1
        orders = delays.orders.digests()
        for kind in orders.keys() | self._orders.keys():
            is_other = orders.get(kind) != self._orders.get(kind)
            self.num_reordered[kind] = self.num_reordered.get(kind, 0) + is_other
        if self._difference(lines) is not None:
            self.differing.append(delays.seed)

    def check(self, delays: Delays) -> None:
        """Run the program under delays.

        Raises:
            DifferentOutputError: Ranks print something else.
        """
        found = self._difference(self._run(delays))
        if found is not None:
            raise DifferentOutputError(found)

    def describe_orders(self, max_delay: str) -> list[str]:
        """Return report lines: how many runs had another order of calls, of which kind none."""
        if not self.num_reordered:
            return ["ranks share nothing whose order of calls is followed"]
        counted = sorted(self.num_reordered.items())
        counts = ", ".join(f"{kind} {number}" for kind, number in counted)
        lines = [f"of {self.num_runs} run(s), so many had another order of calls: {counts}"]
        same = [kind for kind, number in counted if not number]
        if same:
            lines.append(
                f"no run had another order of calls on {', '.join(same)}: the program orders them, "
                f"or they are further apart than delays of {max_delay} (--max-delay)"
            )
        return lines

    def _difference(self, lines: Lines) -> str | None:
        """Return the first line that differs, and follows no clock, as text for a report."""
        if lines == self._lines:
            return None
        if self._clocked is None:
            self._clocked = _Clocked(self._lines)
            for scale in _CLOCK_SCALES:
                self._learn(self._clocked, Delays.none(self._seed, clock_scale=scale))
        for key in sorted(lines.keys() | self._lines.keys()):
            own, other = self._lines.get(key, ()), lines.get(key, ())
            number = self._clocked.first_other(key, own, other)
            if number is not None:
                shown = [
                    repr(each[number]) if number < len(each) else "nothing" for each in (own, other)
                ]
                return (
                    f"line {number + 1} of rank {key[0]} on {key[1]} (suspected) depends on the "
                    f"order of calls\n  without delays: {shown[0]}\n  with delays:    {shown[1]}"
                )
        return None

    def _learn(self, clocked: _Clocked, delays: Delays) -> None:
        """Run with another clock; a program that fails then checks times: nothing is compared."""
        error = _error_of(lambda delays: clocked.learn(self._run(delays)), delays)
        clocked.is_all |= error is not None


class _Clocked:
    """Lines and numbers of a run's output that follow the clock.

    Attributes:
        is_all: Whether everything may.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._streams: set[tuple[int, str]] = set()  # With another number of lines.
        self._texts: set[str] = set()
        self._places: set[tuple[tuple[int, str], int]] = set()
        self._numbers: set[tuple[str, int]] = set()  # In lines of a text, by position.
        self.is_all = False

    def learn(self, lines: Lines) -> None:
        """Add what differs in a run that differs in its clocks alone."""
        for key in lines.keys() | self._lines.keys():
            own, other = self._lines.get(key, ()), lines.get(key, ())
            if len(own) != len(other):
                self._streams.add(key)
            for place, pair in enumerate(zip(own, other, strict=False)):
                first, second = map(_read, pair)
                if first.text != second.text:
                    self._texts |= {first.text, second.text}
                    self._places.add((key, place))
                    continue
                for position, (one, two) in enumerate(
                    zip(first.numbers, second.numbers, strict=True)
                ):
                    if one != two:
                        self._numbers.add((first.text, position))

    def first_other(
        self, key: tuple[int, str], own: Sequence[str], other: Sequence[str]
    ) -> int | None:
        """Return the number of the first line of a stream that differs, or None."""
        if self.is_all or key in self._streams:
            return None
        for place, (one, two) in enumerate(zip_longest(own, other)):
            if one is None or two is None:
                return place
            if one != two and (key, place) not in self._places and self._is_other(one, two):
                return place
        return None

    def _is_other(self, one: str, two: str) -> bool:
        first, second = _read(one), _read(two)
        if self._texts & {first.text, second.text}:
            return False
        if first.text != second.text:
            return True
        pairs = enumerate(zip(first.numbers, second.numbers, strict=True))
        return any(a != b and (first.text, place) not in self._numbers for place, (a, b) in pairs)
