"""Verdicts as text and as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.equality.verdict import BACKWARD, RACE, RUN
from simrank.errors import ranks_text

if TYPE_CHECKING:
    from simrank.equality.verdict import Found, Verdict

_MAX_UNALIGNED = 3  # Named in a line.


def verdict_text(verdict: Verdict) -> str:
    """Return `ok dp4: ...` or `FAIL dp2 x tp2: ...`, a line."""
    if verdict.found is not None:
        return f"FAIL {verdict.layout}: {found_text(verdict.found)}"
    count = len(verdict.unaligned)
    text = (
        f"ok {verdict.layout}: {verdict.tally.count} tensors, "
        f"worst {verdict.tally.worst:.2g} of tolerance, {count} not aligned"
    )
    if count:
        named = "; ".join(verdict.unaligned[:_MAX_UNALIGNED])
        text += f" ({named}{'; ...' if count > _MAX_UNALIGNED else ''})"
    return text


def details(verdict: Verdict, *, lists_modules: bool = False) -> list[str]:
    """Return the lines below that of a verdict: notes, and the report of an error.

    Args:
        verdict: The verdict.
        lists_modules: Whether to add a line for each module with a wrong tensor, parameter or
            gradient: the first difference, and what follows from it.
    """
    report = [] if verdict.found is None else verdict.found.report.strip().splitlines()
    lines = [*verdict.notes, *report]
    if lists_modules and verdict.found is not None:
        lines += [
            f"wrong: {module}, {share:.2g} times its tolerance"
            for module, share in verdict.tally.shares.items()
            if share is not None and share > 1
        ]
    return lines


def found_text(found: Found) -> str:
    """Return the text of a first difference: its place, and its cause."""
    parts = [f"{found.direction}, {found.module}: {found.cause}"]
    if found.axes:
        parts.append(f"axis {', '.join(found.axes)}")
    if found.ranks:
        word = "rank" if len(found.ranks) == 1 else "ranks"
        parts.append(f"{word} {ranks_text(found.ranks)}")
    if found.hint:
        after = f" after {found.place}" if found.place else ""
        parts.append(f"expected {found.hint}{after}")
    elif found.place:
        parts.append(f"at {found.place}")
    if found.calls:
        parts.append(f"collectives there: {found.calls}")
    if found.step:
        parts.append(f"from step {found.step + 1} on")
    if found.direction not in (RUN, RACE):
        parts.append(f"relative error {found.error:.2g}")
    if found.direction == BACKWARD:
        parts.append("forward equal")
    return "; ".join(parts)


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain data; the keys are a promise."""
    found = verdict.found
    return {
        "layout": dict(verdict.layout.axes),
        "is_equal": found is None,
        "num_compared": verdict.tally.count,
        "worst_share_of_tolerance": verdict.tally.worst,
        "not_aligned": verdict.unaligned,
        "notes": verdict.notes,
        "found": None
        if found is None
        else {
            "direction": found.direction,
            "module": found.module,
            "axes": list(found.axes),
            "cause": found.cause,
            "relative_error": found.error,
            "ranks": list(found.ranks),
            "step": found.step + 1,
            "place": found.place,
            "hint": found.hint,
            "calls": found.calls,
        },
    }
