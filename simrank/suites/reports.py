"""One report from the reports of several ranks, equal ones once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr

from simrank.errors import ranks_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from _pytest._io import TerminalWriter

PHASES = ("setup", "call", "teardown")
_MAX_LINES = 3  # Of a message whose place has been shown in full.


class Failure(NamedTuple):
    """A failure of ranks (none: all): place, reason, text."""

    ranks: list[int]
    path: str
    line: int
    message: str
    shown: Any

    @property
    def who(self) -> str:
        """Return `rank 3` or `ranks 0-2`."""
        word = "rank" if len(self.ranks) == 1 else "ranks"
        return f"{word} {ranks_text(self.ranks)}"


class RanksRepr(TerminalRepr):
    """The text of the ranks' failures.

    Args:
        failures: Equal ones together.
        num_ranks: How many ranks ran.
        others: What the others did: lines.

    Attributes:
        reprcrash: What the summary shows.
    """

    def __init__(
        self, failures: Sequence[Failure], num_ranks: int, others: Sequence[str] = ()
    ) -> None:
        self._failures = failures
        self._others = others
        first = failures[0]
        all_agree = len(failures) == 1 and len(first.ranks) == num_ranks
        who = f"all {num_ranks} ranks" if all_agree and num_ranks > 1 else first.who
        message = first.message if num_ranks == 1 or not first.ranks else f"{who}: {first.message}"
        self.reprcrash = ReprFileLocation(first.path, first.line, message)

    def toterminal(self, tw: TerminalWriter) -> None:
        """Show each failure under its ranks; of several at one line the first in full."""
        shown: dict[tuple[str, int], str] = {}
        for number, failure in enumerate(self._failures):
            if number:
                tw.line()
            place = (failure.path, failure.line)
            if place in shown:
                tw.line(f"on {failure.who}, at the same line as on {shown[place]}:")
                for line in failure.message.splitlines()[:_MAX_LINES]:
                    tw.line(f"E   {line}", red=True, bold=True)
                continue
            shown[place] = failure.who
            if failure.ranks:
                tw.line(f"on {failure.who}:")
            if hasattr(failure.shown, "toterminal"):
                failure.shown.toterminal(tw)
            else:
                tw.line(str(failure.shown))
        for line in self._others:
            tw.line(line)


def failures_of(reports: Mapping[int, Any]) -> list[Failure]:
    """Return the failures of ranks, grouped by place and message."""
    found: dict[tuple[str, int, str], Failure] = {}
    for rank, report in reports.items():
        if not report.failed:
            continue
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash is None:
            text = str(report.longrepr).strip()
            key = (str(report.fspath), 0, text.rpartition("\n")[2])
        else:
            key = (crash.path, crash.lineno, crash.message)
        if key in found:
            found[key].ranks.append(rank)
        else:
            found[key] = Failure([rank], *key, report.longrepr)
    return list(found.values())


def merged(
    when: str,
    reports: Mapping[int, pytest.TestReport],
    num_ranks: int,
    others: Sequence[str] = (),
) -> pytest.TestReport:
    """Return one report of a phase of a test.

    It has failed if it has on a rank, and is skipped if it is on all. Where some ranks fail as the
    test is marked to, it has: what the others then say of passing is no failure.
    """
    expected = [
        r for r, report in reports.items() if hasattr(report, "wasxfail") and report.skipped
    ]
    considered = dict(reports)
    if expected:
        considered = {r: report for r, report in reports.items() if not _is_unexpected_pass(report)}
    failures = failures_of(considered)
    skipped = [rank for rank, report in reports.items() if report.skipped]
    first = next(iter(reports.values()))
    outcome: Any = "passed"
    longrepr: Any = None
    if failures:
        outcome, longrepr = "failed", RanksRepr(failures, num_ranks, others)
    elif expected or len(skipped) == len(reports):
        outcome = "skipped"
        first = reports[expected[0] if expected else skipped[0]]
        longrepr = first.longrepr
    report = pytest.TestReport(
        first.nodeid, first.location, dict(first.keywords), outcome, longrepr, when,  # type: ignore[arg-type]
        _sections(reports, num_ranks), user_properties=list(first.user_properties),
    )  # fmt: skip
    if hasattr(first, "wasxfail") and not failures:
        report.wasxfail = first.wasxfail
    return report


def skip_text(reports: Mapping[int, Sequence[pytest.TestReport]]) -> str | None:
    """Return the text of skips by some ranks; None if all or none skipped."""
    skips = {
        rank: report
        for rank, of_rank in reports.items()
        for report in of_rank
        if report.skipped and not hasattr(report, "wasxfail")
    }
    if not skips or len(skips) == len(reports):
        return None
    word = "rank" if len(skips) == 1 else "ranks"
    return f"skipped on {word} {ranks_text(list(skips))}: {_reason(next(iter(skips.values())))}"


def _is_unexpected_pass(report: pytest.TestReport) -> bool:
    """Return whether a report says that a test marked to fail has passed."""
    is_strict = report.failed and str(report.longrepr).startswith("[XPASS(strict)]")
    return is_strict or (report.passed and hasattr(report, "wasxfail"))


def _reason(report: pytest.TestReport) -> str:
    longrepr = report.longrepr
    return str(longrepr[2] if isinstance(longrepr, tuple) else longrepr).removeprefix("Skipped: ")


def _sections(reports: Mapping[int, pytest.TestReport], num_ranks: int) -> list[tuple[str, str]]:
    """Return the ranks' output and logs, equal texts once."""
    ranks_by_section: dict[tuple[str, str], list[int]] = {}
    for rank, report in reports.items():
        for section in report.sections:
            ranks_by_section.setdefault(section, []).append(rank)
    sections = []
    for (name, text), ranks in ranks_by_section.items():
        word = "rank" if len(ranks) == 1 else "ranks"
        of = f" on {word} {ranks_text(ranks)}" if num_ranks > 1 else ""
        sections.append((f"{name}{of}", text))
    return sections
