"""Stacked bars with names, as a table with drawn cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simrank.trace.page.axes import linear_axis
from simrank.trace.page.markup import Markup, element, number

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEIGHT = 18
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
    ticks = [
        element("text", text, x=f"{number(100 * axis.place(value))}%", y=12, text_anchor="middle")
        for value, text in axis.ticks
    ]
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
        place = {"x": f"{number(left)}%", "width": f"{number(width)}%", "height": _HEIGHT}
        text = f"{row.label}: {name} {value:.6g} {unit}"
        rects.append(element("rect", element("title", text), **place, class_=_class(index)))
        left += width
    said = ", ".join(f"{n} {v:.6g} {unit}" for n, v in zip(names, row.parts, strict=True))
    drawn = element("svg", *rects, height=_HEIGHT, role="img", aria_label=said)
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
