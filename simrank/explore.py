"""Looks for bugs of order: runs a program under many seeded delays, and shrinks what fails.

Each seed permutes what happens at the same simulated time and makes host calls, wakeups, operations
and transfers late, each by a bounded time. A program that is right for every order passes; one that
is not fails under some seed, and that seed replays it exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simrank.engine import TimeLimitError
from simrank.engine.delays import DEFAULT_MAX_PS, Delay, Delays, Point
from simrank.errors import SpawnException

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_SHRINK_RUNS = 200  # Assumed: as many runs again as the default search makes.
_MAX_SHOWN = 8
_RECORD_NONE: tuple[Point, ...] = ()


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
        seed, kept = self.delays.seed, len(self.applied)
        head = f"seed {seed} fails, {self.num_seeds} tried: shrunk from {self.num_delays} delay(s) "
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

    def _fails(self, points: Sequence[Point]) -> bool:
        if self._on_progress is not None:
            self._on_progress("shrinking", self._num_runs, MAX_SHRINK_RUNS)
        self._num_runs += 1
        error = _error_of(self._run, self._failed.afresh(points))
        return error is not None and _kind(error) == self._kind

    def _shrink(self, points: list[Point]) -> list[Point]:
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

    def _smaller(self, points: list[Point], num_parts: int) -> list[Point] | None:
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
