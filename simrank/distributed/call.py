"""One collective of one group: the ranks' calls are matched, then run all at once."""

from __future__ import annotations

from functools import partial
from math import ceil, floor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simrank.collectives.time_network import NOT_ARRIVED
from simrank.device import Operation
from simrank.distributed.arrivals import LastArrivals
from simrank.distributed.contracts import check_in_place
from simrank.distributed.findings import lines_of, mismatch
from simrank.distributed.flight import Flight, Landing, landings
from simrank.distributed.mismatched_calls import MadeCall, same_device
from simrank.distributed.planner import planner_of
from simrank.distributed.request import UNEVEN, Signature, module_of
from simrank.engine import user_site
from simrank.engine.report import NEVER_MADE
from simrank.errors import PeerDiedError, UnsupportedError, WaitTimeoutError
from simrank.units import PS_PER_US

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from simrank.distributed.group import ProcessGroup
    from simrank.distributed.planner import Plan
    from simrank.distributed.request import Request
    from simrank.engine import CallSite
    from simrank.errors import CollectiveMismatchError

    Narrows = Callable[["CollectiveOperation"], Request]
    Moved = tuple["CollectiveOperation", int, int, Request]

    from simrank.device import Device

Array = np.ndarray[Any, Any]
_CLOSURE_PS = 100 * PS_PER_US  # Assumed: until a member sees that another one has given up.
_UNSEEN_BYTES = 64 * 1024  # Assumed: what less does to a memory of TB/s is not worth a look.


class Splits:
    """Elements that rank i sends to rank j and expects from rank j, for the ranks that called."""

    __slots__ = ("known", "receives", "sends")

    def __init__(self, size: int) -> None:
        self.sends = np.zeros((size, size), dtype=np.int64)
        self.receives = np.zeros((size, size), dtype=np.int64)
        self.known = np.zeros(size, dtype=bool)


class _Split(NamedTuple):
    """The number of elements that a member sends to, or expects from, another member."""

    group_rank: int
    num_elements: int


class _RootedEnds(NamedTuple):
    """Ends of a rooted call.

    Attributes:
        ended_ps: When the representative ended: with the last of them.
        own_ps: When each member would have ended, by group rank.
    """

    ended_ps: int
    own_ps: list[int]


