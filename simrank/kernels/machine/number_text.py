"""Numbers of programs and bytes as text, for reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_SHOWN = 8  # of programs, bytes and values, in reports


def first_few(result: Sequence[object]) -> str:
    """Return the first items as text, for example `0, 16, 32`."""
    return ", ".join(map(str, result[:MAX_SHOWN])) + ", ..." * (len(result) > MAX_SHOWN)


def programs_text(ids: Sequence[int]) -> str:
    """Return program ids as text, for example `program 0, 1`."""
    return f"program {first_few(ids)}"


def ids_text(ids: list[int]) -> str:
    """Return numbers as ranges, for example `0-3, 7`."""
    parts: list[str] = []
    start = previous = ids[0]
    for number in [*ids[1:], -1]:
        if number == previous + 1:
            previous = number
            continue
        parts.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = number
    return ", ".join(parts)


def waiting_text(lows: dict[int, int], changes: list[str]) -> str:
    """Return the text of waiting programs and their bytes.

    Args:
        lows: By program, the first byte that it waits for.
        changes: From which value to which, where that is known.
    """
    verb = "program {} waits" if len(lows) == 1 else "programs {} wait"
    starts = list(dict.fromkeys(lows.values()))
    bytes_ = f"byte{'s' * (len(starts) > 1)} {first_few(starts)}"
    values = f" from {first_few(changes)}" if changes else ""
    return f"{verb.format(ids_text(list(lows)))} for a change of {bytes_}{values}"
