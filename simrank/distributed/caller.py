"""Who calls: a rank in its place in a group, looked up once for all of its calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from simrank.device import Stream
    from simrank.distributed.group import ProcessGroup
    from simrank.ranks import Program

_IN_FLIGHT = "groups in flight"


class Caller(NamedTuple):
    """A member of a group that calls.

    It names no program: a rank keeps those that it has been, and nothing may refer back to it.

    Attributes:
        group: The group.
        group_rank: Its rank in it.
        backend: What carries its call.
        in_flight: By stream of the rank, the group that used it last.
    """

    group: ProcessGroup
    group_rank: int
    backend: str
    in_flight: dict[Stream, ProcessGroup]

    @property
    def rank(self) -> int:
        """Return its global rank."""
        return int(self.group.ranks[self.group_rank])

    def narrowed(self, part: ProcessGroup) -> Caller:
        """Return who it is among the members that take part."""
        return self._replace(group=part, group_rank=part.group_rank(self.rank))


def caller_of(program: Program, group: ProcessGroup, backend: str) -> Caller:
    """Return who a running member of a group is."""
    in_flight = program.local.setdefault(_IN_FLIGHT, {})
    return Caller(group, group.group_rank(program.rank), backend, in_flight)
