"""Meetings of a group's members on their hosts: communicators, the monitored barrier."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import TYPE_CHECKING

from simrank.distributed.backends import GLOO, check_timeout, default_timeout
from simrank.distributed.membership import Group, member_group
from simrank.engine import Handle, user_site
from simrank.errors import ranks_text
from simrank.ranks import require_rank
from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simrank.device.races import Clock
    from simrank.distributed.group import ProcessGroup
    from simrank.engine import CallSite


class Meeting(Handle):
    """Members that come one by one; it ends a round trip after the last one.

    Subclasses say what it is called, and what happens at its end.

    Attributes:
        group: The group.
        number: How many of its kind the group had, this one included.
        order: What those that have come are behind, for race checks.
        came: Where each member called, by group rank.
        ending: Whether all have come, and will return soon.
    """

    __slots__ = ("came", "ending", "group", "number", "order")
    is_collective = True
    what = "meeting"

    def __init__(self, group: ProcessGroup, number: int) -> None:
        super().__init__()
        self.group = group
        self.number = number
        self.came: dict[int, CallSite | None] = {}
        self.order: Clock = {}
        self.ending = False
        group.engine.pending[self] = None

    @property
    def members(self) -> Sequence[int]:
        """Return the group ranks that meet: by default all."""
        return range(self.group.size())

    def describe(self) -> str:
        """Return its name in reports."""
        return f"{self.what} #{self.number} on group '{self.group.name}'"

    def come(self, group_rank: int) -> None:
        """Note that a member has come; after the last one all return, in a round trip."""
        self.came[group_rank] = site = user_site()
        for other in self.group.represented.get(group_rank, ()):
            if other in self.members:
                self.came[other] = site
        if (races := self.group.world.comm_library.races) is not None:
            races.meet(self.order)
        self._look()

    def leave(self, group_rank: int) -> None:
        """Note that a member will not come, or does not count any more."""
        self.came.pop(group_rank, None)
        self._look()

    def _look(self) -> None:
        """End it soon if all are there."""
        if self.came and not self.ending and len(self.came) == len(self.members):
            self.ending = True
            engine = self.group.engine
            latency_ps = self.group.world.cluster.collectives.launch_latency_ps
            engine.call_at(engine.now_ps + 2 * latency_ps, self.all_came)  # Assumed.

    def all_came(self) -> None:
        """End it."""
        self.close()

    def close(self) -> None:
        """Complete, and leave the report of what is pending."""
        self.group.engine.pending.pop(self, None)
        self.finish(self.group.engine)

    def part(self) -> None:
        """Add the other members' clocks to the running program's, for race checks."""
        if (races := self.group.world.comm_library.races) is not None:
            races.met(self.order)

    def missing(self) -> list[int]:
        """Return the group ranks that have not come."""
        return [rank for rank in self.members if rank not in self.came]

    def pending_ranks(self) -> Iterator[tuple[int, str, CallSite | None]]:
        """Yield the members that have come, for the deadlock report."""
        for group_rank, site in self.came.items():
            yield int(self.group.ranks[group_rank]), self.describe(), site

    def absent_ranks(self) -> Iterator[tuple[int, str]]:
        """Yield the missing members, for the deadlock report."""
        for group_rank in self.missing():
            yield int(self.group.ranks[group_rank]), self.describe()


# ---- NCCL makes a communicator at the first call that needs it, and its members meet for that ----
# torch does so unless `init_process_group` is given a `device_id`. Hosts wait for each other
# there, where later calls only wait on streams: groups used for the first time in another order
# on two ranks, or a batch of messages that only some members of a group begin with, hang.
# `strict` programs meet; others do not, as if all communicators had been made from the start.
#
# Source: torch 2.13 `ProcessGroupNCCL`: a communicator per group; for messages outside of
# batches one per pair of ranks.

Pair = tuple[int, int]


class Initialisation(Meeting):
    """The members of a group, or two of them, make a communicator.

    Attributes:
        pair: The two, by group rank; None: all members of the group.
    """

    __slots__ = ("pair",)

    def __init__(self, group: ProcessGroup, pair: Pair | None) -> None:
        super().__init__(group, 0)
        self.pair = pair

    @property
    def members(self) -> Sequence[int]:
        """Return the members of the meeting."""
        return self.pair or range(self.group.size())

    def describe(self) -> str:
        """Return its name in reports."""
        whose = f"group '{self.group.name}'"
        if self.pair is not None:
            first, second = (self.group.ranks[rank] for rank in self.pair)
            whose = f"ranks {first} and {second} of {whose}"
        return f"making the communicator of {whose}"


def meet_first(group: ProcessGroup, group_rank: int, pair: Pair | None = None) -> None:
    """Wait for the other members of a communicator at its first use.

    Args:
        group: The group.
        group_rank: The running rank's.
        pair: Sender and receiver, outside of a batch; None: the group's communicator.
    """
    if group.is_eager or group.size() == 1:
        return
    key = None if pair is None else (min(pair), max(pair))
    made = group.communicators.get(key)
    if made is None:
        made = group.communicators[key] = Initialisation(group, key)
    if group_rank not in made.came:
        made.come(group_rank)
        group.engine.wait(made)
        made.part()


# ---- the monitored barrier: rank 0 names the members that miss the time limit ----


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
    number = group.next_barrier(own)
    barrier = group.barriers.get(number)
    if barrier is None:
        barrier = group.barriers[number] = MonitoredBarrier(group, number)
    barrier.come(own)
    return barrier


def _wait(barrier: MonitoredBarrier, own: int, limit: timedelta, *, wait_all_ranks: bool) -> None:
    engine = barrier.group.engine
    in_time = engine.wait_at_most(barrier, round(limit.total_seconds() * 1e6) * PS_PER_US)
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


def _failure(barrier: MonitoredBarrier, limit: timedelta, *, wait_all_ranks: bool) -> RuntimeError:
    """Fail the barrier, and return what rank 0 raises."""
    missing = barrier.missing()
    named = missing if wait_all_ranks else missing[:1]
    who = f"Rank{'s' if wait_all_ranks else ''} {', '.join(map(str, named))}"
    milliseconds = round(limit.total_seconds() * 1000)
    error = RuntimeError(f"[Rank 0]: {who} failed to pass monitoredBarrier in {milliseconds} ms")
    absent = ranks_text(int(barrier.group.ranks[rank]) for rank in missing)
    error.add_note(f"simrank: ranks that have not called {barrier.describe()}: {absent}")
    barrier.fail()
    return error
