"""Layouts: the axes of a mesh, and where each rank stands on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from simrank.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True)
class Layout:
    """The axes of a mesh in order, with their sizes.

    Attributes:
        axes: Sizes by name; the last axis is that of neighbouring ranks.
        shared: Sizes of axes that lie over the ranks of the others.
    """

    axes: Mapping[str, int]
    shared: Mapping[str, int] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes of all axes."""
        return {**self.axes, **self.shared}

    def arranged(self, order: Sequence[str], shared: Sequence[str]) -> Layout:
        """Return the layout with its axes in a program's order.

        Args:
            order: Names of the axes, outermost first; none: any, as they are.
            shared: Those that lie over the ranks of the others.

        Raises:
            ConfigError: The program has no axis of that name.
        """
        if not order:
            return self
        for name in self.axes:
            if name not in (*order, *shared):
                expected = f"an axis of the program: {', '.join((*order, *shared))}"
                raise ConfigError(ConfigProblem("layouts", None, str(self), expected, name))
        return Layout(
            {name: self.axes[name] for name in order if name in self.axes},
            {name: self.axes[name] for name in shared if name in self.axes},
        )

    def __str__(self) -> str:
        """Return `dp2 x tp2`."""
        return " x ".join(f"{name}{size}" for name, size in self.sizes.items()) or "single"

    @property
    def num_ranks(self) -> int:
        """Return the product of the sizes."""
        return prod(self.axes.values())

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinate of a rank on each axis."""
        found = {}
        for name, size in reversed([*self.axes.items()]):
            rank, found[name] = divmod(rank, size)
        return {name: found[name] for name in self.axes}

    def peers(self, rank: int, axes: Sequence[str]) -> list[int]:
        """Return the ranks that differ from one only along some axes, itself included."""
        at = self.coordinates(rank)
        return [
            other
            for other in range(self.num_ranks)
            if all(at[a] == c for a, c in self.coordinates(other).items() if a not in axes)
        ]

    def groups(self, axes: Sequence[str]) -> Iterator[list[int]]:
        """Yield the groups of ranks that differ only along some axes."""
        seen: set[int] = set()
        for rank in range(self.num_ranks):
            if rank not in seen:
                group = self.peers(rank, axes)
                seen.update(group)
                yield group

    def axes_of(self, group: Sequence[int]) -> tuple[str, ...] | None:
        """Return the axes along which a group's ranks differ; None if it is no group of axes."""
        ranks = sorted(group)
        at = [self.coordinates(rank) for rank in ranks]
        axes = tuple(a for a in self.axes if len({each[a] for each in at}) > 1)
        return axes if ranks and self.peers(ranks[0], axes) == ranks else None


def varying(layout: Layout, ranks: Sequence[int]) -> tuple[str, ...]:
    """Return the axes along which some ranks are in a list and others are not."""
    return varying_values(layout, {r: r in set(ranks) for r in range(layout.num_ranks)})


def varying_values(layout: Layout, values: Mapping[int, object]) -> tuple[str, ...]:
    """Return the axes along which ranks have different values."""
    return tuple(
        axis
        for axis in layout.axes
        if any(
            len({values[rank] for rank in group if rank in values}) > 1
            for group in layout.groups([axis])
        )
    )
