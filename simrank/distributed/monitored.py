"""The monitored barrier: rank 0 names the members that miss the time limit.

It has its number among the calls of its group: gloo derives the slots of all of them from one
counter, so a barrier that another member calls before or after another collective is not met.

Source:
    torch 2.13 `ProcessGroupGloo.cpp` (monitoredBarrier); texts measured with gloo.
"""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import TYPE_CHECKING

from simrank.distributed.backends import GLOO, check_timeout, default_timeout
from simrank.distributed.host_meetings import Meeting
from simrank.distributed.membership import Group, member_group
from simrank.engine.choices import LONG_PS
from simrank.errors import RankState, ranks_text
from simrank.ranks import require_rank
from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.distributed.group import ProcessGroup


class MonitoredBarrier(Meeting):
    """One monitored barrier of a group; complete once all have come and rank 0 has said so.

    Attributes:
        failed: Whether the limit passed first.
    """

    __slots__ = ("failed",)
    what = "monitored_barrier"

    @property
    def members(self) -> Sequence[int]:
        """Return the active members."""
        roster = self.group.roster
        return range(self.group.size()) if roster is None else roster.active()

    def __init__(self, group: ProcessGroup, number: int) -> None:
        super().__init__(group, number)
        self.failed = False

    def all_came(self) -> None:
        """End it, unless the limit has passed meanwhile."""
        if not self.complete:
            self.close()

    def close(self) -> None:
        """End it."""
        self.group.barriers.pop(self.number, None)
        super().close()

    def fail(self) -> None:
        """End it because the limit has passed."""
        self.failed = True
        self.close()


def monitored_barrier(
    group: Group = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """Block the host until every member has called; rank 0 names the late members.

    Args:
        group: The group; gloo's only.
        timeout: The limit; default: the group's.
        wait_all_ranks: Name all that did not come, not only the first.

    Raises:
        ValueError: The group's backend is not gloo.
        RuntimeError: The limit passed; torch's words.
    """
    program = require_rank("monitored_barrier")
    chosen = member_group("monitored_barrier", group, program)
    if chosen is None:
        return
    if chosen.backend != GLOO:
        raise ValueError("monitored_barrier is only implemented for GLOO backend.")
    if isinstance(timeout, float):
        warnings.warn(
            f"Please specify timeout arg as a timedelta. Converting current value of {timeout} "
            "assuming it represents seconds",
            stacklevel=2,
        )
        timeout = timedelta(seconds=timeout)
    check_timeout(timeout)
    limit = timeout if isinstance(timeout, timedelta) else default_timeout(chosen.backend)
    own = chosen.group_rank(program.rank)
    if chosen.roster is not None and own in chosen.roster.absent:
        return
    _wait(_enter(chosen, own), own, limit, wait_all_ranks=wait_all_ranks)


def _enter(group: ProcessGroup, own: int) -> MonitoredBarrier:
    number = group.next_seq(own)
    barrier = group.barriers.get(number)
    if barrier is None:
        barrier = group.barriers[number] = MonitoredBarrier(group, number)
    barrier.add_arrival(own)
    return barrier


def _wait(barrier: MonitoredBarrier, own: int, limit: timedelta, *, wait_all_ranks: bool) -> None:
    engine = barrier.group.engine
    limit_ps = round(limit.total_seconds() * 1e6) * PS_PER_US
    if engine.choices is not None and limit_ps < LONG_PS:
        engine.choices.pass_over("the time limit of a monitored barrier")
        limit_ps = LONG_PS
    in_time = engine.wait_at_most(barrier, limit_ps)
    if own:
        if not in_time and 0 in barrier.came:
            engine.wait(barrier)  # Rank 0 decides, and says so to the others.
        if barrier.failed or not barrier.complete:
            raise RuntimeError(
                f"Rank {own} successfully reached monitoredBarrier, but received errors while "
                "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank."
            )
    elif not in_time:
        raise _failure(barrier, limit, wait_all_ranks=wait_all_ranks)
    barrier.part()


def _calls_instead(barrier: MonitoredBarrier) -> list[RankState]:
    """Return the calls that missing members have made under the number of the barrier."""
    call = barrier.group.calls.get(barrier.number)
    if call is None:
        return []
    states = []
    for rank in barrier.missing():
        operation = call.operation_of(rank)
        if operation is not None:
            place = (None, None) if operation.issued_at is None else operation.issued_at.line()
            text = f"called {call.name} in its place"
            states.append(RankState((int(barrier.group.ranks[rank]),), text, *place))
    return states


def _failure(barrier: MonitoredBarrier, limit: timedelta, *, wait_all_ranks: bool) -> RuntimeError:
    """Fail the barrier, and return the error of rank 0."""
    missing = barrier.missing()
    named = missing if wait_all_ranks else missing[:1]
    who = f"Rank{'s' if wait_all_ranks else ''} {', '.join(map(str, named))}"
    milliseconds = round(limit.total_seconds() * 1000)
    error = RuntimeError(f"[Rank 0]: {who} failed to pass monitoredBarrier in {milliseconds} ms")
    absent = ranks_text(int(barrier.group.ranks[rank]) for rank in missing)
    error.add_note(f"simrank: ranks that have not called {barrier.describe()}: {absent}")
    for state in _calls_instead(barrier):
        error.add_note(f"simrank: {state}")
    barrier.fail()
    return error
