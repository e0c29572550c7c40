"""What a case that is over came to: whose fault it was, and everything that is known of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.errors import (
    PoolError,
    RanksPartedError,
    RanksRaisedError,
    WorkerDiedError,
    WorkerTimeoutError,
    ranks_text,
)
from simrank.validate import report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.validate.case import Case
    from simrank.validate.team import Team

_CAUSE_S = 0.25  # assumed: peers of a rank that dies fail within this, before its end is seen


def verdict(team: Team, case: Case) -> PoolError | None:
    """Return what is wrong with a case that is over, or None.

    A rank that died is the cause of what its peers raised at about that time; a rank that raised
    is the cause of those that still wait.
    """
    dead = [process for process in team.ended() if process.rank in case.ranks]
    raised = {rank: a for rank, a in case.answers.items() if not a.is_return}
    first_s = min((answer.arrived_s for answer in raised.values()), default=float("inf"))
    number = f"case {case.number}"
    many = f"of {len(case.ranks)} rank(s)"
    end = [] if case.is_answered else ["the workers were killed; the next case has fresh ones"]
    if dead and min(process.ended_s for process in dead) <= first_s + _CAUSE_S:
        who = ranks_text(process.rank for process in dead)
        what = f"{number}: rank {who} died: {dead[0].ended}"
        return WorkerDiedError(what, team.facts(case, with_stacks=False), case=case.number, end=end)
    if raised:
        return RanksRaisedError(
            f"{number}: {len(raised)} {many} raised",
            team.facts(case, with_stacks=False),
            errors={rank: answer.exception() for rank, answer in sorted(raised.items())},
            case=case.number,
            end=end,
        )
    if case.is_answered:
        return None
    missing = len(case.ranks) - len(case.answers)
    limit = "" if case.has_parted else f" within {case.timeout_s:g} s"
    what = f"{number}: {missing} {many} {'hang' if case.has_parted else 'did not answer'}{limit}"
    return _hang(team, case, what, end)


def _hang(team: Team, case: Case, what: str, end: Sequence[str]) -> PoolError:
    pages = team.pages(case.ranks)
    waits = report.waits_for(pages)
    end = [*report.waits_text(waits), *end]
    facts = team.facts(case, with_stacks=True)
    if report.never_come(pages, waits) or report.are_in_a_ring(waits):
        return RanksPartedError(what, facts, waits_for=waits, case=case.number, end=end)
    return WorkerTimeoutError(what, facts, case=case.number, end=end)
