"""Calls at which one rank diverges: skipped, additional, swapped, another one.

Ranks of one program take the same steps from call to call again and again. A step that few ranks
take, and that its rank otherwise does not, is where it diverged; what follows it tells how.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from simrank.distributed.odd_steps import Steps

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from simrank.diagnose.records import Records

_MAX_SHARE = 1 / 4  # Assumed: of the ranks that come to a call, if there are more than three.
_MAX_SIZES = 64  # Assumed: a line with more sizes than this has sizes that mean nothing.


class CallStep(NamedTuple):
    """A step from one call of a rank to the next that is unlike the others'.

    Attributes:
        rank: Which.
        at: Where the first of the two stands in its columns.
        kind: `skipped`, `additional`, `swapped`, `other` or `unclear`.
        usual: What usually comes next, as `(rank, at)` of a call like it.
        rarity: From 0 to 2: how few ranks take it, and whether this one otherwise does not.
        is_last: Whether the rank has called nothing after it.
    """

    rank: int
    at: int
    kind: str
    usual: tuple[int, int]
    rarity: float
    is_last: bool

    @property
    def is_clear(self) -> bool:
        """Return whether few ranks take it, and this one otherwise does not."""
        return self.rarity > 1 + _MAX_SHARE


class OddCalls:
    """Finds steps of ranks that are unlike the others'.

    Args:
        records: Of the job.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        symbols = _Symbols(records)
        self._calls, self._asked = symbols.lines(), symbols.asked()
        self._roles = symbols.roles
        self._steps, self._asked_steps = Steps(self._calls), Steps(self._asked)
        self._example: dict[int, tuple[int, int]] = {}
        self._num_calls: Counter[int] = Counter()
        self._found: dict[int, CallStep | None] = {}
        self._usual_of_all: dict[int, int] = {}
        for before, after in sorted(self._steps.total, key=self._steps.total.__getitem__):
            self._usual_of_all[before] = after
        for rank, calls in self._calls.items():
            self._num_calls.update(calls)
            for at, call in enumerate(calls):
                self._example.setdefault(call, (rank, at))

    def of_rank(self, rank: int) -> CallStep | None:
        """Return the oddest step of a rank, the first of several; None if it has none."""
        if rank not in self._found:
            self._found[rank] = self._oddest(rank)
        return self._found[rank]

    def _oddest(self, rank: int) -> CallStep | None:
        calls = self._calls[rank]
        rarities = {
            (before, after): self._rarity(rank, before, after)
            for before, following in self._steps.next[rank].items()
            for after in following
        }
        most = max(rarities.values(), default=0.0)
        if most <= 0:
            return None
        at = next(n for n, pair in enumerate(pairwise(calls)) if rarities[pair] > most - 1e-9)
        usual = self._usual(rank, *calls[at : at + 2])
        kind, is_last = self._kind(rank, at, usual), at + 2 == len(calls)
        return CallStep(rank, at, kind, self._example[usual], most, is_last)

    def _rarity(self, rank: int, before: int, after: int) -> float:
        """Return the rarity of a step, from 0 to 2; 0 if the rank usually takes it."""
        steps, following = self._steps, self._steps.next[rank][before]
        usual = self._usual(rank, before, after)
        if usual == after:
            return 0
        few = len(steps.ranks[before, after]) / len(steps.ranks_at[before])
        num = following[after]
        is_only_one = few <= _MAX_SHARE and num == 1 and steps.total[before, after] == 1
        is_own = following[usual] >= 2 * num or is_only_one
        return (1 - few) + is_own - (0.2 if num > 1 else 0)

    def _usual(self, rank: int, before: int, after: int) -> int:
        """Return the call that usually follows one: on this rank, else on all."""
        own, total = self._steps.next[rank][before], self._steps.total
        usual: int = max(own, key=lambda call: (own[call], total[before, call]))
        if usual == after or own[usual] == own[after]:
            usual = self._usual_of_all[before]
        if total[usual, after]:
            return usual
        # Out of a loop, say: what leads others from the one to the other.
        found = (call for first, call in total if first == before and total[call, after])
        between = (call for call in found if call not in (before, after))
        return max(between, key=lambda call: total[before, call], default=usual)

    def _kind(self, rank: int, at: int, usual: int) -> str:
        """Return the kind of a step, from the calls after it."""
        calls, total = self._calls[rank], self._steps.total
        is_of_branch = len(self._steps.callers[calls[at + 1]]) == 1
        is_again, own = usual == calls[at], 0
        if is_of_branch:  # No other rank has come to the line: what does it ask for?
            example_rank, example_at = self._example[usual]
            usual = self._asked[example_rank][example_at]
            calls, total = self._asked[rank], self._asked_steps.total
            own = usual == calls[at]  # Then the odd step itself is among those that are counted.
        before, after = calls[at], calls[at + 1]
        then, later = (calls[n] if n < len(calls) else None for n in (at + 2, at + 3))
        num_forth = total[usual, after] - own
        forth = num_forth > total[after, usual]
        is_swap = later is None or total[after, later] >= total[usual, later]
        if then == usual and num_forth > 0 and usual != after and is_swap:
            return "swapped"
        if then == usual or (after == before and not forth):
            return "additional"
        if forth and not is_again:
            return "swapped" if is_of_branch else "skipped"
        if then is not None and total[usual, then] > total[after, then]:
            return "other"
        return "unclear"

    def is_repeat(self, step: CallStep) -> bool:
        """Return whether the call after a step asks for the same as the one before it."""
        asked = self._asked[step.rank]
        return asked[step.at] == asked[step.at + 1]

    def is_like_usual(self, step: CallStep) -> bool:
        """Return whether the call after a step is the usual one but for its arguments."""
        calls = [(step.rank, step.at + 1), step.usual]
        lanes = [(self._records.lanes[rank], at) for rank, at in calls]
        first, second = (
            (self._records.asked[lane.asked[at]].op, self._roles[lane.groups[at]])
            for lane, at in lanes
        )
        return first == second

    def clear(self, ranks: Iterable[int]) -> list[CallStep]:
        """Return the oddest clear steps of some ranks, the oddest first."""
        found = [step for rank in ranks if (step := self.of_rank(rank)) is not None]
        clear = [step for step in found if step.is_clear and not self._is_end(step)]
        steps = sorted(clear, key=lambda step: -step.rarity)
        return [step for step in steps if step.rarity > steps[0].rarity - 0.3]

    def _is_end(self, step: CallStep) -> bool:
        """Return whether a step leads to a call that every rank makes once: out of its loop."""
        after = self._calls[step.rank][step.at + 1]
        callers = self._steps.callers[after]
        return step.is_last and len(callers) == len(self._calls) == self._num_calls[after]

    def num_like(self, rank: int, at: int) -> int:
        """Return the number of calls of all ranks that are like one."""
        return self._num_calls[self._calls[rank][at]]

    def comes_before(self, first: tuple[int, int], second: tuple[int, int]) -> int:
        """Return the number of times that one call follows another, less those the other way."""
        a, b = (self._calls[rank][at] for rank, at in (first, second))
        total = self._steps.total
        return 0 if a == b else total[a, b] - total[b, a]

    def shift(self, rank: int, peers: Collection[int], group: int) -> tuple[int, int] | None:
        """Compare a rank's calls of a group, number by number, with what most peers call.

        Returns:
            Where its first other call stands in its columns, and by how many places its calls
            are behind the peers' from there on: above 0 it left calls out, below 0 it made more,
            0 unknown; None if they are alike.
        """
        own = self._numbered(rank, group)
        counted: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for peer in peers:
            if peer != rank and peer in self._calls:
                for number, call in self._numbered(peer, group).items():
                    counted[number][call] += 1
        most = {number: calls.most_common(1)[0][0] for number, calls in counted.items()}
        first = next((n for n, call in own.items() if n in most and most[n] != call), None)
        if first is None:
            return None
        at = self._records.lanes[rank].collectives(group)[first]
        best, num_best = 0, 0
        for by in (1, -1, 2, -2, 3, -3):
            pairs = [
                (call, most[number + by])
                for number, call in own.items()
                if number >= first - min(by, 0) and number + by in most
            ]
            same = sum(call == other for call, other in pairs)
            if pairs and same > 0.9 * len(pairs) and same > num_best:
                best, num_best = by, same
        return at, best

    def _numbered(self, rank: int, group: int) -> dict[int, int]:
        calls = self._calls[rank]
        return {
            number: calls[at] for number, at in self._records.lanes[rank].collectives(group).items()
        }


