"""Waits of a job's ranks: calls that have not ended, and the ranks that have not come."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from simrank.diagnose.records import CallArguments, CallColumns, Records

_LOOK_BACK = 50  # Assumed: calls before the stuck one whose arguments are compared as well.
_ROOTED = ("gather", "gather_single", "scatter")
# None of these ends before all have come; a rank can go on from a broadcast or a reduce.
_OF_ALL = ("all_", "alltoall", "allreduce", "allgather", "barrier", "reduce_scatter")


class MatchedCalls(NamedTuple):
    """The calls of ranks that belong together: a collective of a group, or a message.

    Attributes:
        group: The group, by its place in `Records.groups`.
        number: The collective's number; of a message, which of those that are unfinished.
        source, target: The ends of a message; -1 for a collective.
    """

    group: int
    number: int
    source: int = -1
    target: int = -1

    @property
    def is_message(self) -> bool:
        """Return whether it is a message."""
        return self.source >= 0


class Mismatch(NamedTuple):
    """Calls that meet and do not fit each other.

    Attributes:
        kind: `op`, `size`, `dtype` or `root`.
        odd: The ranks that are unlike the most; all of them if there is no such.
        usual: The others.
    """

    kind: str
    odd: frozenset[int]
    usual: frozenset[int]


@dataclass(slots=True, eq=False)
class Wait:
    """A meeting that has not ended.

    Attributes:
        meeting: Which.
        waiting: Where the call stands in each waiting rank's columns; None: it was not kept.
        absent: Members with a record that have not come.
        unknown: Members without one.
        mismatch: How the calls differ, or None.
        stands_behind: What must end before it can.
        is_stuck: False for a meeting whose ranks wait in an earlier one of the same group.
    """

    meeting: MatchedCalls
    waiting: dict[int, int | None] = field(default_factory=dict)
    absent: frozenset[int] = frozenset()
    unknown: frozenset[int] = frozenset()
    mismatch: Mismatch | None = None
    stands_behind: set[MatchedCalls] = field(default_factory=set)
    is_stuck: bool = True


class Waits:
    """Everything that has not ended in a job, as a graph.

    Args:
        records: Of the job.

    Attributes:
        records: As given.
        all: Each meeting that some rank waits in.
        of_rank: What each rank waits in, in the order of its calls.
    """

    def __init__(self, records: Records) -> None:
        self.records = records
        self.all: dict[MatchedCalls, Wait] = {}
        self.of_rank: dict[int, list[MatchedCalls]] = {rank: [] for rank in records.lanes}
        self._ends: dict[MatchedCalls, tuple[int | None, int | None]] = {}
        self._lanes_of: defaultdict[int, list[CallColumns]] = defaultdict(list)
        for group, known in enumerate(records.groups):
            self._lanes_of[group] = [
                records.lanes[rank] for rank in known.ranks if rank in records.lanes
            ]
        first = self._collectives()
        self._messages()
        for wait in self.all.values():
            self._complete(wait)
        self._later_mismatches(first)
        self._connect()

    # ---- what has not ended ----

    def _collectives(self) -> dict[int, int]:
        """Note each rank's first unfinished collective of each group; return the groups' first."""
        first: dict[int, int] = {}
        for rank, lane in self.records.lanes.items():
            for group in lane.last_numbers:
                made = lane.collectives(group)
                number = next((n for n, at in made.items() if not lane.is_over[at]), None)
                if number is None:
                    continue
                at: int | None = made[number]
                over = lane.last_over.get(group, -1)
                if number == next(iter(made)) and 0 <= over < number - 1:
                    number, at = over + 1, None  # The stuck call has left the ring.
                first[group] = min(first.get(group, number), number)
                self._add(MatchedCalls(group, number), rank, at)
        return first

    def _add(self, meeting: MatchedCalls, rank: int, at: int | None) -> None:
        wait = self.all.get(meeting)
        if wait is None:
            wait = self.all[meeting] = Wait(meeting)
        wait.waiting.setdefault(rank, at)
        self.of_rank[rank].append(meeting)

    def _messages(self) -> None:
        """Join unfinished sends and receives, by group and ends, in their order."""
        pairs: defaultdict[tuple[int, int, int], tuple[list[int], list[int]]]
        pairs = defaultdict(lambda: ([], []))
        num_over: defaultdict[tuple[int, int, int], list[int]] = defaultdict(lambda: [0, 0])
        for rank, lane in self.records.lanes.items():
            for at, number in enumerate(lane.numbers):
                ends = lane.groups[at], lane.sources[at], lane.targets[at]
                if number >= 0 or ends[1] < 0:
                    continue
                is_receive = ends[1] != rank or not self._op(lane, at).startswith("send")
                if lane.is_over[at]:
                    num_over[ends][is_receive] += 1
                else:
                    pairs[ends][is_receive].append(at)
        is_whole = not any(lane.num_lost for lane in self.records.lanes.values())
        for ends, both in pairs.items():
            skip = (0, 0)
            if is_whole and set(ends[1:]) <= self.records.lanes.keys():
                # A finished send whose receive has not finished has met one that looks unfinished.
                more = num_over[ends][0] - num_over[ends][1]
                skip = max(-more, 0), max(more, 0)
            self._join_messages(ends, both[0][skip[0] :], both[1][skip[1] :])
        for rank, meetings in self.of_rank.items():
            meetings.sort(key=lambda each: self._place_in_lane(each, rank))

    def _join_messages(
        self, ends: tuple[int, int, int], sends: list[int], receives: list[int]
    ) -> None:
        group, source, target = ends
        for number, (send, receive) in enumerate(zip_longest(sends, receives)):
            meeting = MatchedCalls(group, number, source, target)
            self._ends[meeting] = send, receive
            for rank, at in ((source, send), (target, receive)):
                if at is not None:
                    self._add(meeting, rank, at)

    def _place_in_lane(self, meeting: MatchedCalls, rank: int) -> int:
        at = self.all[meeting].waiting[rank]
        return -1 if at is None else at

    def _op(self, lane: CallColumns, at: int) -> str:
        return self.records.asked[lane.asked[at]].op

    # ---- which ranks have come, with what ----

    def _complete(self, wait: Wait) -> None:
        """Find the ranks that have not come to a meeting, and whether the others agree."""
        meeting = wait.meeting
        if meeting.is_message:
            ends = zip((meeting.source, meeting.target), self._ends[meeting], strict=True)
            missing = {rank for rank, at in ends if at is None}
        else:
            missing = {
                rank
                for rank in self.records.groups[meeting.group].ranks
                if rank not in self.records.lanes
                or self.records.lanes[rank].last_numbers.get(meeting.group, -1) < meeting.number
            }
        wait.absent = frozenset(missing & self.records.lanes.keys())
        wait.unknown = frozenset(missing - self.records.lanes.keys())
        wait.mismatch = self.mismatch(meeting)

    def calls(self, meeting: MatchedCalls) -> dict[int, int]:
        """Return the places of a meeting's calls in each rank's columns, ended or not."""
        if meeting.is_message:
            ends = zip((meeting.source, meeting.target), self._ends[meeting], strict=True)
            return {rank: at for rank, at in ends if at is not None}
        found = {}
        for lane in self._lanes_of[meeting.group]:
            at = lane.collectives(meeting.group).get(meeting.number)
            if at is not None:
                found[lane.rank] = at
        return found

    def asked(self, rank: int, at: int) -> CallArguments:
        """Return the arguments of a call."""
        return self.records.asked[self.records.lanes[rank].asked[at]]

    def mismatch(self, meeting: MatchedCalls) -> Mismatch | None:
        """Return the mismatch of a meeting's calls, or None."""
        made = {rank: self.asked(rank, at) for rank, at in self.calls(meeting).items()}
        if meeting.is_message:
            return _of_message(made) if len(made) > 1 else None
        keys: defaultdict[tuple[object, ...], set[int]] = defaultdict(set)
        for rank, asked in made.items():
            keys[_must_agree(asked)].add(rank)
        if len(keys) > 1:
            ops, sizes = {key[0] for key in keys}, {key[1] for key in keys}
            kind = "op" if len(ops) > 1 else "size" if len(sizes) > 1 else "dtype"
            return _odd_ones(kind, keys.values())
        is_whole = len(made) == len(self.records.groups[meeting.group].ranks)
        op = next((asked.op for asked in made.values()), "")
        if op in _ROOTED:
            return self._roots(op, made, meeting, is_whole=is_whole)
        return _of_splits(made, is_whole=is_whole) if _is_all_to_all(op) else None

    def _roots(
        self, op: str, made: Mapping[int, CallArguments], meeting: MatchedCalls, *, is_whole: bool
    ) -> Mismatch | None:
        """Return a mismatch if ranks have the tensors that only the root has, or lack them.

        A rank that was not the root at this line before is odd; of several roots, too.
        """
        roots = {rank for rank, asked in made.items() if _is_root(op, asked)}
        odd = {rank for rank in roots if self._was_no_root(op, rank, meeting)}
        if (len(roots) == 1 and (is_whole or not odd)) or not (roots or is_whole):
            return None
        if not odd or len(roots - odd) > 1:
            return Mismatch("root", frozenset(roots or made), frozenset())
        return Mismatch("root", frozenset(odd), frozenset(made.keys() - odd))

    def _was_no_root(self, op: str, rank: int, meeting: MatchedCalls) -> bool:
        """Return whether a rank called the same line before, mostly without being the root."""
        lane = self.records.lanes[rank]
        at = lane.collectives(meeting.group)[meeting.number]
        asked = self.records.asked
        before = [
            _is_root(op, asked[each])
            for each, stack, group in zip(
                lane.asked[:at], lane.stacks[:at], lane.groups[:at], strict=True
            )
            if stack == lane.stacks[at] and group == meeting.group and asked[each].op == op
        ]
        return before.count(False) > before.count(True)

    def _later_mismatches(self, first: Mapping[int, int]) -> None:
        """Look for calls that differ from a group's stuck one on, and in some before it.

        Operations of asynchronous calls go on: what differs may be past what is unfinished.
        """
        for group, number in first.items():
            last = max(lane.last_numbers.get(group, -1) for lane in self._lanes_of[group])
            for each in range(max(number - _LOOK_BACK, 0), last + 1):
                meeting = MatchedCalls(group, each)
                if meeting in self.all:
                    if self.all[meeting].mismatch:
                        break
                    continue
                mismatch = self._quick_mismatch(meeting)
                if mismatch is not None:
                    stuck = self.all[MatchedCalls(group, number)]
                    late = Wait(meeting, dict.fromkeys(stuck.waiting), mismatch=mismatch)
                    late.is_stuck = False
                    self.all[meeting] = late
                    break

    def _quick_mismatch(self, meeting: MatchedCalls) -> Mismatch | None:
        made = {
            lane.asked[at]
            for lane in self._lanes_of[meeting.group]
            if (at := lane.collectives(meeting.group).get(meeting.number)) is not None
        }
        if len(made) <= 1 and not any(self.records.asked[each].op in _ROOTED for each in made):
            return None
        return self.mismatch(meeting)

    def older(self) -> dict[int, MatchedCalls]:
        """Return the ranks whose record is older than a call that they must have come to.

        A peer has gone on from it, which it cannot before all have come: the job went on as the
        records were written. A call that fails ends too (gloo), but its rank makes no more.
        """
        found: dict[int, MatchedCalls] = {}
        for group, lanes in self._lanes_of.items():
            last = {lane.rank: lane.last_numbers.get(group, -1) for lane in lanes}
            low = min(last.values(), default=0)
            over: dict[int, int] = {}
            for lane in lanes:
                for number, at in lane.collectives(group).items():
                    is_of_all = self._op(lane, at).lstrip("_").startswith(_OF_ALL)
                    if number > low and is_of_all and lane.is_over[at] and at + 1 < len(lane):
                        over.setdefault(number, at)
            for rank, number in last.items():
                later = [each for each in over if each > number]
                if later:
                    found.setdefault(rank, MatchedCalls(group, min(later)))
        return found

    # ---- what waits for what ----

    def _connect(self) -> None:
        """Find out what stands behind what: peers' waits, and earlier calls of stream or group."""
        by_group: defaultdict[int, list[MatchedCalls]] = defaultdict(list)
        for meeting in self.all:
            if not meeting.is_message:
                by_group[meeting.group].append(meeting)
        for meeting, wait in self.all.items():
            behind = wait.stands_behind
            for rank in wait.absent:
                behind.update(self.of_rank[rank])
            if not meeting.is_message and wait.is_stuck:
                behind.update(
                    each
                    for each in by_group[meeting.group]
                    if each.number < meeting.number and self.all[each].is_stuck
                )
            if (
                not wait.absent and wait.is_stuck
            ):  # All came: it is behind its ranks' earlier calls.
                for rank in wait.waiting:
                    mine = self.of_rank[rank]
                    own = self._place_in_lane(meeting, rank)
                    behind.update(each for each in mine if self._place_in_lane(each, rank) < own)
            behind.discard(meeting)

    def because_of(self, causes: Collection[MatchedCalls]) -> set[MatchedCalls]:
        """Return the meetings that wait because of some, those among them."""
        behind: defaultdict[MatchedCalls, list[MatchedCalls]] = defaultdict(list)
        for meeting, wait in self.all.items():
            for cause in wait.stands_behind:
                behind[cause].append(meeting)
        seen, todo = set(causes), list(causes)
        while todo:
            for meeting in behind[todo.pop()]:
                if meeting not in seen:
                    seen.add(meeting)
                    todo.append(meeting)
        return seen

    def ranks_in(self, meetings: Iterable[MatchedCalls]) -> set[int]:
        """Return the ranks that wait in some meetings."""
        return {rank for meeting in meetings for rank in self.all[meeting].waiting}

    def rings(self) -> list[list[MatchedCalls]]:
        """Return the sets of meetings that wait for each other, in the order of their first."""
        index: dict[MatchedCalls, int] = {}
        low: dict[MatchedCalls, int] = {}
        path: list[MatchedCalls] = []
        on_path: set[MatchedCalls] = set()
        found = []
        for start in self.all:
            if start in index:
                continue
            work = [(start, iter(sorted(self.all[start].stands_behind)))]
            index[start] = low[start] = len(index)
            path.append(start)
            on_path.add(start)
            while work:  # Tarjan's, without recursion: chains are as long as there are ranks.
                meeting, rest = work[-1]
                following = next((each for each in rest if each in self.all), None)
                if following is None:
                    work.pop()
                    if work:
                        low[work[-1][0]] = min(low[work[-1][0]], low[meeting])
                    if low[meeting] == index[meeting]:
                        at = path.index(meeting)
                        ring, path[at:] = path[at:], []
                        on_path.difference_update(ring)
                        found += [sorted(ring)] if len(ring) > 1 else []
                elif following not in index:
                    index[following] = low[following] = len(index)
                    path.append(following)
                    on_path.add(following)
                    work.append((following, iter(sorted(self.all[following].stands_behind))))
                elif following in on_path:
                    low[meeting] = min(low[meeting], index[following])
        return sorted(found)


