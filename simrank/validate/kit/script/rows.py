"""Rows: one measured time each, written at once, so that what ends a run loses nothing."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    Body = Callable[[int], object]

REPEATS = 3
UNITS = ("B", "KiB", "MiB", "GiB")


class Rows:
    """The file to which a worker writes its measurements; ranks above 0 write nothing.

    Args:
        path: A file of JSON lines; None: rows are kept only.
        is_writing: Whether this rank writes.
        limit_s: Seconds after which no further item is begun.
    """

    def __init__(self, path: Path | None, limit_s: float, *, is_writing: bool = True) -> None:
        self.kept: list[dict[str, Any]] = []
        self.num_failed = 0  # Items in a row.
        self._path, self._is_writing = path, is_writing
        self._end = time.perf_counter() + limit_s

    def is_over(self) -> bool:
        """Return whether no further item is to be begun."""
        return time.perf_counter() > self._end

    def add(self, kind: str, phase: str, **facts: Any) -> None:
        """Write a row of one kind: time, fact, value, note."""
        if self._is_writing:
            self.add_of_each(kind, phase, **facts)

    def add_of_each(self, kind: str, phase: str, **facts: Any) -> None:
        """Write a row on each rank."""
        row = finite({"kind": kind, "phase": phase, **facts})
        self.kept.append(row)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def times(self, phase: str, name: str, times_us: Iterable[float], **facts: Any) -> None:
        """Write the times of one item in microseconds: the median counts."""
        each = sorted(times_us)
        median = each[len(each) // 2]
        spread = {"min_us": round(each[0], 3), "max_us": round(each[-1], 3)}
        self.add("time", phase, name=name, time_us=round(median, 3), **spread, **facts)


def finite(value: Any) -> Any:
    """Return a value with texts for numbers that JSON does not have: `nan`, `inf`."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def size_text(size_bytes: int) -> str:
    """Return `64 KiB`."""
    number, unit = float(size_bytes), 0
    while number >= 1024 and unit < len(UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:g} {UNITS[unit]}"
