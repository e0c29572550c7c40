"""Verdicts as text and as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simrank.errors import ranks_text
from simrank.equal.judge import BACKWARD, FORWARD

if TYPE_CHECKING:
    from simrank.equal.judge import Found, Verdict

_MAX_UNALIGNED = 3  # Named in a line.


def verdict_text(verdict: Verdict) -> str:
    """Return `ok dp4: ...` or `FAIL dp2 x tp2: ...`, a line."""
    if verdict.found is not None:
        return f"FAIL {verdict.layout}: {found_text(verdict.found)}{_compared_text(verdict)}"
    count = len(verdict.unaligned)
    text = (
        f"ok {verdict.layout}: {verdict.num_compared} tensors, "
        f"worst {verdict.worst:.2g} of tolerance, {count} not aligned"
    )
    if count:
        named = "; ".join(verdict.unaligned[:_MAX_UNALIGNED])
        text += f" ({named}{'; ...' if count > _MAX_UNALIGNED else ''})"
    return text


def found_text(found: Found) -> str:
    """Return where a layout first differs, and why."""
    parts = [f"{found.direction}, {found.module}: {found.cause}"]
    if found.axes:
        parts.append(f"axis {', '.join(found.axes)}")
    if found.ranks:
        parts.append(ranks_text(found.ranks))
    if found.hint:
        parts.append(f"{found.hint} after {found.place}" if found.place else found.hint)
    elif found.place:
        parts.append(f"at {found.place}")
    if found.step:
        parts.append(f"from step {found.step + 1} on")
    parts.append(f"relative error {found.error:.2g}")
    return "; ".join(parts)


def _compared_text(verdict: Verdict) -> str:
    """Return what was equal before the difference."""
    found = verdict.found
    if found is None or found.direction in (FORWARD,):
        return ""
    equal = "forward" if found.direction == BACKWARD else None
    return "" if equal is None else "; forward equal"


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain data; the keys are a promise."""
    found = verdict.found
    return {
        "layout": dict(verdict.layout.axes),
        "is_equal": found is None,
        "num_compared": verdict.num_compared,
        "worst_share_of_tolerance": verdict.worst,
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
        },
    }