class Call:
    """The calls of all ranks of a group under one sequence number.

    Attributes:
        group: The group.
        seq: The sequence number.
        signature: What the first caller asked for; all must agree.
        name: For reports, for example `all_reduce #7 on group 'tp0'`.
        splits: What each rank sends and expects, where the collective has split sizes.
        details: Facts for timelines, once they are known.
        ahead: Calls of other groups that a rank had in flight when it issued its part, with that.
        operations: By group rank, the parts of those that have called; empty once all have ended.
    """

    is_collective = True

    def __init__(self, group: ProcessGroup, seq: int, signature: Signature) -> None:
        self.group = group
        self.seq = seq
        self.signature = signature
        self.name = f"{signature.op} #{seq} on group '{group.name}'"
        self.splits: Splits | None = None
        self.ahead: dict[Call, CollectiveOperation] = {}
        self.details: dict[str, Any] | None = None
        self._size = size = len(group.ranks)
        self.operations: list[CollectiveOperation | None] = [None] * size
        self._num_made = 0
        self._arrivals_ps = [NOT_ARRIVED] * size
        self._num_arrived = 0
        self._num_ended = 0
        self._plan: Plan | None = None
        self._snapshots: dict[int, Array] = {}
        self._timed = np.zeros(size, dtype=bool)
        self._ended = np.zeros(size, dtype=bool)
        self._represented = group.represented
        self._dropped: set[int] = set()
        self._early_ps: dict[int, int] = {}  # Of members that did not need the last arrival.
        self._last_arrival_ps = 0
        self._last_arrivals: dict[int, LastArrivals] = {}  # By their time, once asked for.
        self._flight: Flight | None = None
        self._evaluation_queued = self._all_played = self._lost = False
        self._users: dict[int, CollectiveOperation] | None = None  # By device.
        group.engine.pending[self] = None

    # ---- the host's side: matching ----

    def check_device(self, operation: CollectiveOperation) -> None:
        """Check that no other member's communicator is on the same device.

        Raises:
            DistBackendError: One is.
        """
        if self._users is None:
            self._users = {o.stream.device.index: o for o in self.operations if o is not None}
        device = operation.stream.device.index
        other = self._users.setdefault(device, operation)
        if other is not operation:
            raise same_device(other, operation)

    def mismatch(
        self, group_rank: int, signature: Signature, site: CallSite | None
    ) -> CollectiveMismatchError:
        """Build the error of a call that differs from those made before; it shows all of them."""
        own = self.group.ranks[group_rank]
        group = self.group
        group.world.history.note(own, site, signature.op, group)  # Issued it will never be.
        calls = [
            MadeCall(o.rank or 0, _columns(self.signature), o.issued_at)
            for o in self.operations
            if o is not None
        ]
        calls.append(MadeCall(own, _columns(signature), site))
        absent, differing = self._not_called(group_rank), (self.signature, signature)
        return mismatch(self.group, self.seq, calls, absent, differing)

    def _not_called(self, *calling: int) -> list[int]:
        """Return the global ranks that have not called, but for those that call now."""
        folding = self.group.world.folding
        return [
            self.group.ranks[rank]
            for rank, operation in enumerate(self.operations)
            if operation is None and rank not in calling
            if folding is None or folding.runs(self.group.ranks[rank])
        ]

    def pending_ranks(self) -> Iterator[tuple[int, str, CallSite | None]]:
        """Yield the ranks that have called and not ended, for the deadlock report.

        If all of them have ended (they are not the root), the call is the others' to make still.
        """
        called = [operation for operation in self.operations if operation is not None]
        for operation in [each for each in called if not each.complete] or called:
            if operation.rank is not None:
                yield operation.rank, self.name, operation.issued_at

    def join_splits(
        self, group_rank: int, send: Sequence[int], receive: Sequence[int], site: CallSite | None
    ) -> None:
        """Note a rank's split sizes; compare them with its own and those of the ranks before it.

        Raises:
            CollectiveMismatchError: A rank sends another number of elements than its peer, which
                may be itself, expects.
        """
        size = self._size
        if send[group_rank] != receive[group_rank]:
            sent, expected = int(send[group_rank]), int(receive[group_rank])
            ends = _Split(group_rank, sent), _Split(group_rank, expected)
            raise self._split_mismatch(*ends, site)
        if self.splits is None:
            self.splits = Splits(size)
        sends, receives, known = self.splits.sends, self.splits.receives, self.splits.known
        # What the ranks before send to this one, and what they expect from it.
        for ours, theirs, we_send in (
            (np.asarray(receive), sends[:, group_rank], False),
            (np.asarray(send), receives[:, group_rank], True),
        ):
            wrong = np.flatnonzero(known & (ours != theirs))
            if len(wrong):
                other = int(wrong[0])
                own, peer = _Split(group_rank, int(ours[other])), _Split(other, int(theirs[other]))
                raise self._split_mismatch(*((own, peer) if we_send else (peer, own)), site)
        sends[group_rank], receives[group_rank], known[group_rank] = send, receive, True
        if self._represented:
            self._join_splits_of_others(group_rank, send, receive)

    def _join_splits_of_others(
        self, group_rank: int, send: Sequence[int], receive: Sequence[int]
    ) -> None:
        """Note the split sizes of members that do not run: what those that run expect of them."""
        assert self.splits is not None, "a member has called"
        sends, receives, known = self.splits.sends, self.splits.receives, self.splits.known
        for other in self._represented.get(group_rank, ()):
            sends[other, ~known], receives[other, ~known] = (
                np.asarray(send)[~known], np.asarray(receive)[~known],
            )  # fmt: skip
        absent = [rank for others in self._represented.values() for rank in others]
        sends[absent, group_rank] = np.asarray(receive)[absent]
        receives[absent, group_rank] = np.asarray(send)[absent]

    def _split_mismatch(
        self, sender: _Split, receiver: _Split, site: CallSite | None
    ) -> CollectiveMismatchError:
        """Build the error for two members that expect differently, one of which calls now."""
        ranks, calls = self.group.ranks, []
        for (rank, count), verb, peer in (
            (sender, "sends {} elements to rank {}", receiver.group_rank),
            (receiver, "expects {} elements from rank {}", sender.group_rank),
        ):
            operation = self.operations[rank]
            where = site if operation is None else operation.issued_at
            columns = {**_columns(self.signature), "splits": verb.format(count, ranks[peer])}
            calls.append(MadeCall(ranks[rank], columns, where))
        return mismatch(
            self.group, self.seq, calls, self._not_called(sender.group_rank, receiver.group_rank)
        )

    @property
    def count(self) -> int:
        """Return the number of elements, with the meaning that the collective gives it."""
        if self.splits is not None:  # Even after all: what goes to each peer.
            return int(self.splits.sends[0, 0])
        count = self.signature.count
        return count if isinstance(count, int) else 0

    def split_sizes(self, collective: str) -> Array | None:
        """Return the split sizes as `Problem.splits` has them, or None where they are even."""
        assert self.splits is not None, "members have split sizes"
        sizes = self.splits.sends
        if collective != "all_to_all":  # Of the receivers all get the same, or send the same.
            sizes = sizes[:, 0] if collective == "all_gather" else sizes[0]
        return None if (sizes == sizes.flat[0]).all() else sizes

    @property
    def on_device(self) -> bool:
        """Whether devices run it, and not their hosts."""
        return any(each is not None and each.num_sms for each in self.operations)

    def operation_of(self, group_rank: int) -> CollectiveOperation | None:
        """Return a rank's part of the call; None: it has not called, or is no member (-1)."""
        return self.operations[group_rank] if self.operations and group_rank >= 0 else None

    def absent_ranks(self) -> Iterator[tuple[int, str]]:
        """Yield the ranks that have not called, for the deadlock report."""
        folding = self.group.world.folding
        for rank, operation in zip(self.group.ranks, self.operations, strict=True):
            if operation is None and (folding is None or folding.runs(rank)):
                made = self.group.made_by(rank)
                yield rank, self.name if made else f"{self.name}; {NEVER_MADE}"

    def add(self, group_rank: int, operation: CollectiveOperation) -> None:
        """Add a member's part, once it is matched; of the last one, note where all were made."""
        assert self.operations[group_rank] is None, "a member makes a call once (C5)"
        self.operations[group_rank] = operation
        if (choices := self.group.engine.choices) is not None:
            choices.called(operation)
        self._num_made += 1
        if self._represented:
            self._num_made += len(self._represented.get(group_rank, ()))
        if self._num_made == self._size:
            lines_of(self.group).note(self)

    # ---- the device's side: arrival, evaluation, completion ----

    def arrive(self, operation: CollectiveOperation) -> None:
        """Note that a rank's stream has reached the call; evaluate what that decides."""
        now_ps = self.group.engine.now_ps
        if (delays := self.group.engine.delays) is not None:
            delays.orders.note("collectives", id(self), operation.rank, self)
        self._arrivals_ps[operation.group_rank] = now_ps
        self._num_arrived += 1
        if self._represented:
            self._arrive_for_others(operation)
        if self._num_arrived == self._size:
            self._evaluate()
        elif self.signature.root is not None:  # Rooted: some ranks may end before others arrive.
            self._evaluate_early()

    def _arrive_for_others(self, operation: CollectiveOperation) -> None:
        """Set the arrivals of a representative and of the members that it represents.

        If it was issued before a rooted call ended, each is as early as its own end there was.
        """
        now_ps, group_rank = self.group.engine.now_ps, operation.group_rank
        members = (group_rank, *self._represented.get(group_rank, ()))
        last = self.group.rooted_ends.pop(group_rank, None)
        is_behind = last is not None and operation.issue_ps <= last.ended_ps
        for member in members:
            early_ps = last.ended_ps - last.own_ps[member] if is_behind else 0
            self._arrivals_ps[member] = max(now_ps - early_ps, operation.issue_ps)
        self._num_arrived += len(members) - 1

    def _note_own_ends(self, group_ranks: Sequence[int]) -> None:
        """Note when represented members would have ended a rooted call."""
        if self._plan is None or self._num_arrived < self._size:
            return
        own_ps = self._plan.own_ends(self._arrivals_ps).tolist()
        now_ps = self.group.engine.now_ps
        for rank in self._represented.keys() & set(group_ranks):
            if max(own_ps[each] for each in (rank, *self._represented[rank])) == now_ps:
                self.group.rooted_ends[rank] = _RootedEnds(now_ps, own_ps)

    def _evaluate_early(self) -> None:
        """Queue an evaluation after the other arrivals of this time, if some rank may end early."""
        if self._plan is None:
            self._plan = planner_of(self.group).plan(self)
        if not self._plan.synchronizing and not self._evaluation_queued:
            self._evaluation_queued = True
            self.group.engine.call_at(self.group.engine.now_ps, self._evaluate_queued)

    def _evaluate_queued(self) -> None:
        self._evaluation_queued = False
        if self._num_arrived < self._size:
            self._evaluate()

    def _evaluate(self) -> None:
        """Compute when ranks end, from the arrivals so far, and let those fly that are decided."""
        if self._plan is None:
            self._plan = planner_of(self.group).plan(self)
        self.details = self._plan.details
        engine = self.group.engine
        if self._num_arrived == self._size and self._flight is None:
            begin_ps, ahead = self._plan.flight(self._arrivals_ps)
            if not ahead:
                return
            if begin_ps + ahead[0].after_ps >= engine.now_ps:
                self._fly(begin_ps, ahead)
                return
        # What was projected from fewer arrivals is projected again: which of those at one time came
        # first decides nothing. A rank that a late one does not matter to could have ended before
        # now (an exchange with empty parts): it ends now, since only now its part is known.
        if self._flight is not None:
            self._flight.cancel()
        arrivals_ps = np.array(self._arrivals_ps, dtype=np.int64)
        ends_ps = np.maximum(self._plan.completions(arrivals_ps), engine.now_ps)
        decided = np.flatnonzero((ends_ps < NOT_ARRIVED) & ~self._ended)
        if self._num_arrived < self._size:
            for rank in decided.tolist():
                self._early_ps.setdefault(rank, engine.now_ps)
        self._timed[:] = self._ended
        assert (ends_ps >= arrivals_ps)[decided].all(), "no rank ends before it has come (C2)"
        if len(decided):
            self._fly(engine.now_ps, landings(ends_ps[decided] - engine.now_ps, decided))

    def _fly(self, begin_ps: int, ahead: tuple[Landing, ...]) -> None:
        """Put ranks on their way to their ends; once all have arrived, their bytes share links."""
        assert self._plan is not None, "it decided when they end"
        if len(ahead[0].group_ranks) == self._size:
            self._timed[:] = True
        else:
            for landing in ahead:
                self._timed[list(landing.group_ranks)] = True
        self._flight = Flight(self.group.engine, self, begin_ps, ahead)
        if self._num_arrived == self._size:
            last_arrival_ps = max(self._arrivals_ps)
            self._last_arrival_ps = max(last_arrival_ps, self._last_arrival_ps)
            self._plan.share_links(self._flight, last_arrival_ps)
            self._take_memory(self._plan, begin_ps + ahead[-1].after_ps - last_arrival_ps)

    def ready_ps(self, group_rank: int) -> int:
        """Return when all members had arrived that a member's end depends on; it has ended."""
        return self._early_ps.get(group_rank, self._last_arrival_ps)

    def last_arrivals(self, ready_ps: int) -> LastArrivals:
        """Return the members that arrived at the time that `ready_ps` gave."""
        found = self._last_arrivals.get(ready_ps)
        if found is None:
            late = [rank for rank, at in enumerate(self._arrivals_ps) if at == ready_ps]
            operations = self._all_operations() if self._represented else self.operations
            calls = [operations[rank] for rank in late]
            sites = [o.issued_at for o in calls if o is not None and o.issued_at is not None]
            by_place = {(id(site.code), site.instruction): site for site in sites}
            ranks = tuple(self.group.ranks[rank] for rank in late)
            found = self._last_arrivals[ready_ps] = LastArrivals(ranks, tuple(by_place.values()))
        return found

    def _take_memory(self, plan: Plan, took_ps: int) -> None:
        """Reserve a collective's share of memory bandwidth, spread over its time."""
        if plan.memory_bytes < _UNSEEN_BYTES or took_ps <= 0:
            return
        # In exact binary parts: what is given back leaves nothing behind.
        bytes_per_ps = ceil(plan.memory_bytes / took_ps * 2**20) / 2**20
        capacity = most = 0.0
        for operation in self.operations:
            if operation is not None and operation.num_sms and operation.stream.head is operation:
                device = operation.stream.device
                hbm = device.hbm
                if hbm.capacity != capacity:
                    capacity = hbm.capacity
                    most = min(bytes_per_ps, floor(capacity * 2**20) / 2**20)
                hbm.held += most - operation.memory_bytes_per_ps
                operation.memory_bytes_per_ps = most
                if hbm.users:
                    device.pool.change(hbm)

    @property
    def link_bytes(self) -> dict[int, int]:
        """The bytes on each link; empty before they are known."""
        return {} if self._plan is None else self._plan.link_bytes

    @property
    def is_synchronizing(self) -> bool:
        """Whether every rank's end depends on every rank's arrival; once that is decided."""
        return self._plan is not None and self._plan.synchronizing

    def end(self, group_ranks: Sequence[int]) -> None:
        """End these ranks now: their data first, then all wake-ups as one."""
        operations = [self.operations[rank] for rank in group_ranks]
        live = [o for o in operations if o is not None and o.stream.head is o]
        if self._represented and self.signature.root is not None:
            self._note_own_ends(group_ranks)
        if live:  # The others' ranks have died meanwhile: nothing is left there that could end.
            self._play(live)
            races = live[0].stream.device.races
            if races is not None and races.order.is_active:
                begun = [o for o in self.operations if o is not None and o.start_ps >= 0]
                root = self.signature.root
                of_root = None if root is None else self.operations[root]
                races.order.gather(live, begun, self.signature.op, of_root)
            with self.group.engine.one_wakeup():
                end_together(live)
        self._ended[list(group_ranks)] = True
        self._num_ended += len(operations)
        assert self._num_ended <= self._size, "a member ends a call once (C5)"
        self._close_if_over()

    def _close_if_over(self) -> None:
        if self._num_ended == self._size:
            self.group.engine.pending.pop(self, None)
            self.group.calls.pop(self.seq, None)
            self.operations = []
            self._flight = None  # It refers back.
            self.ahead = {}

    def is_decided(self, group_rank: int) -> bool:
        """Return whether the others need a member no more: its end is decided."""
        return not self.operations or bool(self._timed[group_rank])

    def go_on_in(self, part: ProcessGroup, narrow: Narrows) -> None:
        """Continue the call with some of its members.

        Raises:
            UnsupportedError: A rank has ended what is now another collective for it.
        """
        if self._num_ended and self.signature.op in ("scatter", "all_to_all"):
            raise UnsupportedError(f"{self.name}, which some members have ended, without another")
        moved = []
        for old_rank, operation in enumerate(self.operations):
            member = part.group_rank(self.group.ranks[old_rank])
            if operation is not None and member >= 0:
                moved.append((operation, old_rank, member, narrow(operation)))
        if self._flight is not None:
            self._flight.cancel()
        self.group.engine.pending.pop(self, None)
        del self.group.calls[self.seq]
        for operation in self.operations:
            if operation is not None and part.group_rank(operation.rank) < 0:
                operation.leave()
        if moved:
            call = part.calls[self.seq] = Call(part, self.seq, moved[0][-1].signature)
            call._take_over(self, moved)

    def _take_over(self, old: Call, moved: Sequence[Moved]) -> None:
        """Go on where a call of more members was."""
        for operation, old_rank, member, request in moved:
            operation.move(self, member, request)
            self.operations[member] = operation
            if request.splits is not None:
                self.join_splits(member, *request.splits, operation.issued_at)
            self._arrivals_ps[member] = old._arrivals_ps[old_rank]
            self._num_arrived += int(old._arrivals_ps[old_rank] < NOT_ARRIVED)
            self._timed[member] = self._ended[member] = old._ended[old_rank]
            if old_rank in old._snapshots:
                self._snapshots[member] = old._snapshots[old_rank]
            if old_rank in old._early_ps:
                self._early_ps[member] = old._early_ps[old_rank]
        self._last_arrival_ps = self.group.engine.now_ps  # Until now members waited for the others.
        self._num_ended = int(self._ended.sum())
        self._close_if_over()
        if self._num_arrived == self._size > self._num_ended:
            self._evaluate()
        elif self._num_ended < self._num_arrived and self.signature.root is not None:
            self._evaluate_early()

    def lose(self, group_rank: int, peer: int, error: BaseException) -> None:
        """Fail all members whose ends are not decided: one member will never take part.

        Args:
            group_rank: The member.
            peer: Global rank of the one that died.
            error: What it raised.
        """
        if self._lost or self._timed[group_rank] or not self.operations:
            return
        self._lost = True
        engine = self.group.engine
        engine.pending.pop(self, None)
        self.group.calls.pop(self.seq, None)
        if isinstance(error, WaitTimeoutError):  # Members whose own limit passes now see that.
            engine.call_at(engine.now_ps + _CLOSURE_PS, partial(self._fail_others, peer, error))
        else:
            self._fail_others(peer, error)

    def _fail_others(self, peer: int, error: BaseException) -> None:
        """Fail the members whose ends are not decided."""
        for member, operation in enumerate(self.operations):
            if operation is not None and not operation.complete and not self._timed[member]:
                own = PeerDiedError(self.group.engine.now_ps, self.name, peer, error)
                operation.stream.fail(operation, own)

    def drop(self, group_rank: int) -> None:
        """Forget a rank that was aborted; without any left, nothing is in flight any more."""
        self._dropped.update((group_rank, *self._represented.get(group_rank, ())))
        if self._flight is not None and len(self._dropped) + self._num_ended >= self._size:
            self._flight.cancel()

    def _play(self, ending: Sequence[CollectiveOperation]) -> None:
        """Move data: of all ranks at the first end once all have arrived, else of those ending."""
        if self._all_played or self._plan is None:
            return
        if self._num_arrived == self._size:
            self._all_played = True
            ending = [o for o in self.operations if o is not None and not o.complete]
        operations = self._all_operations() if self._represented else self.operations
        self._plan.mover.move(operations, ending, self._snapshots)

    def _all_operations(self) -> Sequence[CollectiveOperation | None]:
        """Return the members' parts, of a member that does not run its representative's."""
        operations = list(self.operations)
        for rank, others in self._represented.items():
            for other in others:
                operations[other] = operations[rank]
        return operations