# ---- what must agree ----


def _is_root(op: str, asked: CallArguments) -> bool:
    return bool(asked.input_numel if op == "scatter" else asked.output_numel)


def _is_all_to_all(op: str) -> bool:
    return op.startswith(("all_to_all", "alltoall"))


def _must_agree(asked: CallArguments) -> tuple[object, ...]:
    """Return the key that all members must share: operation, sizes and element type."""
    op, dtypes = asked.op, asked.dtypes[:1]
    if op.startswith(("barrier", "all_reduce_barrier")):
        return op, (), ()
    if _is_all_to_all(op):
        return op, (), dtypes
    if op in ("gather", "gather_single", "reduce", "reduce_scatter", "reduce_scatter_v"):
        return op, asked.input_numel, asked.input_dtypes[:1]
    if op in ("scatter", "all_gather", "all_gather_v"):
        return op, asked.output_numel, asked.output_dtypes[:1]
    return op, (asked.input_numel, asked.output_numel), dtypes


def _odd_ones(kind: str, sets: Iterable[set[int]]) -> Mismatch:
    """Return the ranks that are unlike the most: all if no set is the largest."""
    most, *others = sorted(sets, key=lambda ranks: (-len(ranks), min(ranks)))
    odd = frozenset().union(*others)
    if len(most) == len(others[0]):
        return Mismatch(kind, odd | most, frozenset())
    return Mismatch(kind, odd, frozenset(most))