class _Symbols:
    """A number for each kind of call, for all ranks alike.

    Args:
        records: Of the job.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self.roles = [
            group.desc if group.desc not in ("", "undefined") else len(group.ranks)
            for group in records.groups
        ]
        self._numbers: dict[object, int] = {}

    def asked(self) -> dict[int, array[int]]:
        """Return, by rank, what each call asks for and of which kind of group."""
        number_of = self._number_of
        return {
            rank: array("i", map(number_of, lane.asked, map(self.roles.__getitem__, lane.groups)))
            for rank, lane in self._records.lanes.items()
        }

    def lines(self) -> dict[int, array[int]]:
        """Return, by rank, line, operation and kind of group of each call.

        Calls of one line count as several by their sizes where those come again and again: all
        gradient buckets have the line of `backward`.
        """
        ops = [asked.op for asked in self._records.asked]
        roles = self.roles
        sizes: defaultdict[object, Counter[int]] = defaultdict(Counter)
        kinds: Counter[tuple[int, int, int]] = Counter()
        for lane in self._records.lanes.values():
            kinds.update(zip(lane.stacks, lane.asked, lane.groups, strict=True))
        for (stack, asked, group), num in kinds.items():
            sizes[stack, ops[asked], roles[group]][asked] += num
        apart = {
            line
            for line, found in sizes.items()
            if 1 < len(found) <= _MAX_SIZES and found.total() >= 3 * len(found)
        }
        known = {}
        for stack, asked, group in kinds:
            line = stack, ops[asked], roles[group]
            known[stack, asked, group] = self._number_of(line, asked if line in apart else -1)
        return {
            rank: array(
                "i", map(known.__getitem__, zip(lane.stacks, lane.asked, lane.groups, strict=True))
            )
            for rank, lane in self._records.lanes.items()
        }

    def _number_of(self, *parts: object) -> int:
        return self._numbers.setdefault(parts, len(self._numbers))
