"""Active members of groups: some members may be inactive.

A collective belongs to those that were active when the first of them called it, without those that
were deactivated before their part was decided. Numbers of calls go on across changes; a member that
comes back takes part from the first number that no member has called yet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.distributed.findings import mismatch
from simrank.distributed.group import ProcessGroup
from simrank.distributed.host_meetings import Meeting
from simrank.distributed.mismatched_calls import MadeCall
from simrank.distributed.request import DTYPES, REDUCTIONS, Request, Signature, staging
from simrank.errors import PeerDiedError, RankInactiveError, UnsupportedError, ranks_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.device import Buffer, Device, DType, Stream
    from simrank.device.memory import Storage
    from simrank.distributed.call import Call, CollectiveOperation
    from simrank.distributed.p2p import PeerOperation
    from simrank.engine import CallSite


class Absence(NamedTuple):
    """The reason why a member is inactive.

    Attributes:
        since_ps: Since when.
        error: What it died of; None: it lives.
    """

    since_ps: int
    error: BaseException | None


class Roster:
    """The active and inactive members of a group.

    Attributes:
        group: The group.
        absent: The inactive members, by group rank.
        skips_dead: Whether a member that dies is inactive, and is no error.
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
        self._parts: dict[tuple[int, ...], ActivePart] = {}
        group.is_eager = True  # Its communicator does not depend on the active members.

    def active(self) -> list[int]:
        """Return the group ranks that are active."""
        return [rank for rank in range(self.group.size()) if rank not in self.absent]

    def add_mask(self, mask: np.ndarray[Any, Any]) -> None:
        """Add a tensor that shows the active members to a program."""
        self.masks.append(mask)
        self._show()

    def _show(self) -> None:
        for mask in self.masks:
            mask[:] = [rank not in self.absent for rank in range(self.group.size())]

    # ---- calls ----

    def part_of(self, own: int) -> ProcessGroup | None:
        """Return the group of a member's next collective; None if the member is inactive."""
        if own in self.absent:
            return None
        call = self.group.calls.get(self.group.num_calls(own) + 1)
        return self._part(self.active()) if call is None else call.group

    def narrow(self, request: Request, part: ProcessGroup, own: int) -> Request:
        """Return a member's request, reduced to the members of a collective.

        Raises:
            UnsupportedError: The collective is not defined over some members.
            RankInactiveError: Its root is inactive.
        """
        if not isinstance(part, ActivePart):
            return request
        root = request.signature.root
        if root is not None and root not in part.positions:
            what = f"{request.signature.op} on group '{self.group.name}'"
            raise self.inactive(what, root)
        return narrow(request, part.positions, own, self.group.size())

    def check(self, operation: PeerOperation) -> None:
        """Check that both ends of every message are active.

        Raises:
            RankInactiveError: One is inactive.
        """
        own = self.group.group_rank(operation.rank)
        for rank in (own, *[end.peer for end in operation.ends]):
            if rank in self.absent:
                raise self.inactive(operation.name, rank)

    def inactive(self, what: str, group_rank: int) -> RankInactiveError:
        """Return the error of a call that needs a member that is inactive."""
        rank, absence = int(self.group.ranks[group_rank]), self.absent.get(group_rank)
        now_ps = self.group.engine.now_ps
        return RankInactiveError(now_ps, what, rank, absence.since_ps if absence else now_ps)

    def _part(self, members: Sequence[int]) -> ProcessGroup:
        if len(members) == self.group.size():
            return self.group
        key = tuple(members)
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = ActivePart(self.group, key)
        part.follow()
        return part

    # ---- changes ----

    def deactivate(self, group_rank: int, error: BaseException | None = None) -> None:
        """Make a member inactive; calls in flight go on without it. On the hub.

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
                if message.rank == rank:  # It lives, and gets the error as its peers do.
                    message.stream.fail(message, gone)
            boxes.lose(group_rank, rank, gone)
        if self.change is not None:
            self.change.leave(group_rank)
        for barrier in list(self.group.barriers.values()):
            barrier.leave(group_rank)

    def _go_on(self, call: Call, group_rank: int) -> None:
        """Continue a collective in flight without a member, unless its part is decided."""
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
        """Make members active again, from the first sequence number without a call."""
        latest = max(self.group.num_calls(rank) for rank in range(self.group.size()))
        for rank in group_ranks:
            if self.absent.pop(rank, None) is not None:
                self.group.set_num_calls(rank, latest)
        self._show()

    def agree(self, own: int, ranks: Sequence[int], site: CallSite | None) -> None:
        """Wait until all present and future active members agree, then apply the change.

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
        change.add_arrival(own)
        self.group.engine.wait(change)
        change.part()


