"""Folding: of ranks that do the same, some run and represent the others.

A layout has axes, such as data and tensor parallelism. Along a folded axis one coordinate runs and
represents the others: those arrive at each collective as it does, at its time and with its values.
Some coordinates may run beside it, for themselves. What replicas send over links that they share
with ranks that run is counted (see `Folding.replicas`).
"""

from __future__ import annotations

from functools import cached_property
from itertools import product
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from simrank.errors import FoldingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class FoldedAxis(NamedTuple):
    """An axis of the layout along which ranks do the same.

    Attributes:
        name: What users call it.
        size: How many coordinates it has.
        stride: Distance in ranks from one coordinate to the next.
        representative: The coordinate that runs and represents the others.
        alone: Coordinates that run for themselves.
    """

    name: str
    size: int
    stride: int
    representative: int = 0
    alone: tuple[int, ...] = ()

    def coordinate(self, rank: int) -> int:
        """Return the coordinate of a rank."""
        return rank // self.stride % self.size

    def runs_as(self, at: int) -> int:
        """Return the coordinate that runs for another one."""
        return at if at in self.alone else self.representative

    def beside(self, coordinates: Iterable[int]) -> FoldedAxis:
        """Return the axis with further coordinates that run for themselves."""
        alone = {*self.alone, *coordinates}
        first = (self.representative, *range(self.size))
        free = next((at for at in first if at not in alone), None)
        if free is None:  # All run.
            free = self.size - 1
            alone.discard(free)
        return self._replace(representative=free, alone=tuple(sorted(alone)))


