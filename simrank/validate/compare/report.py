"""A comparison as text, as Markdown, as a page, and as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import simrank
from simrank.errors import ranks_text, who_text
from simrank.errors.base import MAX_REPORT_LINES
from simrank.pages import document, folded_table, notes, section, table
from simrank.validate.compare.comparison import (
    COLLECTIVES,
    MESSAGES,
    RESULTS,
    call_text,
    counts_text,
    ending_text,
    ops_text,
)
from simrank.validate.compare.differences import brief
from simrank.validate.compare.program import RETURNED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from simrank.validate.compare.comparison import Finding, RunComparison
    from simrank.validate.compare.program import RankRecord, RunSide

_MAX_WAYS = 3
_WIDTH = 9


def text(found: RunComparison) -> list[str]:
    """Return the lines of a comparison."""
    lines = [f"{found.job.title} on {found.job.num_ranks} ranks, {found.job.backend}"]
    lines += [f"  {name:<{_WIDTH}} {value}" for name, value in facts(found)]
    details = [finding_text(finding) for finding in found.findings]
    if found.real is None:
        details = _calls(found.simulated.records)
    room = MAX_REPORT_LINES - 1 - len(lines)
    if len(details) > room:
        rest = len(details) - room + 1
        details[room - 1 :] = [f"and {rest} more; --report has them all"]
    return [*lines, *(f"  {line}" for line in details), verdict(found)]


def _calls(records: Sequence[RankRecord]) -> list[str]:
    """Return the calls of ranks in the first rank's order, equal calls once."""
    ranks: dict[str, dict[int, int]] = {}
    for record in records:
        for call in (*record.collectives, *record.messages):
            by_rank = ranks.setdefault(call_text(call), {})
            by_rank[record.rank] = by_rank.get(record.rank, 0) + 1
    lines = []
    for call_, by_rank in ranks.items():
        most = max(by_rank.values())
        lines.append(f"{who_text(list(by_rank))}: {call_}{f', {most} times' if most > 1 else ''}")
    return lines


def verdict(found: RunComparison) -> str:
    """Return the last line: whether the sides agree."""
    if found.real is None:
        return "not compared: the real side was skipped"
    number = len(found.findings)
    if number:
        return f"the sides differ: {number} difference{'' if number == 1 else 's'}"
    failed = [record.rank for record in found.simulated.records if record.ending != RETURNED]
    return f"the sides agree: {who_text(failed)} failed on both" if failed else "the sides agree"


def finding_text(finding: Finding) -> str:
    """Return a difference with its ranks."""
    first = "" if finding.num_texts == 1 else f"first on rank {finding.ranks[0]}: "
    return f"{who_text(finding.ranks)}: {finding.topic}: {first}{finding.text}"


def facts(found: RunComparison) -> list[tuple[str, str]]:
    """Return the head of a report, as names and values."""
    reported = [("simulated", _about(found.simulated))]
    if found.real is not None:
        reported.append(("real", _about(found.real)))
    reported.append(("issued", _issued(found)))
    reported.append(("results", _results(found)))
    reported += [("time", line) for line in found.times]
    return reported + [("note", line) for line in found.notes]


def _about(side: RunSide) -> str:
    return f"{side.about}: {_endings(side.records)}"


def _endings(records: Sequence[RankRecord]) -> str:
    """Return the text of endings: `all returned`, or each ending with its ranks."""
    ways: dict[str, list[int]] = {}
    for record in records:
        ways.setdefault(ending_text(record), []).append(record.rank)
    if list(ways) == [RETURNED]:
        return "all ranks returned"
    parts = [
        f"{who_text(ranks)} {ending_text(records[ranks[0]], several=len(ranks) > 1)}"
        for ranks in list(ways.values())[:_MAX_WAYS]
    ]
    if len(ways) > _MAX_WAYS:
        parts.append(f"{len(ways) - _MAX_WAYS} more ways")
    return "; ".join(parts)


def _issued(found: RunComparison) -> str:
    counted = f"{counts_text(found.simulated.records)} per rank"
    ops = ops_text(found.simulated.records)
    if ops:
        counted = f"{counted} ({ops} in all)"
    return counted + _agrees(found, (COLLECTIVES, MESSAGES), found.followed)


def _results(found: RunComparison) -> str:
    if found.real is None:
        return _values_text(found.simulated.records)
    if found.job.function is None:
        return "none: a script returns nothing"
    alike = found.likeness.values()
    number = sum(each.num_values for each in alike)
    if not number:
        return "none to compare"
    rounded = sum(each.num_rounded for each in alike)
    most = max(each.most_ulp for each in alike)
    within = f", {rounded} of them not bit by bit: {most} ulp at most" if rounded else ""
    return f"{number} values{within}; bounds: {found.tolerance}" + _agrees(
        found, (RESULTS,), list(found.likeness)
    )


