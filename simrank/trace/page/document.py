"""A page that is one file: it opens without a network, and nothing in it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.trace.page.markup import Markup, element, joined
from simrank.trace.page.style import css

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NOTHING_ELSE = "default-src 'none'; style-src 'unsafe-inline'"  # What a browser may load or run.


def document(
    title: str,
    facts: Sequence[tuple[str, str]],
    body: Iterable[Markup],
    *,
    partial: str | None = None,
    report: str | None = None,
    num_curves: int = 0,
) -> str:
    """Return a whole page.

    Args:
        title: Its heading, and the name of the window.
        facts: What was run, as names and values.
        body: What follows.
        partial: What is missing, if something is.
        report: The report of a failed run, shown before everything else.
        num_curves: Of the picture that has most.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_NOTHING_ELSE),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Markup(css(num_curves))),
    )
    listed = [joined(element("dt", name), element("dd", value)) for name, value in facts]
    said = [] if partial is None else [element("p", f"Partial: {partial}", class_="partial")]
    if report is not None:
        said.insert(0, element("pre", report, class_="report"))
    parts = (element("h1", title), *said, element("dl", *listed), *body)
    page = element("html", head, "\n", element("body", element("main", *parts)), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def section(title: str, *parts: Markup) -> Markup:
    """Return a part of a page under a heading."""
    return joined("\n", element("section", element("h2", title), *parts))


def notes(lines: Iterable[str]) -> Markup:
    """Return remarks, or nothing where there are none."""
    items = [element("li", line) for line in lines]
    return element("ul", *items, class_="notes") if items else Markup("")


def folded(title: str, *parts: Markup) -> Markup:
    """Return a section that opens at a click on its title."""
    return joined("\n", element("details", element("summary", title), *parts))


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], class_: str = "rows"
) -> Markup:
    """Return a table that scrolls if it is too large.

    Args:
        title: The contents, for screen readers.
        columns: Their names, with units.
        rows: Their cells: texts, or whole elements.
        class_: What it looks like.
    """
    head = element("tr", *(element("th", name, scope="col") for name in columns))
    lines = [joined("\n", element("tr", *map(_cell, row))) for row in rows]
    drawn = element("table", element("thead", head), element("tbody", *lines), class_=class_)
    # Who has no mouse scrolls what has the focus.
    return element("div", drawn, class_="scroll", tabindex="0", role="region", aria_label=title)


def _cell(cell: str) -> Markup:
    return cell if isinstance(cell, Markup) else element("td", cell)


def folded_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Return a table that is shown when its title is opened.

    Args:
        title: What it shows.
        columns: Their names, with units.
        rows: Their cells.
    """
    return folded(title, table(title, columns, rows))


def heat(text: str, value: float | None, steps: Sequence[float]) -> Markup:
    """Return a table cell whose colour shows a value's distance and sign from zero.

    Args:
        text: What it says.
        value: What its colour shows; None: nothing.
        steps: From which distances on it has the next colour: four at most.
    """
    level = sum(abs(value) >= step for step in steps) if value is not None else 0
    side = "low" if value is not None and value < 0 else "high"
    return element("td", text, class_=f"{side}{level}" if level else None)


def grade(text: str, value: float, steps: Sequence[float]) -> Markup:
    """Return a table cell from green to red.

    Args:
        text: What it says.
        value: What its colour shows.
        steps: From which values on it is redder: four at most; below the first it is green.
    """
    level = sum(value >= step for step in steps)
    return element("td", text, class_=f"high{level}" if level else "right")
