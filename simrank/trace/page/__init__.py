"""Reports as one HTML file each, with pictures: start with `document`, then `chart`."""

from simrank.trace.page.chart import Bar, Curve, Point, bars, beside, chart, pictures
from simrank.trace.page.document import (
    document,
    folded,
    folded_table,
    grade,
    heat,
    notes,
    section,
    table,
)

__all__ = [
    "Bar",
    "Curve",
    "Point",
    "bars",
    "beside",
    "chart",
    "document",
    "folded",
    "folded_table",
    "grade",
    "heat",
    "notes",
    "pictures",
    "section",
    "table",
]
