"""Intervals of a rank's kernels, copies and collectives, and sums over parts of a run."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.device import Operation

PHASES = ("forward", "backward", "recomputation", "optimizer")
_OTHER = len(PHASES)  # Of operations whose phase is unknown.
_NUMBERS = {name: number for number, name in enumerate(PHASES)}


class Span(NamedTuple):
    """Sums of a rank's times over a part of a run.

    Attributes:
        begin_ps: Where the part begins.
        end_ps: Where it ends.
        compute_ps: At least one kernel or copy ran.
        exposed_ps: Only collectives ran.
        waiting_ps: The part of that before the last arrival, by the number given for it.
        by_phase_ps: The computing time of each of `PHASES`, then of operations of no phase.
        exposed_by_group_ps: What collectives of each group cost; of several in flight, the one that
            ends first counts.
        flops: Of products, without those of recomputation and of optimizers.
        recomputed_flops: Those of recomputation.
    """

    begin_ps: int
    end_ps: int
    compute_ps: int
    exposed_ps: int
    waiting_ps: dict[int, int]
    by_phase_ps: tuple[int, ...]
    exposed_by_group_ps: dict[str, int]
    flops: float
    recomputed_flops: float


class RankOperations:
    """The operations of one rank."""

    def __init__(self) -> None:
        self._computed: tuple[array[int], array[int], array[int]] = (
            array("q"), array("q"), array("b"),
        )  # fmt: skip
        self._flops = array("d")
        self._waited: tuple[array[int], array[int], array[int]] = (
            array("q"), array("q"), array("q"),
        )  # fmt: skip
        self._late: tuple[array[int], array[int]] = array("q"), array("q")
        self._groups: dict[str, int] = {}
        self._last: tuple[tuple[int, ...], Span] | None = None  # With all that it depends on.

    def computed(self, operation: Operation) -> None:
        """Add a kernel or a copy."""
        starts, ends, phases = self._computed
        starts.append(operation.start_ps)
        ends.append(operation.complete_ps)
        phases.append(_NUMBERS.get(operation.phase, _OTHER))
        self._flops.append(operation.flops)

    def communicated(self, operation: Operation, group: str, ready_ps: int, late: int) -> None:
        """Add a collective, or a message, of a group.

        Args:
            operation: Which.
            group: The group's name.
            ready_ps: Until when it waited for a late rank; not above its start if it did not.
            late: Number of the late ranks, for `Span.waiting_ps`; -1 if it did not wait.
        """
        starts, ends, groups = self._waited
        starts.append(operation.start_ps)
        ends.append(operation.complete_ps)
        groups.append(self._groups.setdefault(group, len(self._groups)))
        readies, lates = self._late
        readies.append(min(max(ready_ps, operation.start_ps), operation.complete_ps))
        lates.append(late)

    def num_waits(self, late: int) -> int:
        """Return the number of waits for the late ranks of a number."""
        return self._late[1].count(late)

    def steps(self) -> list[tuple[int, int]]:
        """Return begin and end of each training step: it ends with its optimizers' last kernel.

        Steps of several optimizers are one, unless there is backward between them.
        """
        starts, ends, phases = (np.asarray(each) for each in self._computed)
        is_step = phases == _NUMBERS["optimizer"]
        if not is_step.any():
            return []
        backward = np.sort(starts[phases == _NUMBERS["backward"]])
        before = np.searchsorted(backward, starts[is_step])
        found, begin = [], int(starts.min())
        for number in np.unique(before[before > 0]):
            end = int(ends[is_step][before == number].max())
            found.append((begin, end))
            begin = end
        return found

    def has_backward(self) -> bool:
        """Return whether an operation was of a backward."""
        return _NUMBERS["backward"] in self._computed[2]

    def span(self, begin_ps: int, end_ps: int) -> Span:
        """Return the sums of the rank's times between two points in time."""
        key = begin_ps, end_ps, len(self._flops), len(self._late[0])
        if self._last is None or self._last[0] != key:  # A report asks twice for the whole run.
            self._last = key, self._sums(begin_ps, end_ps)
        return self._last[1]

    def _sums(self, begin_ps: int, end_ps: int) -> Span:
        starts, ends, phases = (np.asarray(each) for each in self._computed)
        begins_here = (starts >= begin_ps) & (starts < end_ps)
        is_again = phases == _NUMBERS["recomputation"]
        is_model = ~is_again & (phases != _NUMBERS["optimizer"])  # Muon's products are not its.
        flops = np.asarray(self._flops)
        inside = (starts < end_ps) & (ends > begin_ps)
        by_phase, computing = _covered(
            starts[inside].clip(begin_ps), ends[inside].clip(max=end_ps), phases[inside]
        )
        exposed_ps, waiting, by_group = self._exposed(begin_ps, end_ps, computing)
        return Span(
            begin_ps, end_ps, int(by_phase.sum()), exposed_ps, waiting, tuple(by_phase.tolist()),
            by_group, float(flops[begins_here & is_model].sum()),
            float(flops[begins_here & is_again].sum()),
        )  # fmt: skip

    def _exposed(
        self, begin_ps: int, end_ps: int, computing: tuple[Any, Any]
    ) -> tuple[int, dict[int, int], dict[str, int]]:
        """Return the time in which only collectives ran, its waiting, and the whole by group."""
        starts, ends, groups, readies, lates = (
            np.asarray(each) for each in (*self._waited, *self._late)
        )
        inside = (starts < end_ps) & (ends > begin_ps)
        order = np.argsort(ends[inside], kind="stable")
        starts, ends, readies = (
            each[inside][order].clip(begin_ps, end_ps) for each in (starts, ends, readies)
        )
        groups, lates = groups[inside][order], lates[inside][order]
        points = np.unique(np.concatenate([starts, readies, ends, *computing]))
        if len(points) < 2:
            return 0, {}, {}
        pieces = _Pieces(np.diff(points).tolist())
        for first, last in _indices(points, *computing):
            pieces.claim(first, last)
        by_group = [0] * len(self._groups)
        waiting: dict[int, int] = {}
        parts = _indices(points, starts, readies), _indices(points, readies, ends)
        for (first, ready), (_, last), group, late in zip(
            *parts, groups.tolist(), lates.tolist(), strict=True
        ):
            if first < ready and (waited := pieces.claim(first, ready)):
                waiting[late] = waiting.get(late, 0) + waited
                by_group[group] += waited
            by_group[group] += pieces.claim(ready, last)
        names = list(self._groups)
        return sum(by_group), waiting, {names[i]: ps for i, ps in enumerate(by_group) if ps}


