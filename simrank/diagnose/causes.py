"""From what waits for what to the rank and the line at fault."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from simrank.diagnose.odd_calls import CallStep, OddCalls
from simrank.diagnose.records import host_text
from simrank.diagnose.waits import MatchedCalls, Waits
from simrank.errors import who_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.diagnose.records import Records, StackLine
    from simrank.diagnose.waits import Mismatch, Wait

# Assumed: a call that is younger than this as records are written goes on. Measured: to write the
# record of a process took up to 2.8 s on a busy machine, and 6 s where eight wrote on two cores.
_UNDER_WAY_S = 5.0
_MIN_LATE = 5  # Assumed: calls from which on "it came last to most" is said.
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Repair:
    """A change of a rank's calls with which it would have gone on with the others.

    Attributes:
        rank: Whose calls to change.
        at: Where, in its columns.
        text: In words, after "with".
        removes: Whether the call there was not to be made.
        puts: A call like the one to make there, as `(rank, at)`; None: none.
        is_moved: Whether it is one that the rank makes later.
    """

    rank: int
    at: int
    text: str
    removes: bool = False
    puts: tuple[int, int] | None = None
    is_moved: bool = False


@dataclass(slots=True)
class Cause:
    """Why a job hangs, as far as its records tell.

    Attributes:
        kind: `absent`, `skipped`, `additional`, `order`, `op`, `size`, `dtype`, `root`,
            `message`, `ring`, `no record`, `arrived`.
        ranks: At fault.
        confidence: `high`, `medium` or `low`.
        what: One sentence.
        why: What is likely behind it, and what speaks for it.
        place: The line to look at, or None.
        meetings: The calls that it is about.
        step: Where the rank diverged from the others, if it did.
        waiting: Where ranks wait, or what they last did: pairs of ranks and words.
        victims: Ranks that wait only because of it.
        repairs: What would have prevented it, for each rank at fault, as far as calls tell.
    """

    kind: str
    ranks: tuple[int, ...]
    confidence: str
    what: str
    why: str = ""
    place: StackLine | None = None
    meetings: tuple[MatchedCalls, ...] = ()
    step: CallStep | None = None
    waiting: list[tuple[str, str]] = field(default_factory=list)
    victims: frozenset[int] = frozenset()
    repairs: list[Repair] = field(default_factory=list)

    @property
    def is_explained_by_reason(self) -> bool:
        """Return whether `why` says what happened, and `what` what came of it."""
        return self.step is not None or self.kind in ("skipped", "additional")


class Causes:
    """Finds the cause in the records of a job.

    Args:
        records: Of the job.

    Attributes:
        records, waits, odd: What it looks at.
        older: Ranks whose record is older than a call that they came to, with the call.
    """

    def __init__(self, records: Records) -> None:
        self.records = records
        self.waits = Waits(records)
        self.odd = OddCalls(records)
        self.older = self.waits.older()
        self._has_stacks = any(any(lane.stacks) for lane in records.lanes.values())

    def find(self) -> Cause | None:
        """Return the cause; None if nothing hangs, or the records are of unlike moments."""
        if self.older:
            return None
        if not any(self.waits.of_rank.values()):
            return None if self._is_under_way() else self._uneven()
        cause = self._of_mismatch() or self._of_absence() or self._of_ring() or self._of_the_rest()
        is_of_calls = cause.kind in ("op", "size", "dtype", "root")
        return None if not is_of_calls and self._is_under_way() else cause

    def _is_under_way(self) -> bool:
        """Return whether no call of a real host has waited for long as the records were written.

        A rank that has not come may have come after its record was written: both ends count.
        """
        lanes = self.records.lanes
        real = [lane for lane in lanes.values() if lane.is_host_time and len(lane)]
        if not real:
            return False
        if not self.waits.all:
            ages_s = (lane.written_s - lane.created_ns[-1] / _NS_PER_S for lane in real)
            return min(ages_s) < _UNDER_WAY_S
        for wait in self.waits.all.values():
            written_s = [lanes[rank].written_s for rank in wait.absent]
            for rank, at in wait.waiting.items():
                lane = lanes[rank]
                called_s = lane.created_ns[at] / _NS_PER_S if at is not None else 0.0
                if min([lane.written_s, *written_s]) - called_s >= _UNDER_WAY_S:
                    return False
        return True

    # ---- calls that do not fit each other ----

    def _of_mismatch(self) -> Cause | None:
        found = [wait for wait in self.waits.all.values() if wait.mismatch is not None]
        if not found:
            return None
        wait = min(found, key=self._first_by_time)
        mismatch = wait.mismatch
        assert mismatch is not None, "it was looked for"
        made = self.waits.calls(wait.meeting)
        odd, usual, is_sure = self._odd_of(mismatch, made)
        cause = Cause(
            mismatch.kind,
            tuple(sorted(odd)),
            "high" if usual and is_sure else "medium",
            "",
            meetings=(wait.meeting,),
            victims=frozenset(self._victims([wait.meeting])),
        )
        self._say_mismatch(cause, wait, odd, usual, made)
        self._explain_mismatch(cause, wait, usual, made)
        return cause

    def _first_by_time(self, wait: Wait) -> tuple[object, ...]:
        """Sort mismatches: by when the first of their calls was made, hosts' clocks apart."""
        made = self.waits.calls(wait.meeting)
        times = [self.records.lanes[rank].created_ns[at] for rank, at in made.items()]
        return min(times, default=0), wait.meeting

    def _odd_of(
        self, mismatch: Mismatch, made: dict[int, int]
    ) -> tuple[frozenset[int], frozenset[int], bool]:
        """Return the ranks at fault of a mismatch, the others, and whether that is sure."""
        if mismatch.usual:
            return mismatch.odd, mismatch.usual, len(mismatch.usual) >= 2
        ranks = mismatch.odd & made.keys()
        steps = self.odd.clear(ranks)
        diverged = frozenset(step.rank for step in steps)
        if diverged and diverged != mismatch.odd:
            return diverged, mismatch.odd - diverged, self._has_stacks
        often = {rank: self.odd.num_like(rank, made[rank]) for rank in ranks}
        low, high = min(often.values(), default=0), max(often.values(), default=0)
        if low * 3 <= high:  # A call that is seen nowhere else, beside one that is usual.
            rare = frozenset(rank for rank, num in often.items() if num == low)
            return rare, mismatch.odd - rare, self._has_stacks
        return mismatch.odd, frozenset(), False

    def _say_mismatch(
        self,
        cause: Cause,
        wait: Wait,
        odd: frozenset[int],
        usual: frozenset[int],
        made: dict[int, int],
    ) -> None:
        who = who_text(odd)
        first = min(odd & made.keys())
        mine = self.waits.asked(first, made[first])
        cause.place = self.records.place(self.records.lanes[first], made[first])
        what = self.title(wait.meeting)
        others = sorted(usual & made.keys())
        if cause.kind == "root":
            cause.what = (
                f"{who} act{'s' * (len(odd) == 1)} as a root of {what} that others have not"
            )
            cause.why = "src or dst differs between ranks (a group rank taken for a rank?)"
        elif others:
            theirs = self.waits.asked(others[0], made[others[0]])
            cause.what = f"{who} made {mine} where {who_text(others)} made {theirs}: {what}"
        else:
            cause.what = f"calls of {what} do not fit each other: {who}"
        if cause.kind == "size":
            cause.why = "uneven batches or shards, or padding that one rank lacks"
        elif cause.kind == "dtype":
            cause.why = "a cast, or autocast, on some ranks only"
        elif cause.kind == "op":
            cause.why = "a branch that only some ranks take, or a loop that some leave earlier"
        shown = [[rank] for rank in sorted(odd & made.keys())[:3]]
        for ranks in [*shown, others] if others else shown:
            rank = ranks[0]
            asked = self.waits.asked(rank, made[rank])
            cause.waiting.append((who_text(ranks), f"{asked} at {self._line(rank, made[rank])}"))

    def _explain_mismatch(
        self, cause: Cause, wait: Wait, usual: frozenset[int], made: dict[int, int]
    ) -> None:
        """Say whether a rank left a call out, or made one more, so that unlike calls meet."""
        first = cause.ranks[0]
        others = sorted(usual & made.keys())
        if wait.meeting.is_message or first not in made or not others:
            return
        theirs = self.waits.asked(others[0], made[others[0]])
        text = f"{theirs} of {who_text(cause.ranks)} there"
        usual_call = others[0], made[others[0]]
        cause.repairs = [
            Repair(rank, made[rank], text, removes=True, puts=usual_call)
            for rank in cause.ranks
            if rank in made
        ]
        if self._is_explained_by_step(cause, first, made[first]):
            return
        if cause.kind == "size" and cause.confidence == "high":
            shift = self.odd.shift(first, others, wait.meeting.group)
            if shift is not None and shift[1]:
                self._explain_shift(cause, first, wait.meeting.group, *shift)
                return
        if cause.kind != "op":
            return
        net = self.odd.comes_before((others[0], made[others[0]]), (first, made[first]))
        shift = self.odd.shift(first, others, wait.meeting.group)
        if net > 0:
            place = first, made[first]
            self._call_was(cause, "skipped", others[0], made[others[0]], place=place)
        elif net < 0:
            self._call_was(cause, "additional", first, made[first], place=(first, made[first]))
        elif shift is not None and shift[1]:
            self._explain_shift(cause, first, wait.meeting.group, *shift)

    def _is_explained_by_step(self, cause: Cause, rank: int, at: int) -> bool:
        """Name the step at which a rank diverged before a call that does not fit, if it did."""
        step = self.odd.of_rank(rank)
        if step is None or not step.is_clear or step.at >= at:
            return False
        is_here = cause.kind in ("size", "dtype") and step.at + 1 == at
        is_like_usual = self.odd.is_like_usual(step)
        if step.kind in ("skipped", "additional", "swapped"):
            if (
                step.kind != "additional"
                or not (is_here and is_like_usual)
                or self.odd.is_repeat(step)
            ):
                self._by_step(cause, step)
            return True
        if is_here and not is_like_usual:  # It asks for another thing, not for another size.
            self._by_step(cause, step)
            return True
        if cause.kind == "op" and step.at + 1 == at:
            cause.why += f": {self._step_text(step)}"
        return False

    def _explain_shift(self, cause: Cause, rank: int, group: int, at: int, by: int) -> None:
        """Say that a rank's calls are the others', moved."""
        lane = self.records.lanes[rank]
        if by < 0:
            self._call_was(cause, "additional", rank, at, place=(rank, at))
            return
        number = lane.numbers[at]
        for peer in self.records.groups[group].ranks:
            if peer != rank and peer in self.records.lanes:
                theirs = self.records.lanes[peer].collectives(group).get(number)
                if theirs is not None:
                    self._call_was(cause, "skipped", peer, theirs, place=(rank, at))
                    return

    def _call_was(
        self, cause: Cause, kind: str, rank: int, at: int, *, place: tuple[int, int]
    ) -> None:
        """Say that the ranks at fault left out a call like this one, or made it besides.

        Args:
            cause: To complete.
            kind: `skipped` or `additional`.
            rank: A rank that made such a call.
            at: Where it stands in its columns.
            place: Where the rank at fault left it out, or made it.
        """
        op, line = self.waits.asked(rank, at).name, self._line(rank, at)
        cause.kind = kind
        cause.place = self.records.place(self.records.lanes[rank], at)
        who, step = who_text(cause.ranks), cause.step
        if kind == "skipped":
            put_off = " or put off" * (step is not None and step.is_last)
            cause.why = f"{who} skipped{put_off} {op} at {line}"
            repair = Repair(*place, f"{op} of {who} at {line}", puts=(rank, at))
        else:
            cause.why = f"{who} made one more {op} at {line}"
            repair = Repair(*place, f"one {op} less of {who} at {line}", removes=True)
        cause.repairs = [repair, *self._same_repairs(cause, repair)]

    def _same_repairs(self, cause: Cause, repair: Repair) -> list[Repair]:
        """Return the same repair for the other ranks at fault, at their own odd steps."""
        steps = [self.odd.of_rank(rank) for rank in cause.ranks if rank != repair.rank]
        return [
            replace(repair, rank=step.rank, at=step.at + 1)
            for step in steps
            if step is not None and step.is_clear
        ]

    def _by_step(self, cause: Cause, step: CallStep) -> None:
        """Name the step at which a rank diverged from the others."""
        cause.step = step
        after = step.rank, step.at + 1
        if step.kind == "skipped":
            self._call_was(cause, "skipped", *step.usual, place=after)
        elif step.kind == "additional":
            self._call_was(cause, "additional", *after, place=after)
        else:
            cause.place = self.records.place(self.records.lanes[step.rank], step.at + 1)
            cause.why = self._step_text(step)
            if step.kind == "swapped":
                cause.kind = "order"
                op, line = self.waits.asked(*step.usual).name, self._line(*step.usual)
                text = f"{op} of {who_text(cause.ranks)} at {line} first"
                repair = Repair(*after, text, puts=step.usual, is_moved=True)
                cause.repairs = [repair, *self._same_repairs(cause, repair)]

    def _step_text(self, step: CallStep) -> str:
        calls = [(step.rank, step.at), (step.rank, step.at + 1), step.usual]
        before, after, usual = (
            f"{self.waits.asked(*call).name} at {self._line(*call)}" for call in calls
        )
        return f"rank {step.rank} alone went from {before} to {after}, elsewhere to {usual}"

    # ---- ranks that have not come, and wait for nothing ----

    def _of_absence(self) -> Cause | None:
        """Return the cause if ranks have not come to a call though none of theirs is unfinished."""
        free: dict[MatchedCalls, set[int]] = {}
        for meeting, wait in self.waits.all.items():
            idle = {rank for rank in wait.absent if not self.waits.of_rank[rank]}
            if idle:
                free[meeting] = idle
        if not free:
            return None
        victims = {meeting: self._victims([meeting]) for meeting in free}
        meeting = max(free, key=lambda each: (len(victims[each]), [-part for part in each]))
        ranks = set().union(*free.values())
        wait = self.waits.all[meeting]
        stopped = self._stopped_early(ranks, wait)
        cause = stopped or self._absent(ranks, meeting, len(free))
        cause.victims = frozenset().union(*victims.values()) - set(cause.ranks)
        return cause

    def _absent(self, ranks: set[int], meeting: MatchedCalls, num: int) -> Cause:
        first = min(ranks)
        lane = self.records.lanes[first]
        what = f"{who_text(ranks)} never came to {self.title(meeting)}"
        if num > 1:
            what += f" and {num - 1} more call{'s' * (num > 2)}"
        cause = Cause("absent", tuple(sorted(ranks)), "high", what, meetings=(meeting,))
        if not len(lane):
            cause.why = "it has recorded no call: it is stuck before its first one, or ended there"
            self._add_host(cause, first)
            return cause
        at = len(lane) - 1
        cause.place = self.records.place(lane, at)
        cause.waiting.append((who_text([first]), f"last {self._call(first, at)}, which ended"))
        cause.why = (
            "none of its calls is unfinished: after this line it left the loop, raised, ended, or"
            " is stuck in its own code (data, checkpoint, lock, out of memory)"
        )
        if meeting.is_message:
            cause.kind = "message"
            end = "send" if meeting.source in ranks else "recv"
            cause.what = f"{who_text(ranks)} never made the {end} of {self.title(meeting)}"
        else:
            members = self.records.groups[meeting.group].ranks
            shift = self.odd.shift(first, members, meeting.group) if len(ranks) == 1 else None
            if shift is not None and shift[1] > 0:
                self._explain_shift(cause, first, meeting.group, *shift)
            elif shift is not None and shift[1] < 0:
                cause.kind, cause.confidence = "additional", "medium"
                self._explain_shift(cause, first, meeting.group, *shift)
        self._doubt_gloo(cause, first, meeting)
        self._add_host(cause, first)
        self._add_late(cause, first)
        self._add_waiting(cause, meeting)
        return cause

    def _stopped_early(self, ranks: set[int], wait: Wait) -> Cause | None:
        """Return another cause if most ranks stopped at one line: those that wait went on alone."""
        lanes = [self.records.lanes[rank] for rank in sorted(ranks)]
        if wait.meeting.is_message or wait.unknown or not all(map(len, lanes)):
            return None
        ends = {self._line(lane.rank, len(lane) - 1) for lane in lanes}
        if len(wait.waiting) * 2 >= len(ranks) or len(ends) > 1:
            return None
        waiting = tuple(sorted(wait.waiting))
        cause = Cause(
            "additional",
            waiting,
            "medium",
            f"{who_text(waiting)} alone came to {self.title(wait.meeting)}; {who_text(ranks)} had"
            " ended before",
            f"{who_text(waiting)} made one more call, or one more step; or all others stopped too"
            f" early, after {ends.pop()}",
            meetings=(wait.meeting,),
        )
        at = wait.waiting[waiting[0]]
        if at is not None:
            cause.place = self.records.place(self.records.lanes[waiting[0]], at)
        return cause

    def _doubt_gloo(self, cause: Cause, rank: int, meeting: MatchedCalls) -> None:
        """Say what gloo's records do not: messages, and that a call has failed."""
        if not self.records.is_gloo:
            return
        if cause.kind == "absent" and rank not in self.records.hosts:
            cause.confidence = "medium"
            cause.why += ", or in a message: gloo does not record them"
        lane = self.records.lanes[rank]
        if not self.records.missing or lane.numbers[-1] < 0:
            return
        dead = set(self.records.groups[lane.groups[-1]].ranks) & set(self.records.missing)
        if dead:
            who = who_text(cause.ranks)
            cause.kind, cause.ranks, cause.confidence = "no record", tuple(sorted(dead)), "medium"
            cause.what = (
                f"{who_text(dead)} left no record, and {who} did not come to"
                f" {self.title(meeting)} after a call with it"
            )
            cause.why = (
                f"{who_text(dead)} died or is stuck, and that call failed: gloo's record does not"
                f" tell a failed call from one that ended; else {who} stopped by itself"
            )

    def _add_host(self, cause: Cause, rank: int) -> None:
        stack = self.records.hosts.get(rank)
        if stack:
            cause.why = (
                f"its host is at {host_text(stack)} (stacks beside the records); {cause.why}"
            )

    def _add_late(self, cause: Cause, rank: int) -> None:
        late = self._late(rank)
        if late:
            cause.why += f"; {late}"

    def _late(self, rank: int) -> str:
        """Return a remark on a rank that came last to most of its last calls, or ""."""
        lanes = self.records.lanes
        num = num_last = 0
        behind_ns: list[float] = []
        for group in sorted(lanes[rank].last_numbers):
            peers = [lanes[r] for r in self.records.groups[group].ranks if r != rank and r in lanes]
            if len(peers) < 2:
                continue
            for number, at in list(lanes[rank].collectives(group).items())[-20:]:
                places = [(lane, lane.collectives(group).get(number)) for lane in peers[:8]]
                times = [lane.created_ns[p] for lane, p in places if p is not None]
                if len(times) > 1:
                    num += 1
                    own = lanes[rank].created_ns[at]
                    if own > max(times):
                        num_last += 1
                        behind_ns.append(own - statistics.median(times))
        if num < _MIN_LATE or num_last < 0.8 * num or statistics.median(behind_ns) < 1000:
            return ""
        late_ms = statistics.median(behind_ns) / _NS_PER_MS
        return f"it came last to {num_last} of its last {num} calls, by {late_ms:.3g} ms (median)"

    # ---- rings ----

    def _of_ring(self) -> Cause | None:
        """Return the cause if calls wait for each other in a ring."""
        waits = self.waits.all
        if any(wait.unknown and not wait.stands_behind for wait in waits.values()):
            return None
        rings = self.waits.rings()
        if not rings:
            return None
        ring = max(rings, key=len)
        ranks = self.waits.ranks_in(ring)
        is_of_messages = all(meeting.is_message for meeting in ring)
        cause = Cause(
            "ring" if is_of_messages else "order",
            tuple(sorted(ranks)),
            "medium",
            f"{len(ring)} calls wait for each other in a ring: "
            + "; ".join(f"{self.title(m)}: {who_text(waits[m].waiting)}" for m in ring[:3]),
            meetings=tuple(ring),
            victims=frozenset(self._victims(ring)),
        )
        # Ranks that have not come to a call of the ring: others wait only behind their own calls.
        suspects = frozenset().union(*(waits[meeting].absent for meeting in ring)) or ranks
        steps = self.odd.clear(ranks)
        odd = sorted({step.rank for step in steps})
        if steps and len(odd) * 2 <= len(ranks):
            cause.ranks = tuple(odd)
            cause.confidence = "high" if self._has_stacks else "medium"
            self._by_step(cause, steps[0])
        elif len(suspects) * 2 <= len(ranks) and len(self.records.world) > 2:
            cause.ranks = tuple(sorted(suspects))
            cause.why = f"only {who_text(suspects)} has not come to a call that others wait in"
        elif is_of_messages:
            cause.why = "each rank sends, or receives, first: pair them, or use batch_isend_irecv"
        else:
            cause.why = "ranks make calls of different groups in different orders"
        late = [m for m in ring if m.is_message and waits[m].absent & set(cause.ranks)]
        if late and len(cause.ranks) < len(ranks):
            cause.kind, cause.repairs = "message", []
            end = "send" if late[0].source in cause.ranks else "recv"
            cause.what = f"{who_text(cause.ranks)} never made the {end} of {self.title(late[0])}"
        if cause.place is None:
            at = next(
                (a for m in ring if (a := waits[m].waiting.get(cause.ranks[0])) is not None), None
            )
            if at is not None:
                cause.place = self.records.place(self.records.lanes[cause.ranks[0]], at)
        for meeting in ring[:3]:
            self._add_waiting(cause, meeting)
        return cause

    # ---- ranks without a record, and calls to which all came ----

    def _of_the_rest(self) -> Cause:
        waits = self.waits.all
        first = [wait for wait in waits.values() if not wait.stands_behind] or list(waits.values())
        without = [wait for wait in first if wait.unknown]
        if without:
            wait = max(without, key=lambda each: len(self._victims([each.meeting])))
            return self._no_record(wait)
        wait = max(first, key=lambda each: len(self._victims([each.meeting])))
        return self._arrived(wait)

    def _no_record(self, wait: Wait) -> Cause:
        missing = self.records.missing
        few = len(wait.unknown) <= 2 and len(missing) <= 2
        cause = Cause(
            "no record",
            tuple(sorted(wait.unknown)),
            "medium" if few else "low",
            f"all ranks with a record came to {self.title(wait.meeting)};"
            f" {who_text(wait.unknown)} left none",
            "dead (out of memory, a lost node, a signal), or so stuck that it could not write",
            meetings=(wait.meeting,),
            victims=frozenset(self._victims([wait.meeting])),
        )
        steps = self.odd.clear(self.waits.ranks_in(self.waits.all)) if self._has_stacks else []
        odd = sorted({step.rank for step in steps if step.rarity > 1.4})
        if steps and odd and len(odd) * 4 <= len(self.records.lanes):
            cause.kind, cause.ranks = "order", tuple(odd)
            cause.what = f"{self._step_text(steps[0])}; {who_text(wait.unknown)} left no record"
            self._by_step(cause, steps[0])
            cause.why += "; or the ranks without a record are dead"
        self._add_waiting(cause, wait.meeting)
        return cause

    def _arrived(self, wait: Wait) -> Cause:
        meeting = wait.meeting
        members = self.records.groups[meeting.group].ranks
        cause = Cause(
            "arrived",
            (),
            "low",
            f"every rank came to {self.title(meeting)}, with arguments that fit, and it does not"
            " end",
            "the network, a GPU or NCCL; or what records do not have: roots, reduce operations,"
            " splits, the order on streams",
            meetings=(meeting,),
            victims=frozenset(self._victims([meeting])),
        )
        self._add_waiting(cause, meeting)
        if meeting.is_message:
            return cause
        moved = {}
        for rank in members if self._has_stacks else ():
            shift = (
                self.odd.shift(rank, members, meeting.group) if rank in self.records.lanes else None
            )
            if shift is not None and shift[1]:
                moved[rank] = shift
        if moved and len(moved) * 3 <= len(members):
            first = min(moved)
            cause.ranks, cause.confidence = tuple(sorted(moved)), "medium"
            self._explain_shift(cause, first, meeting.group, *moved[first])
            cause.what = f"{cause.why}; {self.title(meeting)} does not end"
            cause.why = "its lines are the others', moved from there on: unlike calls meet"
            return cause
        few = self._behind(meeting.group)
        if few:
            cause.why += f"; {few}"
        return cause

    def _behind(self, group: int) -> str:
        lanes = self.records.lanes
        members = [lanes[rank] for rank in self.records.groups[group].ranks if rank in lanes]
        last = {lane.rank: lane.last_numbers.get(group, 0) for lane in members}
        top = max(last.values(), default=0)
        low = [rank for rank, number in last.items() if number < top]
        if not low or len(low) * 2 > len(last):
            return ""
        return f"{who_text(low)} made fewer calls than the others ({min(last.values())} of {top})"

    def _uneven(self) -> Cause | None:
        """Return a cause if nothing is unfinished, yet a rank made fewer calls of a group.

        The others of a broadcast or a reduce can end without it.
        """
        for group, known in enumerate(self.records.groups):
            lanes = [self.records.lanes[r] for r in known.ranks if r in self.records.lanes]
            last = {lane.rank: lane.last_numbers.get(group, 0) for lane in lanes}
            low = {rank for rank, number in last.items() if number < max(last.values())}
            if not low or len(low) * 2 > len(last):
                continue
            most, fewest = max(last.values()), min(last.values())
            cause = Cause(
                "absent",
                tuple(sorted(low)),
                "medium",
                f"nothing is unfinished, but {who_text(low)} made {fewest} calls of"
                f" {known.title} where others made {most}",
                "it left out a call that its peers can end without it",
            )
            steps = self.odd.clear(low)
            if steps:
                self._by_step(cause, steps[0])
            return cause
        return None

    # ---- words ----

    def _victims(self, causes: Sequence[MatchedCalls]) -> set[int]:
        return self.waits.ranks_in(self.waits.because_of(causes))

    def title(self, meeting: MatchedCalls) -> str:
        """Return `all_reduce #12 of dp (ranks 0-3)`."""
        group = self.records.groups[meeting.group]
        whole = len(group.ranks) == len(self.records.world)
        of = group.title if whole else f"{group.title} ({who_text(group.ranks)})"
        if meeting.is_message:
            return f"message {meeting.source}->{meeting.target} of {of}"
        ops = Counter(
            self.waits.asked(rank, at).name for rank, at in self.waits.calls(meeting).items()
        )
        op = ops.most_common(1)[0][0] if ops else "call"
        return f"{op} #{meeting.number} of {of}"

    def _line(self, rank: int, at: int) -> str:
        place = self.records.place(self.records.lanes[rank], at)
        return "a line that was not recorded" if place is None else str(place)

    def _call(self, rank: int, at: int) -> str:
        lane = self.records.lanes[rank]
        of = self.records.groups[lane.groups[at]].title
        op = self.records.asked[lane.asked[at]].name
        number = f" #{lane.numbers[at]}" if lane.numbers[at] >= 0 else ""
        return f"{op}{number} of {of} at {self._line(rank, at)}"

    def _add_waiting(self, cause: Cause, meeting: MatchedCalls) -> None:
        """Note the lines at which ranks wait."""
        lines: dict[str, list[int]] = {}
        for rank, at in sorted(self.waits.all[meeting].waiting.items()):
            if at is not None and rank not in cause.ranks[:1]:
                lines.setdefault(self._line(rank, at), []).append(rank)
        for line, ranks in sorted(lines.items(), key=lambda each: -len(each[1]))[:2]:
            cause.waiting.append((who_text(ranks), f"wait in {self.title(meeting)} at {line}"))