def _columns(signature: Signature) -> dict[str, object]:
    """Return the facts of a call, under the words of reports."""
    columns = {word: value for word, value in signature._asdict().items() if value is not None}
    if signature.op == "all_to_all" and signature.count == UNEVEN:
        del columns["count"]  # It always has split sizes, even ones too.
    return columns


def enter(group: ProcessGroup, group_rank: int, request: Request, *, on_host: bool = False) -> Call:
    """Return the call that a member's next collective belongs to, matched with the others.

    Args:
        group: The group.
        group_rank: The member.
        request: Its side of the call.
        on_host: Whether the host runs it (gloo), which copies inputs first.

    Raises:
        CollectiveMismatchError: Another member called something else.
        ValueError: Input and output overlap, and nccl does not know the place.
    """
    signature = request.signature
    if not on_host and request.source is not request.target:
        check_in_place(request, group_rank)
    if group.dead:
        group.check_alive(f"{signature.op} on group '{group.name}'")
    seq = group.next_seq(group_rank)
    call = group.calls.get(seq)
    if call is None:
        call = group.calls[seq] = Call(group, seq, signature)
    elif signature is not call.signature and signature != call.signature:
        raise call.mismatch(group_rank, signature, user_site())
    if request.splits is not None:
        call.join_splits(group_rank, *request.splits, user_site())
    return call


