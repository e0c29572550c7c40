"""Reports as one HTML file each, with pictures: start with `document`, then `chart`."""

from simrank.pages.chart import Bar, Curve, Point, bars, beside, chart, pictures
from simrank.pages.document import (
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