def _of_message(made: Mapping[int, CallArguments]) -> Mismatch | None:
    send, receive = sorted(made.values(), key=lambda asked: asked.op != "send")
    sizes = [each.input_numel or each.output_numel for each in (send, receive)]
    dtypes = [each.dtypes for each in (send, receive)]
    kind = "size" if sizes[0] != sizes[1] else "dtype" if dtypes[0] != dtypes[1] else None
    return None if kind is None else Mismatch(kind, frozenset(made), frozenset())


def _of_splits(made: Mapping[int, CallArguments], *, is_whole: bool) -> Mismatch | None:
    """Return a mismatch of all-to-all: what goes in must come out, over all its ranks.

    The splits are not recorded; a rank that gives or takes another total is odd.
    """
    totals: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for rank, asked in made.items():
        totals[asked.input_numel, asked.output_numel].add(rank)
    if len(totals) == 1:
        return None
    (num_in, num_out), most = max(totals.items(), key=lambda each: (len(each[1]), -min(each[1])))
    odd = frozenset(made.keys() - most)
    if not is_whole:
        is_usual = num_in == num_out and len(odd) * 4 <= len(made)
        return Mismatch("size", odd, frozenset(most)) if is_usual else None
    if sum(asked.input_numel - asked.output_numel for asked in made.values()) == 0:
        return None
    return Mismatch("size", odd, frozenset(most))