# ---- One rank's part of a collective, as an operation on a stream of its device ----


class CollectiveOperation(Operation):
    """One rank's part of a collective, on a stream of its device.

    Attributes:
        call: The calls of all ranks that this one belongs to.
        group_rank: Its rank in the group.
        request: What it asked for.
        inputs: What it contributes.
        outputs: What it gets.
        num_sms: SMs that it occupies from its arrival on; none where the host runs it.
        memory_bytes_per_ps: Bandwidth of memory that it takes from its last peer's arrival on.
    """

    __slots__ = (
        "call", "group_rank", "inputs", "is_launch", "memory_bytes_per_ps", "num_sms", "outputs",
        "request",
    )  # fmt: skip
    kind = "collective"
    holds_memory = True
    depth = 4  # It is made by a step of `issue`, which a function of this package calls.
    call: Call
    group_rank: int

    def belong(self, call: Call, group_rank: int, request: Request, num_sms: int = 0) -> None:
        """Attach this operation to its call, before it is submitted.

        A constructor that takes this too would be a call of Python's more, for each collective.

        Args:
            call: The calls of all members.
            group_rank: The member.
            request: What it asks for.
            num_sms: SMs that it will occupy; 0: its host runs it.
        """
        self.call = call
        self.group_rank = group_rank
        self.rank = call.group.ranks[group_rank]
        self.request = request
        self.inputs = request.source
        self.outputs = request.target
        self.num_sms = num_sms
        self.memory_bytes_per_ps = 0.0
        self.is_launch = num_sms > 0  # What the host runs is none.
        group = call.group
        group.world.history.note(self.rank, self.issued_at, request.signature.op, group)

    @property
    def ready_ps(self) -> int:
        """When all members had arrived that its end depends on; once it has ended."""
        return self.call.ready_ps(self.group_rank)

    def last_arrivals(self) -> LastArrivals:
        """Return the members that arrived then."""
        return self.call.last_arrivals(self.ready_ps)

    @property
    def module(self) -> str | None:
        """Return its kernel, one per reduction and type; what the host runs needs none."""
        return module_of(self.call.signature) if self.num_sms else None

    def begin(self) -> None:
        """Arrive: spin on some SMs until the collective lets this rank go."""
        if self.num_sms:  # As `Device.hold` does, here and below: a call of Python's less.
            device = self.stream.device
            sms = device.sms
            sms.held += self.num_sms
            if sms.users:
                device.pool.change(sms)
        self.call.arrive(self)

    def end(self) -> None:
        """Give back what it holds and complete."""
        end_together((self,))

    def fail(self, error: BaseException) -> None:
        """Fail, and fail the members that wait for this rank."""
        super().fail(error)
        if isinstance(error, PeerDiedError):
            self.call.lose(self.group_rank, error.peer, error.peer_error)
        else:
            self.call.group.lose(self.rank, error)

    def move(self, call: Call, group_rank: int, request: Request) -> None:
        """Belong to a call of fewer members, which goes on without the others."""
        self.call, self.group_rank, self.request = call, group_rank, request
        self.inputs, self.outputs = request.source, request.target

    def leave(self) -> None:
        """Take no part any more; what has begun ends now, and its tensors stay as they are."""
        self.call = SkippedCall(self.call.group, self.call.signature)  # type: ignore[assignment]
        if self.start_ps >= 0 and not self.complete and self.stream.head is self:
            self.end()

    def drop(self) -> None:
        """Give back what it holds: the rank was aborted."""
        if self.num_sms and self.start_ps >= 0 and not self.complete:
            _give_back(self, self.stream.device)
        self.call.drop(self.group_rank)


