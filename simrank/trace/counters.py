"""Counter tracks of a timeline: what rises and falls, added up from its changes."""

from __future__ import annotations

from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any

from simrank.units import PS_PER_US

_DIGITS = 6  # Of a sum of rates, which leaves a trace of rounding where it should be zero.


class Counters:
    """Changes of values over time, in any order; one track per process and name."""

    def __init__(self) -> None:
        self._changes: dict[tuple[int, str], list[tuple[int, float]]] = {}
        self._units: dict[tuple[int, str], str] = {}

    def add(self, process: int, name: str, unit: str, time_ps: int, change: float) -> None:
        """Let a value rise or fall.

        Args:
            process: Number of the process that shows it.
            name: Of the track.
            unit: What is counted, for example `bytes`.
            time_ps: When, in picoseconds.
            change: By how much.
        """
        self._changes.setdefault((process, name), []).append((time_ps, change))
        self._units[process, name] = unit

    def span(
        self, process: int, name: str, unit: str, span_ps: tuple[int, int], value: float
    ) -> None:
        """Add a value from one time to another."""
        self.add(process, name, unit, span_ps[0], value)
        self.add(process, name, unit, span_ps[1], -value)

    def is_known(self, process: int, name: str) -> bool:
        """Whether a track has begun."""
        return (process, name) in self._changes

    def end_all(self, time_ps: int) -> None:
        """Let every value fall to zero: what is counted is gone."""
        for (process, name), changes in self._changes.items():
            left = sum(change for _, change in changes)
            if round(left, _DIGITS):
                self.add(process, name, self._units[process, name], time_ps, -left)

    def copy(self) -> Counters:
        """Return counters of their own with the same changes."""
        copied = Counters()
        copied._changes = {track: list(changes) for track, changes in self._changes.items()}
        copied._units = dict(self._units)
        return copied

    def processes(self) -> set[int]:
        """Return the processes that have a track."""
        return {process for process, _ in self._changes}

    def events(self) -> list[dict[str, Any]]:
        """Return the events of the trace: each value at each time that it changes."""
        events = []
        for (process, name), changes in sorted(self._changes.items()):
            unit, before = self._units[process, name], 0.0
            ordered = sorted(changes, key=itemgetter(0))
            values = accumulate(change for _, change in ordered)
            timed = zip((time_ps for time_ps, _ in ordered), values, strict=True)
            for time_ps, at_once in groupby(timed, key=itemgetter(0)):
                value = round([value for _, value in at_once][-1], _DIGITS)
                if value != before:
                    event = {"ph": "C", "pid": process, "name": name, "ts": time_ps / PS_PER_US}
                    events.append({**event, "args": {unit: value}})
                before = value
        return events
