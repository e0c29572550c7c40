"""A page of verdicts: a matrix of layouts and modules, from green to red."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.equality.report import found_text
from simrank.equality.verdict import MODEL
from simrank.trace.page import document, grade, notes, section, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.equality.verdict import Verdict
    from simrank.trace.page.document import Markup

_STEPS = (1.0, 1e4, 1e8, 1e12)  # Of the tolerance; in float64 a fault is far above the second.


def equal_page(program: str, verdicts: Sequence[Verdict], facts: Sequence[tuple[str, str]]) -> str:
    """Return the page; equal verdicts give equal text.

    Args:
        program: The file.
        verdicts: Of the layouts.
        facts: Of the run, by name.
    """
    return document(f"simrank equal: {program}", facts, [_first(verdicts), _matrix(verdicts)])


def _first(verdicts: Sequence[Verdict]) -> Markup:
    """Return a line per layout."""
    rows = []
    for verdict in verdicts:
        if verdict.found is None:
            count, worst = verdict.tally.count, verdict.tally.worst
            text = f"equal: {count} tensors, worst {worst:.2g} of tolerance"
        else:
            text = found_text(verdict.found)
        rows.append((str(verdict.layout), "ok" if verdict.found is None else "FAIL", text))
    said = [f"{v.layout}: {note}" for v in verdicts for note in (*_unaligned(v), *v.notes)]
    columns = ("layout", "", "first difference")
    return section("Layouts", table("Layouts", columns, rows, "rows texts"), notes(said))


def _unaligned(verdict: Verdict) -> list[str]:
    if not verdict.unaligned:
        return []
    return [f"{len(verdict.unaligned)} tensors not aligned: {'; '.join(verdict.unaligned)}"]


def _matrix(verdicts: Sequence[Verdict]) -> Markup:
    """Return the largest error of each module on each layout."""
    modules = sorted({m for v in verdicts for m in v.tally.shares}, key=_key)
    rows = [(module, *(_cell(verdict, module) for verdict in verdicts)) for module in modules]
    columns = ("module", *(str(verdict.layout) for verdict in verdicts))
    text = (
        "The largest error of a module's tensors, of its parameters and of their gradients, as a "
        "part of the tolerance. Above 1 it is wrong; what follows a fault is wrong, too. An empty "
        "cell was not compared."
    )
    return section("Modules", notes([text]), table("Modules", columns, rows, "rows named"))


def _cell(verdict: Verdict, module: str) -> Markup | str:
    share = verdict.tally.shares.get(module)
    if share is None:
        return "not aligned" if module in verdict.tally.shares else ""
    return grade(f"{share:.1e}", share, _STEPS)


def _key(module: str) -> tuple[object, ...]:
    """Return the order of modules: numbers by value, the model first."""
    if module == MODEL:
        return ()
    return tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in module.split("."))