class Change(Meeting):
    """An agreement of the members on the active ranks from now on.

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


class ActivePart(ProcessGroup):
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
        """Return the number of collectives that a member has called in the group."""
        return self._whole.num_calls(self.positions[group_rank])

    def lose(self, rank: int | None, error: BaseException) -> None:
        """Remove a dead member from the group."""
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


# ---- A collective's request in a group with inactive members ----
# The parts of those that take part keep their places in the user's tensors; what belongs to the
# others is neither sent nor written.

# By collective: whether the input, and whether the output, consists of a part per member.
_IN_PARTS = {
    "all_gather": (False, True),
    "reduce_scatter": (True, False),
    "all_to_all": (True, True),
    "gather": (False, True),
    "scatter": (True, False),
}
_WHOLE = ("barrier", "all_reduce", "reduce", "broadcast")


class Slice:
    """Some elements of a contiguous buffer, one after the other, as a buffer."""

    def __init__(self, base: Buffer, start: int, stop: int) -> None:
        self._base, self._start, self._stop = base, start, stop
        self.storage: Storage = base.storage
        self.dtype: DType = base.dtype
        self.cuda_device: Device | None = base.cuda_device

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the size of its one dim."""
        return (self._stop - self._start,)

    @property
    def nbytes(self) -> int:
        """Return the bytes of its elements."""
        return (self._stop - self._start) * self.dtype.itemsize

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """Return a numpy view of its values."""
        return self._base.array.reshape(-1)[self._start : self._stop]

    def numel(self) -> int:
        """Return the number of elements."""
        return self._stop - self._start

    def stride(self) -> Sequence[int]:
        """Return the elements from one to the next."""
        return (1,)

    def is_contiguous(self) -> bool:
        """Return True."""
        return True


def check_narrow(signature: Signature) -> None:
    """Check that a collective is defined over some members of its group.

    Raises:
        UnsupportedError: It is not: the call, and the reduction or type that is too much.
    """
    op, reduce_op, _, dtype, *_ = signature
    if op not in _WHOLE and op not in _IN_PARTS:
        raise UnsupportedError(f"{op} with inactive ranks in its group")
    if reduce_op is None:
        return
    if reduce_op not in REDUCTIONS:
        raise UnsupportedError(
            f"{op} with {reduce_op} with inactive ranks in its group: "
            f"supported are {', '.join(REDUCTIONS)}"
        )
    if dtype not in DTYPES:
        raise UnsupportedError(
            f"{op} of {dtype} with inactive ranks in its group: supported are {', '.join(DTYPES)}"
        )


def narrow(request: Request, members: Sequence[int], own: int, num_ranks: int) -> Request:
    """Return a request for the active members only.

    Args:
        request: What it asks of the whole group.
        members: Positions in that group of those that take part.
        own: The rank's.
        num_ranks: The group's size.

    Raises:
        UnsupportedError: The collective is not defined over some members, or they lie in the
            tensors otherwise than one after the other.
    """
    signature = request.signature
    check_narrow(signature)
    root = signature.root
    if root is not None:
        signature = signature._replace(root=members.index(root))
    narrowed = replace(request, signature=signature)
    of_source, of_target = _IN_PARTS.get(signature.op, (False, False))
    is_root = root is None or root == own
    sends, receives = request.splits or (None, None)
    if of_source and is_root:
        parts = _parts(request.source, request.sources, sends, num_ranks)
        narrowed.sources = [parts[member] for member in members]
        narrowed.source = staging(narrowed.sources, request.source.dtype, None)
    if of_target and is_root:
        parts = _parts(request.target, request.targets, receives, num_ranks)
        narrowed.targets = [parts[member] for member in members]
        narrowed.target = staging(narrowed.targets, request.target.dtype, None)
    if request.splits is not None:
        sends, receives = request.splits
        narrowed.splits = [sends[m] for m in members], [receives[m] for m in members]
    return narrowed