def _agrees(found: RunComparison, topics: Iterable[str], ranks: Sequence[int]) -> str:
    if found.real is None:
        return ""
    if any(finding.topic in topics for finding in found.findings):
        return "; they differ"
    if not ranks:
        return "; not compared: no rank came to an end on both sides"
    is_all = len(ranks) == found.job.num_ranks
    return "; alike" if is_all else f"; alike on {who_text(ranks)}"


def _values_text(records: Sequence[RankRecord]) -> str:
    """Return the text of returned values, equal ones once."""
    ways: dict[str, list[int]] = {}
    for record in records:
        if record.ending == RETURNED:
            ways.setdefault(brief(record.value), []).append(record.rank)
    parts = [f"{who_text(ranks)}: {what}" for what, ranks in list(ways.items())[:_MAX_WAYS]]
    if len(ways) > _MAX_WAYS:
        parts.append(f"{len(ways) - _MAX_WAYS} others")
    return "; ".join(parts) or "none"


# ---- files ----


def to_json(found: RunComparison) -> dict[str, Any]:
    """Return the content of the JSON file: every fact of the text, and of each rank."""
    sides = (("simulated", found.simulated), ("real", found.real))
    return {
        "simrank": simrank.__version__,
        "program": found.job.title,
        "backend": found.job.backend,
        "num_ranks": found.job.num_ranks,
        "tolerance": str(found.tolerance),
        "agree": None if found.real is None else not found.findings,
        "sides": {name: side.about for name, side in sides if side is not None},
        "notes": [*found.times, *found.notes],
        "differences": [
            {
                "topic": each.topic,
                "ranks": list(each.ranks),
                "text": each.text,
                "file": each.file,
                "line": each.line,
            }
            for each in found.findings
        ],
        "ranks": [
            {
                name: _of_rank(side.records[rank], has_time=found.job.backend != "gloo")
                for name, side in sides
                if side is not None
            }
            for rank in range(found.job.num_ranks)
        ],
    }


def _of_rank(record: RankRecord, *, has_time: bool) -> dict[str, Any]:
    return {
        "ending": record.ending,
        "error": record.error or None,
        "text": record.text or None,
        "file": record.file,
        "line": record.line,
        "num_collectives": len(record.collectives),
        "num_messages": len(record.messages),
        "time_us": record.time_us if has_time else None,  # A host's time is not described.
    }


_COLUMNS = ("ranks", "what", "difference", "line")


def _rows(found: RunComparison) -> list[list[str]]:
    rows = []
    for each in found.findings:
        where = "" if each.file is None else f"{each.file}:{each.line}"
        rows.append([ranks_text(each.ranks), each.topic, each.text, where])
    return rows


def markdown(found: RunComparison) -> str:
    """Return the report as Markdown."""
    lines = [f"# simrank compare: {found.job.title}", "", f"**{verdict(found)}**", ""]
    lines += [f"- {name}: {value}" for name, value in _all_facts(found)]
    if found.findings:
        rows = [[_cell(cell) for cell in row] for row in _rows(found)]
        lines += ["", f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
        lines += [f"| {' | '.join(row)} |" for row in rows]
    for side in _failed(found):
        lines += ["", f"What {side.about} ended with:", "", "```text", side.failure, "```"]
    if found.real is None:
        lines += ["", *(f"- {_cell(line)}" for line in _calls(found.simulated.records))]
    return "\n".join(lines) + "\n"


def _cell(content: str) -> str:
    return content.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _all_facts(found: RunComparison) -> list[tuple[str, str]]:
    job = found.job
    return [("ranks", str(job.num_ranks)), ("backend", job.backend), *facts(found)]


def page(found: RunComparison) -> str:
    """Return the report as a page; equal comparisons give equal text."""
    body = [section(verdict(found).capitalize())]
    if found.findings:
        body.append(table("Differences", _COLUMNS, _rows(found)))
    if found.real is None:
        body.append(section("Calls", notes(_calls(found.simulated.records))))
    columns = ("rank", "simulated", "real", "collectives", "messages")
    body.append(folded_table("All ranks", columns, _rank_rows(found)))
    for side in _failed(found):
        reported = notes(side.failure.splitlines())
        body.append(section(f"What {side.about} ended with", reported))
    return document(f"simrank compare: {found.job.title}", _all_facts(found), body)


def _failed(found: RunComparison) -> list[RunSide]:
    return [side for side in (found.simulated, found.real) if side is not None and side.failure]


def _rank_rows(found: RunComparison) -> Iterable[list[str]]:
    for rank, mine in enumerate(found.simulated.records):
        theirs = None if found.real is None else found.real.records[rank]
        ended = "-" if theirs is None else ending_text(theirs)
        sides = [mine] if theirs is None else [mine, theirs]
        counts = [
            ", ".join(str(len(getattr(record, topic))) for record in sides)
            for topic in (COLLECTIVES, MESSAGES)
        ]
        yield [str(rank), ending_text(mine), ended, *counts]
