"""Charts as SVG: curves over size, bars, axes, and strips of choices below."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final

from simrank.pages.document import (
    DASHES,
    FONT,
    LIGHT,
    NARROW_BARS,
    NARROW_FONT,
    NUM_LOOKS,
    WIDE,
    Markup,
    element,
    joined,
    number,
)
from simrank.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_WIDTH, _HEIGHT = 580, 340  # Of the whole without strips; all in the units of the picture.
_SMALL = (380, 250)  # Of one of many pictures.
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 24, 30, 42  # The sides are wider where texts need it.
_STRIP, _STRIP_GAP = 20, 3
_LETTER, _LINE = 0.62, 1.2  # Assumed: mean width of a letter, height of a line, in font sizes.
_GAP = 0.5  # Between two texts, in font sizes.
_DOT = 3.0


@dataclass(frozen=True, slots=True)
class Point:
    """A value of a curve.

    Attributes:
        x: Where.
        y: The value.
        text: The exact numbers, shown while the pointer is on it.
        low: The lower end of its interval, or None.
        high: The upper one.
        what: What was chosen there; a change is marked.
    """

    x: float
    y: float
    text: str
    low: float | None = None
    high: float | None = None
    what: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """Values that are joined by a line, or measured ones, which are not.

    Attributes:
        label: Its name in the legend.
        points: Its values, by rising x.
        look: Its colour and dashes, as a number; None for that of text.
        is_measured: Whether it is shown as points alone.
    """

    label: str
    points: tuple[Point, ...]
    look: int | None
    is_measured: bool = False


def chart(
    title: str,
    axes: tuple[Axis, Axis],
    curves: Sequence[Curve],
    *,
    source: str = "",
    is_small: bool = False,
) -> Markup:
    """Return a picture of curves, with bands for their intervals.

    Args:
        title: What it shows.
        axes: Of x and y.
        curves: What is drawn; values that an axis cannot hold are left out.
        source: Where measured values come from, shown under the title.
        is_small: Whether it is one of many.
    """
    width, height = _SMALL if is_small else (_WIDTH, _HEIGHT)
    picture = _Picture(axes, width, height, FONT if is_small else NARROW_FONT)
    groups: list[Markup] = []
    strips: list[Markup] = []
    for index, curve in enumerate(curves):
        points = tuple(p for p in curve.points if axes[0].holds(p.x) and axes[1].holds(p.y))
        around = {"class_": " ".join(("s" + str(index), *_classes(curve)))}
        groups.append(element("g", *picture.drawn(points, curve), **around))
        if len({point.what for point in points}) > 1:
            strips.append(element("g", *picture.strip(points, curve.label, len(strips)), **around))
    height += len(strips) * (_STRIP + _STRIP_GAP)
    label = f"{title}: {', '.join(curve.label for curve in curves)}"
    drawn = element(
        "svg",
        *picture.frame(),
        *groups,
        *strips,
        viewBox=f"0 0 {width} {height}",
        class_="plot small" if is_small else "plot",
        role="img",
        aria_label=label,
    )
    said = [element("small", source)] if source else []
    return element("figure", element("figcaption", title, *said), drawn)


def legend(curves: Sequence[Curve]) -> Markup:
    """Return the names of curves, each with its look and a box that hides the curve."""
    labels = []
    for index, curve in enumerate(curves):
        box = element("input", type="checkbox", class_=f"t{index}", checked=True)
        sample = () if curve.is_measured else (_line("M0 7H34", curve.look),)
        dot = _dot(17.0, 7.0, curve)
        look = {"class_": " ".join(_classes(curve)), "aria_hidden": "true"}
        shown = element("svg", *sample, dot, width=34, height=14, **look)
        labels.append(element("label", box, shown, curve.label))
    return element("div", *labels, class_="legend")


class _Picture:
    """The places of a picture, whose texts fit in the font of a narrow screen, too."""

    def __init__(
        self, axes: tuple[Axis, Axis], width: int, height: int, narrow_font: float
    ) -> None:
        self._x, self._y = axes
        self._height, self._narrow_font = height, narrow_font
        of_x, of_y = ([_length(text, narrow_font) for _, text in axis.ticks] for axis in axes)
        self._left = max(_LEFT, 6 + max(of_y, default=0))
        self._end = width - max(_RIGHT, max(of_x, default=0) / 2)

    def at_x(self, value: float) -> float:
        return self._left + self._x.place(value) * (self._end - self._left)

    def at_y(self, value: float) -> float:
        return self._height - _BOTTOM - self._y.place(value) * (self._height - _TOP - _BOTTOM)

    def frame(self) -> list[Markup]:
        """Return the axes with their titles, and a line at each tick."""
        bottom, parts = self._height - _BOTTOM, []
        fonts = FONT, self._narrow_font
        of_x = _labels(self._x, self._end - self._left, fonts)
        for (value, text), class_ in zip(self._x.ticks, of_x, strict=True):
            x = self.at_x(value)
            parts.append(element("path", d=f"M{number(x)} {_TOP}V{bottom}", class_="grid"))
            if class_ is not _HIDDEN:
                at = {"x": x, "y": bottom + 16, "text_anchor": "middle"}
                parts.append(element("text", text, **at, class_=class_))
        across = f"H{number(self._end)}"
        of_y = _labels(self._y, bottom - _TOP, fonts, are_stacked=True)
        for (value, text), class_ in zip(self._y.ticks, of_y, strict=True):
            y = self.at_y(value)
            line = {"class_": "grid mark" if value == self._y.mark else "grid"}
            path = f"M{number(self._left)} {number(y)}{across}"
            parts.append(element("path", d=path, **line))
            if class_ is not _HIDDEN:
                at = {"x": self._left - 6, "y": y + 4, "text_anchor": "end"}
                parts.append(element("text", text, **at, class_=class_))
        middle = (self._left + self._end) / 2
        below = {"y": bottom + 33, "text_anchor": "middle", "class_": "title"}
        parts.append(element("text", self._x.title, x=middle, **below))
        parts.append(element("text", self._y.title, x=4, y=13, class_="title"))
        return parts

    def drawn(self, points: Sequence[Point], curve: Curve) -> list[Markup]:
        """Return a curve with its band, its points and the marks of its changes."""
        parts = []
        if not curve.is_measured and points:
            parts += self._bands(points)
            places = [f"{number(self.at_x(p.x))} {number(self.at_y(p.y))}" for p in points]
            parts.append(_line("M" + "L".join(places), curve.look))
        before = points[0].what if points else ""
        for point in points:
            has_changed, before = point.what != before, point.what
            x, y = self.at_x(point.x), self.at_y(point.y)
            parts.append(_dot(x, y, curve, point.text, has_changed=has_changed))
        return parts

    def _bands(self, points: Sequence[Point]) -> list[Markup]:
        bands = []
        for has_band, group in groupby(points, key=lambda p: p.low is not None):
            inside = list(group)
            if not has_band:
                continue
            ends = [(p.x, p.high or 0.0) for p in inside]
            ends += [(p.x, p.low or 0.0) for p in reversed(inside)]
            places = [f"{number(self.at_x(x))} {number(self.at_y(y))}" for x, y in ends]
            is_area = len(inside) > 1  # A point alone has a line from end to end.
            around = {"class_": "band"} if is_area else {"class_": "line"}
            bands.append(
                element("path", d=f"M{'L'.join(places)}{'Z' if is_area else ''}", **around)
            )
        return bands

    def strip(self, points: Sequence[Point], label: str, index: int) -> list[Markup]:
        """Return the strip of choices below the axis."""
        top = self._height + index * (_STRIP + _STRIP_GAP)
        places = [self.at_x(point.x) for point in points]
        middles = [(one + other) / 2 for one, other in pairwise(places)]
        borders = [places[0], *middles, places[-1]]
        parts, first = [], 0
        for what, group in groupby(points, key=lambda p: p.what):
            last = first + len(list(group))
            left, width = borders[first], borders[last] - borders[first]
            title = element("title", f"{label}: {what}")
            size = {"width": width, "height": _STRIP, "class_": "strip"}
            parts.append(element("rect", title, x=left, y=top, **size))
            for text in (what, what.rpartition(" ")[2]):  # With its protocol, or that alone.
                if _length(text, FONT) + 6 <= width:
                    at = {"x": left + width / 2, "y": top + _STRIP / 2, "text_anchor": "middle"}
                    fits = _length(text, self._narrow_font) + 6 <= width
                    look = {"class_": "what" if fits else f"what {WIDE}"}
                    over = {"dominant_baseline": "central", "pointer_events": "none"}
                    parts.append(element("text", text, **at, **look, **over))
                    break
            first = last
        return parts


def _classes(curve: Curve) -> tuple[str, ...]:
    look = "ink" if curve.look is None else f"k{curve.look % len(LIGHT)}"
    return (look, "measured") if curve.is_measured else (look,)


def _line(path: str, look: int | None) -> Markup:
    dashes = DASHES[(look or 0) % NUM_LOOKS // len(LIGHT)]
    return element("path", d=path, class_="line", stroke_dasharray=dashes or None)


_SHAPES = (  # Around 0; each colour has one of its own.
    None,
    "M-3 -3H3V3H-3Z",
    "M0 -4L4 3H-4Z",
    "M0 -4L4 0L0 4L-4 0Z",
    "M0 4L4 -3H-4Z",
    "M-4 -1.3H-1.3V-4H1.3V-1.3H4V1.3H1.3V4H-1.3V1.3H-4Z",
)


def _dot(x: float, y: float, curve: Curve, text: str = "", *, has_changed: bool = False) -> Markup:
    """Return the mark of a value: a diamond if measured, a ring at a change of choice."""
    inside = (element("title", text),) if text else ()
    if has_changed:
        return element("circle", *inside, cx=x, cy=y, r=_DOT + 2, class_="change")
    shape = _SHAPES[3] if curve.is_measured else _SHAPES[(curve.look or 0) % len(_SHAPES)]
    if shape is None:
        return element("circle", *inside, cx=x, cy=y, r=_DOT, class_="dot")
    moved = f"translate({number(x)} {number(y)})"
    return element("path", *inside, d=shape, transform=moved, class_="dot")


def pictures(curves: Sequence[Curve], *charts: Markup) -> Markup:
    """Return charts of the same curves beside each other, under one legend."""
    shown = beside(*charts)
    return element("div", legend(curves), joined("\n", shown), class_="pictures")


def beside(*charts: Markup, are_small: bool = False) -> Markup:
    """Return charts beside each other, as many in a row as fit."""
    return element("div", *charts, class_="charts small" if are_small else "charts")


# ---- axes: where a value stands, and which values are written beside the axis ----

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


_HIDDEN: Final = "hidden"  # Of a tick whose text fits on no screen; its line is drawn.


def _labels(
    axis: Axis, length: float, fonts: tuple[float, float], *, are_stacked: bool = False
) -> list[str | None]:
    """Return the classes of the texts: None, `WIDE` if a narrow screen has no room, or hidden.

    Args:
        axis: With the ticks; every n-th text is shown, the smallest n at which none touch.
        length: Of the axis, in the units of the fonts.
        fonts: Font sizes on wide screens and on narrow ones.
        are_stacked: Whether the texts stand above each other.
    """
    wide, narrow = (_every(axis, length, font, are_stacked=are_stacked) for font in fonts)
    narrow = -(-narrow // wide) * wide
    count = len(axis.ticks)
    return [None if i % narrow == 0 else WIDE if i % wide == 0 else _HIDDEN for i in range(count)]


def _every(axis: Axis, length: float, font: float, *, are_stacked: bool) -> int:
    places = [axis.place(value) * length for value, _ in axis.ticks]
    sizes = [_LINE * font if are_stacked else _length(text, font) for _, text in axis.ticks]
    gap = 0.0 if are_stacked else _GAP * font
    for every in range(1, len(places)):
        shown = list(zip(places, sizes, strict=True))[::every]
        if all((a + b) / 2 + gap <= y - x for (x, a), (y, b) in pairwise(shown)):
            return every
    return max(len(places), 1)


def _length(text: str, font: float) -> float:
    return len(text) * _LETTER * font


def _step(length: float) -> float:
    """Return a round number of which four to eight make a length."""
    power = 10.0 ** math.floor(math.log10(length / 4))
    return max(m for m in (power, 2 * power, 2.5 * power, 5 * power) if m <= length / 4 * 1.0001)


# ---- stacked bars with names, as a table with drawn cells ----

_BAR_HEIGHT = 18
_AXIS_HEIGHT = 34


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    Attributes:
        label: What it is about.
        parts: Its values, in the order of the legend.
        total: Written behind it.
    """

    label: str
    parts: tuple[float, ...]
    total: str


