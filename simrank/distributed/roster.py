"""Which members of a group take part in its collectives, where some may sit out.

A collective belongs to those that were active when the first of them called it, without those that
were deactivated before their part was decided. Numbers of calls go on across changes; who comes
back takes part from the first number that nobody has called yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.distributed.group import ProcessGroup
from simrank.distributed.meeting import Meeting
from simrank.distributed.mismatch import MadeCall, mismatch
from simrank.distributed.narrowed import check_narrow, narrow
from simrank.errors import PeerDiedError, RankInactiveError, UnsupportedError, ranks_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from simrank.device import Device, Stream
    from simrank.distributed.call import Call
    from simrank.distributed.collective import CollectiveOperation
    from simrank.distributed.p2p import PeerOperation
    from simrank.distributed.request import Request
    from simrank.engine import CallSite


class Absence(NamedTuple):
    """Why a member sits out.

    Attributes:
        since_ps: Since when.
        error: What it died of; None: it lives.
    """

    since_ps: int
    error: BaseException | None


class Roster:
    """Who of a group is active.

    Attributes:
        group: The group.
        absent: Who sits out, by group rank.
        skips_dead: Whether a member that dies sits out, and is no error.
        masks: What programs see of it: 1 or 0 per member.
        change: The agreed change that members are meeting for, if one is.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.absent: dict[int, Absence] = {}
        self.skips_dead = False
        self.masks: list[np.ndarray[Any, Any]] = []
        self.change: Change | None = None
        self.num_changes = 0
        self._parts: dict[tuple[int, ...], Part] = {}
        group.is_eager = True  # Its communicator does not depend on who is there.

    def active(self) -> list[int]:
        """Return the group ranks that are active."""
        return [rank for rank in range(self.group.size()) if rank not in self.absent]

    def add_mask(self, mask: np.ndarray[Any, Any]) -> None:
        """Let a program see who is active."""
        self.masks.append(mask)
        self._show()

    def _show(self) -> None:
        for mask in self.masks:
            mask[:] = [rank not in self.absent for rank in range(self.group.size())]

    # ---- calls ----

    def part_of(self, own: int) -> ProcessGroup | None:
        """Return those to whom a member's next collective belongs; None: it sits out."""
        if own in self.absent:
            return None
        call = self.group.calls.get(self.group.num_calls(own) + 1)
        return self._part(self.active()) if call is None else call.group

    def narrow(self, request: Request, part: ProcessGroup, own: int) -> Request:
        """Return what a member asks of those that a collective belongs to.

        Raises:
            UnsupportedError: The collective is not defined over some members.
            RankInactiveError: Its root sits out.
        """
        if not isinstance(part, Part):
            return request
        root = request.signature.root
        if root is not None and root not in part.positions:
            what = f"{request.signature.op} on group '{self.group.name}'"
            raise self.inactive(what, root)
        return narrow(request, part.positions, own, self.group.size())

    def check(self, operation: PeerOperation) -> None:
        """Check that both ends of every message are active.

        Raises:
            RankInactiveError: One sits out.
        """
        own = self.group.group_rank(operation.rank)
        for rank in (own, *[end.peer for end in operation.ends]):
            if rank in self.absent:
                raise self.inactive(operation.name, rank)

    def inactive(self, what: str, group_rank: int) -> RankInactiveError:
        """Return the error of a call that needs a member that sits out."""
        rank, absence = int(self.group.ranks[group_rank]), self.absent.get(group_rank)
        now_ps = self.group.engine.now_ps
        return RankInactiveError(now_ps, what, rank, absence.since_ps if absence else now_ps)

    def _part(self, members: Sequence[int]) -> ProcessGroup:
        if len(members) == self.group.size():
            return self.group
        key = tuple(members)
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = Part(self.group, key)
        part.follow()
        return part

    # ---- changes ----

    def deactivate(self, group_rank: int, error: BaseException | None = None) -> None:
        """Let a member sit out from now on; what is in flight goes on without it. On the hub.

        Args:
            group_rank: The member.
            error: What it died of, or None.
        """
        if group_rank in self.absent:
            if error is not None:
                self.absent[group_rank] = self.absent[group_rank]._replace(error=error)
            return
        self.absent[group_rank] = Absence(self.group.engine.now_ps, error)
        self._show()
        for call in list(self.group.calls.values()):
            self._go_on(call, group_rank)
        rank = int(self.group.ranks[group_rank])
        gone = self.inactive("its part", group_rank) if error is None else error
        for boxes in self.group.mailboxes.values():
            for message in boxes.pending() if error is None else ():
                if message.rank == rank:  # It lives, and is told as its peers are.
                    message.stream.fail(message, gone)
            boxes.lose(group_rank, rank, gone)
        if self.change is not None:
            self.change.leave(group_rank)
        for barrier in list(self.group.barriers.values()):
            barrier.leave(group_rank)

    def _go_on(self, call: Call, group_rank: int) -> None:
        """Let a collective in flight go on without a member, unless its part is decided."""
        rank = int(self.group.ranks[group_rank])
        member = call.group.group_rank(rank)
        is_over = call.group.calls.get(call.seq) is not call  # It failed with one before it.
        if is_over or member < 0 or call.is_decided(member):
            return
        taking_part = [self.group.group_rank(each) for each in call.group.ranks if each != rank]
        try:
            if call.signature.root == member:
                raise self.inactive(call.name, group_rank)
            check_narrow(call.signature)
            part, num_ranks = self._part(taking_part), call.group.size()
            positions = [call.group.group_rank(each) for each in part.ranks]

            def narrowed(operation: CollectiveOperation) -> Request:
                return narrow(operation.request, positions, operation.group_rank, num_ranks)

            call.go_on_in(part, narrowed)
        except (UnsupportedError, RankInactiveError) as error:
            call.lose(member, rank, error)

    def activate(self, group_ranks: Sequence[int]) -> None:
        """Let members take part again, from the first number that nobody has called."""
        latest = max(self.group.num_calls(rank) for rank in range(self.group.size()))
        for rank in group_ranks:
            if self.absent.pop(rank, None) is not None:
                self.group.set_num_calls(rank, latest)
        self._show()

    def agree(self, own: int, ranks: Sequence[int], site: CallSite | None) -> None:
        """Wait until all that are or will be active agree on who is, and make it so.

        Raises:
            CollectiveMismatchError: Another member named other ranks.
            PeerDiedError: One that is to be active has died.
        """
        for rank in ranks:
            absence = self.absent.get(rank)
            if absence is not None and absence.error is not None:
                what = f"making ranks {ranks_text(ranks)} of '{self.group.name}' active"
                peer = int(self.group.ranks[rank])
                raise PeerDiedError(self.group.engine.now_ps, what, peer, absence.error)
        if own in self.absent and own not in ranks:
            return
        change = self.change
        if change is None:
            self.num_changes += 1
            change = self.change = Change(self, tuple(ranks))
        elif change.ranks != tuple(ranks):
            raise change.differs(own, ranks, site)
        change.come(own)
        self.group.engine.wait(change)
        change.part()