class Folding:
    """The ranks that run, and those that each represents.

    Args:
        world_size: Number of ranks.
        axes: The folded axes, the outermost first.

    Raises:
        FoldingError: The axes do not fit into the ranks, or into each other.
    """

    def __init__(self, world_size: int, axes: Sequence[FoldedAxis]) -> None:
        self.world_size = world_size
        self.axes = tuple(sorted(axes, key=lambda axis: -axis.stride))
        inner = 1
        for axis in reversed(self.axes):
            coordinates = (axis.representative, *axis.alone)
            if axis.stride % inner or not all(0 <= at < axis.size for at in coordinates):
                raise FoldingError(f"axis {axis} does not fit on an axis within it")
            inner = axis.stride * axis.size
        if world_size % inner:
            raise FoldingError(
                f"the folded axes need a multiple of {inner} ranks, not {world_size}"
            )

    @property
    def answers_messages(self) -> bool:
        """Whether messages to ranks that do not run end by themselves; else they are refused."""
        return False

    def __repr__(self) -> str:
        """Return the axes."""
        return f"Folding({self.world_size}, {list(self.axes)})"

    def representative(self, rank: int) -> int:
        """Return the representative of a rank: itself if it runs."""
        for axis in self.axes:
            at = axis.coordinate(rank)
            rank += (axis.runs_as(at) - at) * axis.stride
        return rank

    def beside(self, ranks: Sequence[int]) -> Folding:
        """Return a folding in which some ranks run for themselves, beside a representative each.

        Along each axis their coordinates run, so that each group keeps a representative of its own.
        """
        axes = [axis.beside({axis.coordinate(rank) for rank in ranks}) for axis in self.axes]
        return Folding(self.world_size, axes if ranks else self.axes)

    def runs(self, rank: int) -> bool:
        """Return whether a rank runs."""
        return self.representative(rank) == rank

    @cached_property
    def running(self) -> tuple[int, ...]:
        """The ranks that run."""
        return tuple(rank for rank in range(self.world_size) if self.runs(rank))

    def represented(self, ranks: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Return the members behind each representative of a group, as places in it.

        Raises:
            FoldingError: The representative of a member is no member.
        """
        places = {rank: place for place, rank in enumerate(ranks)}
        found: dict[int, list[int]] = {}
        for rank, place in places.items():
            representative = self.representative(rank)
            if representative == rank:
                continue
            if representative not in places:
                if not any(self.runs(each) for each in ranks):
                    return {}
                raise FoldingError(
                    f"a group of ranks {_some(ranks)} has rank {rank} without rank "
                    f"{representative}, its representative"
                )
            found.setdefault(places[representative], []).append(place)
        return {place: tuple(others) for place, others in found.items()}

    def replicas(self, ranks: Sequence[int]) -> list[list[int]]:
        """Return groups of ranks that do not run and do what a group does, at the same time.

        Each has its members in the group's order.
        """
        steps = []
        for axis in self.axes:
            at = {axis.coordinate(rank) for rank in ranks}
            steps.append([0, *(step * axis.stride for step in _steps(axis, at))])
        return [[rank + sum(shift) for rank in ranks] for shift in product(*steps) if any(shift)]

    def not_run(self) -> dict[int, tuple[int, ...]]:
        """Return the ranks that do not run, by the rank whose results are taken for theirs."""
        found: dict[int, list[int]] = {}
        for rank in range(self.world_size):
            taken = self.representative(rank)
            if taken != rank:
                found.setdefault(taken, []).append(rank)
        return {rank: tuple(others) for rank, others in sorted(found.items())}

    def describe(self) -> str:
        """Return `4 of 256 ranks run (dp 32, tp 8)`."""
        axes = ", ".join(f"{axis.name} {axis.size}" for axis in self.axes) or "none"
        return f"{len(self.running)} of {self.world_size} ranks run (folded: {axes})"


def _steps(axis: FoldedAxis, at: set[int]) -> list[int]:
    """Return the distances along an axis at which replicas of a group lie."""
    first, extent = min(at), max(at) + 1
    if at == {axis.representative}:
        return [to - first for to in range(axis.size) if to not in (first, *axis.alone)]
    if len(at) == 1 or first or axis.representative >= extent or axis.size % extent:
        return []
    taken = {coordinate // extent for coordinate in axis.alone}
    return [step for step in range(extent, axis.size, extent) if step // extent not in taken]


class Alone(Folding):
    """One rank runs and represents all others, so that its calls can be observed.

    Args:
        world_size: Number of ranks.
        rank: The one that runs.
    """

    def __init__(self, world_size: int, rank: int) -> None:
        super().__init__(world_size, ())
        self._rank = rank

    @property
    def answers_messages(self) -> bool:
        """Whether messages to ranks that do not run end by themselves: yes, with unknown values."""
        return True

    def representative(self, rank: int) -> int:
        """Return the rank that runs."""
        del rank
        return self._rank

    def represented(self, ranks: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Return the members that the rank represents in a group, as places in it."""
        if self._rank not in ranks or len(ranks) == 1:
            return {}
        place = list(ranks).index(self._rank)
        return {place: tuple(each for each in range(len(ranks)) if each != place)}


class LayoutAxis(NamedTuple):
    """An axis of a program's layout.

    Attributes:
        name: What the program calls it.
        size: How many coordinates it has.
        stride: Distance in ranks from one coordinate to the next.
    """

    name: str
    size: int
    stride: int


def layout_of(world_size: int, groups: Sequence[tuple[str, Sequence[int]]]) -> list[LayoutAxis]:
    """Return the axes of a layout, the outermost first, from the groups that rank 0 is in.

    An axis is a group whose members lie a constant distance apart. Where the groups leave a choice,
    the layout is taken that covers the most ranks, then the one with the most axes. Axes without a
    group between them have the name "".

    Args:
        world_size: Number of ranks.
        groups: Name and global ranks of each.
    """
    found: dict[int, dict[int, str]] = {}
    for name, ranks in groups:
        size = len(ranks)
        stride = ranks[1] - ranks[0] if size > 1 else 0
        if stride > 0 and list(ranks) == list(range(0, size * stride, stride)):
            found.setdefault(stride, {}).setdefault(size, name)

    def layouts(inner: int) -> Iterator[list[LayoutAxis]]:
        """Yield the layouts of what lies outside of some ranks, the innermost axis first."""
        yield []
        steps = [(size, name) for size, name in found.get(inner, {}).items()]
        steps += [(n // inner, "") for n in found if n > inner and n % inner == 0]
        for size, name in steps:
            if world_size % (inner * size) == 0:
                for outer in layouts(inner * size):
                    yield [LayoutAxis(name, size, inner), *outer]

    def merit(axes: Sequence[LayoutAxis]) -> tuple[int, int]:
        return prod(axis.size for axis in axes if axis.name), len([a for a in axes if a.name])

    return max(layouts(1), key=merit)[::-1]


def _some(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:4]))
    return f"{shown}, ..." if len(ranks) > 4 else shown