def bars(unit: str, names: Sequence[str], rows: Sequence[Bar]) -> Markup:
    """Return bars from zero, on one axis.

    Args:
        unit: Of all values.
        names: Of the parts, in order.
        rows: The bars.
    """
    axis = linear_axis([sum(row.parts) for row in rows], unit)
    lines = [_row(row, names, unit, axis.high) for row in rows]
    classes = _labels(axis, NARROW_BARS, (FONT, FONT))
    ticks = []
    for (value, text), class_ in zip(axis.ticks, classes, strict=True):
        if class_ is not _HIDDEN:
            at = {"x": f"{number(100 * axis.place(value))}%", "y": 12}
            ticks.append(element("text", text, **at, text_anchor="middle" if value else None))
    ticks.append(element("text", unit, x="50%", y=28, text_anchor="middle"))
    scale = element("svg", *ticks, height=_AXIS_HEIGHT, class_="axis", aria_hidden="true")
    last = element("tr", element("td", ""), element("td", scale), element("td", ""))
    table = element("table", element("tbody", *lines, last), class_="bars")
    shown = [_legend(names)] if len(names) > 1 else []
    return element("figure", *shown, table)


def _row(row: Bar, names: Sequence[str], unit: str, longest: float) -> Markup:
    rects, left = [], 0.0
    for index, (name, value) in enumerate(zip(names, row.parts, strict=True)):
        width = max(value, 0.0) / longest * 100
        place = {"x": f"{number(left)}%", "width": f"{number(width)}%", "height": _BAR_HEIGHT}
        text = f"{row.label}: {name} {value:.6g} {unit}"
        rects.append(element("rect", element("title", text), **place, class_=_class(index)))
        left += width
    said = ", ".join(f"{n} {v:.6g} {unit}" for n, v in zip(names, row.parts, strict=True))
    drawn = element("svg", *rects, height=_BAR_HEIGHT, role="img", aria_label=said)
    return element(
        "tr", element("th", row.label, scope="row"), element("td", drawn), element("td", row.total)
    )


def _legend(names: Sequence[str]) -> Markup:
    labels = []
    for index, name in enumerate(names):
        sample = element("rect", width=14, height=14, fill="currentColor", class_=_class(index))
        drawn = element("svg", sample, width=14, height=14, aria_hidden="true")
        labels.append(element("label", drawn, name))
    return element("div", *labels, class_="legend")


def _class(index: int) -> str:
    return f"k{index}"
