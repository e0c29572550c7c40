"""Axes: where a value stands, and which values are written beside the axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simrank.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Tick = tuple[float, str]

_MOST_TICKS = 8  # Of a picture's width, without texts that touch.
_STEPS_OF_POWERS = (1, 2, 5, 10, 20, 40)  # 1 KiB and 1 MiB are among the ticks of the first four.
_MANTISSAS = ((1,), (1, 3), (1, 2, 5), tuple(range(1, 10)))
_FEWEST_TICKS = 3
_ROOM = 1.15  # Between the outermost values and the border of a picture.
_US_BY_UNIT = (("s", 1e6), ("ms", 1e3), ("us", 1.0), ("ns", 1e-3))


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values to places from 0 to 1.

    Attributes:
        title: What it shows, with the unit.
        low: The value at 0.
        high: The value at 1.
        ticks: Values that are written beside it, with their texts.
        is_log: Whether equal factors are equal distances.
        mark: The value whose line is drawn stronger, if one is.
    """

    title: str
    low: float
    high: float
    ticks: tuple[Tick, ...]
    is_log: bool = False
    mark: float | None = None

    def holds(self, value: float) -> bool:
        """Return whether a value has a place: neither infinite nor, of logarithms, zero."""
        return math.isfinite(value) and (value > 0 or not self.is_log)

    def place(self, value: float) -> float:
        """Return the position of a value, clamped to the axis."""
        if self.is_log:
            value = max(value, self.low)  # It may be zero: the low end of an interval.
            place = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            place = (value - self.low) / (self.high - self.low)
        return min(max(place, 0.0), 1.0)


def sizes_axis(sizes_bytes: Iterable[float]) -> Axis:
    """Return a logarithmic axis of sizes, with powers of two as texts: 1 KiB, 32 KiB, 1 MiB."""
    exponents = [math.log2(size) for size in sizes_bytes if size >= 1] or [0.0]
    low, high = math.floor(min(exponents)), math.ceil(max(exponents))
    if low == high:
        low, high = max(low - 1, 0), high + 1
    step = _STEPS_OF_POWERS[-1]
    for each in reversed(_STEPS_OF_POWERS):
        if (high - low) / each < _MOST_TICKS:
            step = each
    powers = range(-(-low // step) * step, high + 1, step)
    ticks = tuple((2.0**power, format_size(2**power)) for power in powers)
    return Axis("size", 2.0**low, 2.0**high, ticks, is_log=True)


def times_axis(times_us: Iterable[float], title: str = "time") -> Axis:
    """Return a logarithmic axis of times in microseconds."""
    found = [time_us for time_us in times_us if _is_above_zero(time_us)] or [1.0]
    low, high = min(found) / _ROOM, max(found) * _ROOM
    return Axis(title, low, high, _log_ticks(low, high, time_text), is_log=True)


def powers_axis(values: Iterable[float], title: str) -> Axis:
    """Return a logarithmic axis with powers of ten as texts."""
    found = [value for value in values if _is_above_zero(value)] or [1.0]
    low, high = min(found) / _ROOM, max(found) * _ROOM
    return Axis(title, low, high, _log_ticks(low, high, lambda value: f"{value:g}"), is_log=True)


def ratios_axis(ratios: Iterable[float], title: str) -> Axis:
    """Return a logarithmic axis of ratios, as far below 1 as above, with powers of two as texts."""
    logs = [abs(math.log2(ratio)) for ratio in ratios if _is_above_zero(ratio)]
    most = max(math.ceil(max(logs, default=0.0)), 1)
    step = -(-2 * most // _MOST_TICKS)
    powers = range(-most // step * step, most + 1, step)
    ticks = tuple(
        (2.0**power, f"x {2.0**power:g}" if power >= 0 else f"x 1/{2**-power}")
        for power in powers
        if -most <= power
    )
    return Axis(title, 2.0**-most, 2.0**most, ticks, is_log=True, mark=1.0)


def linear_axis(values: Iterable[float], title: str) -> Axis:
    """Return an axis from zero to a little above the largest value."""
    largest = max((value for value in values if _is_above_zero(value)), default=1.0)
    step = _step(largest)
    count = math.ceil(largest / step - 1e-9)
    ticks = tuple((step * index, f"{step * index:.6g}") for index in range(count + 1))
    return Axis(title, 0.0, step * count, ticks)


def time_text(time_us: float) -> str:
    """Return a time with four digits and the unit that suits it, for example `16.51 us`."""
    for unit, scale in _US_BY_UNIT:
        if time_us >= scale:
            return f"{time_us / scale:.4g} {unit}"
    return f"{time_us:.4g} us"


def _is_above_zero(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _log_ticks(low: float, high: float, text: Callable[[float], str]) -> tuple[Tick, ...]:
    """Return ticks at powers of ten, between them too where these are too few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = -(-len(decades) // _MOST_TICKS)
    values: list[float] = []
    for mantissas in _MANTISSAS:
        found = [float(f"{m}e{power}") for power in decades[::every] for m in mantissas]
        values = [value for value in found if low <= value <= high]
        if len(values) >= _FEWEST_TICKS:
            break
    else:  # A narrow range: as on a linear axis.
        step = _step(high - low)
        first = math.ceil(low / step)
        values = [step * index for index in range(first, math.floor(high / step) + 1)]
    return tuple((value, text(value)) for value in values)


def _step(length: float) -> float:
    """Return a round number of which four to eight make a length."""
    power = 10.0 ** math.floor(math.log10(length / 4))
    return max(m for m in (power, 2 * power, 2.5 * power, 5 * power) if m <= length / 4 * 1.0001)