class Change(Meeting):
    """Members agree on who is active from now on.

    Attributes:
        roster: Whose.
        ranks: Group ranks that will be active.
    """

    __slots__ = ("ranks", "roster")
    what = "set_active_ranks"

    def __init__(self, roster: Roster, ranks: tuple[int, ...]) -> None:
        self.roster = roster
        self.ranks = ranks
        super().__init__(roster.group, roster.num_changes)

    @property
    def members(self) -> Sequence[int]:
        """Return those that are active, and those that will be."""
        absent = self.roster.absent
        dead = {rank for rank, absence in absent.items() if absence.error is not None}
        return sorted({*self.roster.active(), *self.ranks} - dead)

    def all_came(self) -> None:
        """Make it so."""
        roster = self.roster
        roster.change = None
        roster.activate(self.ranks)
        for rank in roster.active():
            if rank not in self.ranks:
                roster.deactivate(rank)
        self.close()

    def differs(self, own: int, ranks: Sequence[int], site: CallSite | None) -> BaseException:
        """Return the error of a member that names other ranks."""
        group = self.group
        calls = [
            MadeCall(int(group.ranks[rank]), _named(group, self.ranks), where)
            for rank, where in self.came.items()
        ]
        calls.append(MadeCall(int(group.ranks[own]), _named(group, ranks), site))
        absent = [int(group.ranks[rank]) for rank in self.missing() if rank != own]
        return mismatch(group, self.number, calls, absent)


def _named(group: ProcessGroup, ranks: Sequence[int]) -> dict[str, object]:
    named = [int(group.ranks[rank]) for rank in ranks]
    return {"op": "set_active_ranks", "active": ranks_text(named)}


class _Positions:
    """Some entries of a list."""

    def __init__(self, listed: list[Any], positions: Sequence[int]) -> None:
        self._listed, self._positions = listed, positions

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401 - the list's
        return self._listed[self._positions[index]]

    def __setitem__(self, index: int, value: object) -> None:
        self._listed[self._positions[index]] = value


class Part(ProcessGroup):
    """The active members of a group, for the calls that belong to them.

    Args:
        whole: The group.
        positions: Group ranks of the members.

    Attributes:
        positions: As given.
    """

    def __init__(self, whole: ProcessGroup, positions: tuple[int, ...]) -> None:
        ranks = tuple(int(whole.ranks[position]) for position in positions)
        super().__init__(f"{whole.name}, ranks {ranks_text(ranks)}", ranks, whole.world)
        self.positions = positions
        self._whole = whole
        self.backend, self.backends = whole.backend, whole.backends
        self.last_issued = _Positions(whole.last_issued, positions)  # type: ignore[assignment]
        self.label = whole.label
        self.calls, self.dead = whole.calls, whole.dead

    def follow(self) -> None:
        """Take over where members' communicators are, and what they have in flight."""
        whole = self._whole
        for own, position in enumerate(self.positions):
            index = whole.device_of(position)
            if index != self.device_of(own):
                self.place(own, index)

    def made_by(self, rank: int) -> bool:
        """Return whether a rank has called `new_group` for the group."""
        return self._whole.made_by(rank)

    def is_destroyed(self, rank: int | None) -> bool:
        """Return whether a rank has destroyed the group."""
        return self._whole.is_destroyed(rank)

    def next_seq(self, group_rank: int) -> int:
        """Return the number of a member's next collective, in the group."""
        return self._whole.next_seq(self.positions[group_rank])

    def num_calls(self, group_rank: int) -> int:
        """Return how many collectives a member has called, in the group."""
        return self._whole.num_calls(self.positions[group_rank])

    def lose(self, rank: int | None, error: BaseException) -> None:
        """Let the group lose a member."""
        self._whole.lose(rank, error)

    def use_device(self, group_rank: int, device: Device) -> None:
        """Note the device that a member's communicator is on."""
        self._whole.use_device(self.positions[group_rank], device)
        super().use_device(group_rank, device)

    def stream(
        self, group_rank: int, device: Device, name: str, *, by_host: bool = False
    ) -> Stream:
        """Return the stream that a member uses for the group."""
        whole = self._whole
        name = name.replace(self.name, whole.name)
        return whole.stream(self.positions[group_rank], device, name, by_host=by_host)
