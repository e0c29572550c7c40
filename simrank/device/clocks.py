"""Vector clocks: what something that does one thing after another is known to be behind."""

from __future__ import annotations

Clock = dict[int, int]  # Number of another -> how many of its steps are known to be over.
ALL_DEVICES = -1  # Among the devices that see what was handed to a flag.


def join(clock: Clock, other: Clock) -> None:
    """Order what a clock is of behind all that another one is behind."""
    for number, step in other.items():
        if clock.get(number, 0) < step:
            clock[number] = step