def _give_back(operation: CollectiveOperation, device: Device) -> None:
    """Release the SMs and the bandwidth of a collective."""
    sms = device.sms
    sms.held -= operation.num_sms
    assert sms.held >= 0, "no more SMs are given back than were taken (E11)"
    if sms.users:
        device.pool.change(sms)
    if operation.memory_bytes_per_ps:
        hbm = device.hbm
        hbm.held -= operation.memory_bytes_per_ps
        assert hbm.held >= 0, "no more bandwidth is given back than was taken (E11)"
        operation.memory_bytes_per_ps = 0.0
        if hbm.users:
            device.pool.change(hbm)


def end_together(operations: Sequence[CollectiveOperation]) -> None:
    """Release the resources of parts of one call and complete them, one after the other.

    One loop: what a rank costs here, a program of 100,000 ranks pays for each of its calls.
    """
    call = operations[0].call
    last_issued, details = call.group.last_issued, call.details
    for operation in operations:
        if operation.num_sms:
            _give_back(operation, operation.stream.device)
        operation.details = details
        group_rank = operation.group_rank
        if last_issued[group_rank] is operation:
            last_issued[group_rank] = None  # It would keep the tensors alive.
        operation.conclude()
        request = operation.request
        for target in request.targets or (request.target,):
            writes = target.storage.writes
            if writes is not None:
                writes.settle()


# ---- Calls of inactive ranks ----


class SkippedCall:
    """A call of an inactive member: it ends as it begins, and moves nothing.

    Attributes:
        group: The group.
        signature: What was asked for.
        name: For reports.
        details: None: there are no facts.
    """

    details: dict[str, Any] | None = None

    def __init__(self, group: ProcessGroup, signature: Signature) -> None:
        self.group = group
        self.signature = signature
        self.name = f"{signature.op} on group '{group.name}', inactive rank"

    def arrive(self, operation: CollectiveOperation) -> None:
        """End."""
        operation.end()

    def ready_ps(self, group_rank: int) -> int:
        """Return 0: it waits for no member."""
        del group_rank
        return 0

    def lose(self, group_rank: int, peer: int, error: BaseException) -> None:
        """Do nothing: no member waits for it."""

    def drop(self, group_rank: int) -> None:
        """Do nothing, as `lose`."""
