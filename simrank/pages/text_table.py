"""Tables as plain text, whole at any width: for output that is read by pipes and in reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table: columns right-aligned, the last one as it is.

    Args:
        rows: Cells of equal number, the head first.
    """
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = []
    for *cells, last in rows:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=False)]
        lines.append("  ".join([*padded, last]).rstrip())
    return lines