def _parts(
    flat: Buffer, listed: Sequence[Buffer], sizes: Sequence[int] | None, num_ranks: int
) -> Sequence[Buffer]:
    """Return the part of each member of the whole group in a rank's tensors.

    Raises:
        UnsupportedError: There are neither as many tensors as members nor one for all.
    """
    if len(listed) == num_ranks:
        return listed
    if listed:
        raise UnsupportedError(
            f"a collective on {len(listed)} tensors with inactive ranks among {num_ranks}\n"
            "  to fix: one contiguous tensor, or a list with a tensor for each rank"
        )
    if sizes is None:
        sizes = [flat.numel() // num_ranks] * num_ranks
    ends = np.cumsum(sizes).tolist()
    return [Slice(flat, end - size, end) for size, end in zip(sizes, ends, strict=True)]


# ---- Options of process groups: those that make a group elastic ----


class ElasticOptions:
    """Options of a group that goes on without members that die (`pg_options`).

    Args:
        active_ranks: A tensor on the host with an int32 for each member, kept at 1 where it is
            active and at 0 where it is inactive; None: ask `active_ranks()`.
        first: Global ranks that are active at first; None: all. The others join by
            `set_active_ranks`.

    Source: the options of Mooncake's backend have such a tensor.
    """

    def __init__(self, active_ranks: Any = None, first: Sequence[int] | None = None) -> None:  # noqa: ANN401 - a tensor of simrank or of torch
        self.active_ranks = active_ranks
        self.first = first

    def apply(self, group: ProcessGroup) -> None:
        """Make a group elastic; every member calls it as it makes the group.

        Raises:
            ValueError: The tensor has another size or type, or a rank is no member.
            UnsupportedError: The tensor is not on the host.
        """
        first = None if self.first is None else members_of(group, self.first)
        mask = None if self.active_ranks is None else _values(self.active_ranks, group.size())
        is_new = group.roster is None or not group.roster.skips_dead
        roster = roster_of(group)
        roster.skips_dead = True
        if is_new and first is not None:
            for rank in set(range(group.size())) - set(first):
                roster.deactivate(rank)
        if mask is not None:
            roster.add_mask(mask)


def roster_of(group: ProcessGroup) -> Roster:
    """Return the roster of a group, made at first use."""
    if group.roster is None:
        group.roster = Roster(group)
    made: Roster = group.roster
    return made


def members_of(group: ProcessGroup, ranks: Sequence[int]) -> list[int]:
    """Return the group ranks of global ranks, ascending.

    Raises:
        ValueError: One is no member, or there is none.
    """
    members = sorted({group.group_rank(rank) for rank in ranks})
    if not members or members[0] < 0 or members[-1] >= group.size():
        raise ValueError(f"ranks {list(ranks)} are not members of group '{group.name}'")
    return members


def _values(mask: Any, size: int) -> np.ndarray[Any, Any]:  # noqa: ANN401 - of any library
    """Return a view of a tensor's values, which is written as ranks come and go.

    Raises:
        UnsupportedError: It is on a device.
        ValueError: It has another size or type.
    """
    if str(getattr(mask, "device", "cpu")) != "cpu":
        raise UnsupportedError(f"active_ranks on {mask.device}: a tensor on the host")
    values: np.ndarray[Any, Any] = mask.array if hasattr(mask, "array") else mask.numpy()
    if values.shape != (size,) or values.dtype != np.int32:
        raise ValueError(
            f"active_ranks: an int32 for each of {size} ranks, not {list(values.shape)} of "
            f"{values.dtype}"
        )
    return values