def _indices(points: Any, starts: Any, ends: Any) -> Iterator[tuple[int, int]]:  # noqa: ANN401 - arrays
    """Return the indices of the ends of intervals among sorted points."""
    firsts, lasts = np.searchsorted(points, starts), np.searchsorted(points, ends)
    return zip(firsts.tolist(), lasts.tolist(), strict=True)


class _Pieces:
    """Pieces of time between neighbouring points, each of which is claimed once."""

    def __init__(self, lengths: list[int]) -> None:
        self._lengths = lengths
        self._next = list(range(len(lengths) + 1))  # The next free piece: itself, or a later one.

    def claim(self, first: int, last: int) -> int:
        """Claim the free pieces from one up to another; return their length."""
        claimed, at, passed = 0, self._free(first), [first]
        while at < last:
            claimed += self._lengths[at]
            passed.append(at)
            at = self._next[at] = self._free(at + 1)
        for each in passed:
            self._next[each] = at
        return claimed

    def _free(self, at: int) -> int:
        while self._next[at] != at:
            at = self._next[at]
        return at


def _covered(starts: Any, ends: Any, kinds: Any) -> tuple[Any, tuple[Any, Any]]:  # noqa: ANN401 - arrays
    """Return the time that intervals cover by kind, and what they cover as disjoint intervals.

    What several cover counts for the one that began first.
    """
    by_kind = np.zeros(_OTHER + 1, np.int64)
    if not len(starts):
        return by_kind, (starts, ends)
    order = np.argsort(starts, kind="stable")
    starts, ends, kinds = starts[order], ends[order], kinds[order]
    reached = np.maximum.accumulate(ends)
    before = np.concatenate([starts[:1], reached[:-1]])
    np.add.at(by_kind, kinds, (reached - np.maximum(starts, before)).clip(0))
    is_first = np.concatenate([[True], starts[1:] > reached[:-1]])
    firsts = np.flatnonzero(is_first)
    lasts = np.concatenate([firsts[1:], [len(starts)]]) - 1
    return by_kind, (starts[firsts], reached[lasts])
