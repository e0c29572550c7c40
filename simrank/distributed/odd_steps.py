"""The odd step of a failed run: from one call to the next, as no other rank takes it.

Ranks of one program take the same steps again and again. When a run fails, the step that few
ranks take, and that this rank otherwise does not, is where it skipped a call, or made one more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from simrank.errors import OddStep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from simrank.distributed.call_history import Called

_MAX_SHARE = 1 / 4  # Assumed: of the ranks, if there are more than three, that may take it.
_MIN_AGREE = 3 / 4  # Assumed: of the others, that go another way at the same place.


class _Odd(NamedTuple):
    """A step that a rank takes: from one call to the next, where it usually makes another."""

    before: Called
    after: Called
    usual: Called


def oddest_step(
    histories: Mapping[int, Sequence[Called]], *, are_whole: bool = True
) -> OddStep | None:
    """Return the step that few ranks take and that they otherwise do not; None without any.

    Args:
        histories: The calls of each rank in its order; equal calls are the same object.
        are_whole: Whether they begin with the first call of each rank.
    """
    steps = _OddSteps(histories)
    found: dict[_Odd, list[tuple[int, int]]] = {}
    for rank in histories:
        number, odd = steps.oddest(rank)
        if odd is not None:
            found.setdefault(odd, []).append((number, rank))
    few = [odd for odd, at in found.items() if _are_few(len(at), len(histories))]
    if few and len(few) <= max(
        2, len(histories) // 4
    ):  # The first: others may have lost step since.
        odd = min(few, key=lambda each: (steps.share(each), found[each]))
        return steps.described(odd, [rank for _, rank in found[odd]])
    if are_whole:
        for rank in histories:
            last = steps.unlike_at_end(rank)
            if last is not None:
                return steps.described(last, [rank])
    return None


def _are_few(num: int, num_all: int) -> bool:
    return num == 1 or num <= num_all * _MAX_SHARE


class Steps:
    """The steps from call to call of all ranks, counted.

    Args:
        histories: The calls of each rank in its order, as anything that can be a key.

    Attributes:
        next: Of each rank and call: what it calls next, how often.
        total: How often all ranks take a step.
        ranks: Which ranks take a step.
        ranks_at: Which ranks go on from a call.
        callers: Which ranks make a call.
    """

    def __init__(self, histories: Mapping[int, Sequence[Any]]) -> None:
        self.next: dict[int, dict[Any, Counter[Any]]] = {}
        self.total: Counter[tuple[Any, Any]] = Counter()
        self.ranks: defaultdict[tuple[Any, Any], set[int]] = defaultdict(set)
        self.ranks_at: defaultdict[Any, set[int]] = defaultdict(set)
        self.callers: defaultdict[Any, set[int]] = defaultdict(set)
        for rank, calls in histories.items():
            for call in set(calls):
                self.callers[call].add(rank)
            pairs = Counter(pairwise(calls))
            self.total.update(pairs)
            own: defaultdict[Any, Counter[Any]] = defaultdict(Counter)
            for (before, after), number in pairs.items():
                own[before][after] += number
                self.ranks[before, after].add(rank)
                self.ranks_at[before].add(rank)
            self.next[rank] = own


class _OddSteps(Steps):
    """Finds odd steps among the calls of a simulated run."""

    def __init__(self, histories: Mapping[int, Sequence[Called]]) -> None:
        super().__init__(histories)
        self._histories = histories

    def share(self, odd: _Odd) -> float:
        """Return the share of ranks that take a step, of those that come to its beginning."""
        return len(self.ranks[odd.before, odd.after]) / len(self.ranks_at[odd.before])

    def _odd(self, rank: int, before: Called, after: Called) -> _Odd | None:
        """Return a step of a rank if it is odd: taken by few, and less often than another.

        A step as rare as the usual one counts if all others that come there take the usual one.
        """
        following = self.next[rank][before]
        number = following[after]
        others = [call for call, _ in following.most_common() if call is not after]
        if not others or following[others[0]] < number:
            return None
        usual = others[0]
        num_at, num = len(self.ranks_at[before]), len(self.ranks[before, after])
        if following[usual] < 2 * number and (num > 1 or len(self.ranks[before, usual]) < num_at):
            return None
        if not _are_few(num, num_at) or self._is_ahead(rank, before, after):
            return None
        return None if self._is_role(after) else _Odd(before, after, usual)

    def _is_role(self, call: Called) -> bool:
        """Return whether a call is of few ranks by design: a message, or all members make it."""
        callers = self.callers[call]
        members = {rank for group in call.groups for rank in group}
        return (
            bool(call.groups)
            and _are_few(len(callers), len(self._histories))
            and all(rank in callers or not self._histories.get(rank) for rank in members)
        )

    def _is_ahead(self, rank: int, before: Called, after: Called) -> bool:
        """Return whether a rank takes a step at its end, where no other has come yet."""
        there = self.ranks[before, after]
        others = [sum(self.next[r][before].values()) for r in self.ranks_at[before] - there]
        own = sum(self.next[rank][before].values())
        return self._histories[rank][-1] is after and own > max(others, default=0)

    def oddest(self, rank: int) -> tuple[int, _Odd | None]:
        """Return the first of the last odd steps of a rank that follow each other, and its number.

        Returns:
            How many calls the rank had made before it, and the step; None without any.
        """
        steps = self.next[rank].items()
        pairs = [(before, after) for before, following in steps for after in following]
        odd = {pair: found for pair in pairs if (found := self._odd(rank, *pair)) is not None}
        if not odd:
            return 0, None
        calls = self._histories[rank]
        at = len(calls) - 2
        while (calls[at], calls[at + 1]) not in odd:
            at -= 1
        while at and (calls[at - 1], calls[at]) in odd:
            at -= 1
        return at, odd[calls[at], calls[at + 1]]

    def unlike_at_end(self, rank: int) -> _Odd | None:
        """Return the last step of a rank if the others went another way at the same place."""
        calls = self._histories[rank]
        if len(self._histories) <= 2 or len(calls) < 2:
            return None
        before, after = calls[-2:]
        times = calls[:-1].count(before)
        others: Counter[Called] = Counter()
        for other, made in self._histories.items():
            places = [n for n, call in enumerate(made[:-1]) if call is before]
            if other != rank and len(places) >= times:
                others[made[places[times - 1] + 1]] += 1
        if not others or others[after] or self._is_role(after):
            return None
        usual, number = others.most_common(1)[0]
        enough = max(2, (len(self._histories) - 1) * _MIN_AGREE)
        return _Odd(before, after, usual) if number >= enough else None

    def described(self, odd: _Odd, ranks: Sequence[int]) -> OddStep:
        """Return a step for a report: with the call that was skipped, if it is one."""
        before, after, usual = odd
        forth, back = self.total[usual, after], self.total[after, usual]
        is_skip = forth > back and usual is not before
        return OddStep(tuple(ranks), str(before), str(after), str(usual), is_skipped=is_skip)
