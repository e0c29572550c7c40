"""Meetings of all members of a group on their hosts, with the missing members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simrank.engine import Handle, user_site

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simrank.device.clocks import Clock
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

    def add_arrival(self, group_rank: int) -> None:
        """Note that a member has come; after the last one all return, in a round trip."""
        self.came[group_rank] = site = user_site()
        if (delays := self.group.engine.delays) is not None:
            delays.orders.note("collectives", id(self), self.group.ranks[group_rank], self)
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
        made.add_arrival(group_rank)
        group.engine.wait(made)
        made.part()
