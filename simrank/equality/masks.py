"""Masks of dropout: ranks that work on the same elements must drop the same ones.

What a rank has drawn is compared here; the rest of the comparison uses the single program's masks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simrank.equality.record import AGAIN, OUTPUT, Spot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from simrank.equality.comparison import Comparison


@dataclass
class WrongMask:
    """The first dropout whose masks differ where they must not.

    Attributes:
        module: Its module.
        cause: What differs.
        share: Of the elements.
        ranks: Those that differ.
        values: By rank which mask it has, where ranks differ from each other.
        is_again: Whether a recomputation differs from its forward.
    """

    module: str
    cause: str
    share: float
    ranks: Sequence[int]
    values: Mapping[int, int] = field(default_factory=dict)
    is_again: bool = False


class Masks:
    """The masks of one step.

    Args:
        comparison: Of that step.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._single = comparison.single
        self._ranks, self._layout = comparison.ranks, comparison.layout
        self._rows = comparison.rows
        self._axes = [
            axis
            for axis in self._layout.axes
            if axis not in comparison.data_axes and axis not in comparison.stage_axes
        ]

    def wrong(self) -> WrongMask | None:
        """Return the first dropout that differs."""
        found = next(self._rates(), None) or next(self._between_ranks(), None)
        return found or next(self._again(), None)

    def _rates(self) -> Iterator[WrongMask]:
        """Yield dropouts with another rate than the single program's."""
        for rank, step in enumerate(self._ranks):
            for module, single in self._single.dropped.items():
                has_run = Spot(module, OUTPUT, 0) in step.values
                if has_run and single[0].mask.numel() and not step.dropped.get(module):
                    cause = "it drops nothing, though the single program does"
                    yield WrongMask(module, cause, 1.0, [rank])
            for module, calls in step.dropped.items():
                single = self._single.dropped.get(module, [])
                for each, other in zip(calls, single, strict=False):
                    if not each.mask.numel() or not other.mask.numel():
                        continue  # Random numbers that are no mask.
                    scale, wanted = each.mask.max().item(), other.mask.max().item()
                    if scale > 0 and wanted > 0 and abs(scale - wanted) > 1e-6 * wanted:
                        rates = f"{1 - 1 / scale:.3g} and not {1 - 1 / wanted:.3g}"
                        cause = f"the rate of dropout is {rates}"
                        yield WrongMask(module, cause, abs(scale / wanted - 1), [rank])

    def _between_ranks(self) -> Iterator[WrongMask]:
        """Yield dropouts of the same elements with different masks."""
        modules = dict.fromkeys(n for step in self._ranks for n in step.dropped if AGAIN not in n)
        for module in modules:
            for group in self._layout.groups(self._axes):
                drawn = {
                    r: self._ranks[r].dropped[module]
                    for r in group
                    if module in self._ranks[r].dropped
                }
                if len(drawn) < 2:
                    continue
                for calls in zip(*drawn.values(), strict=False):
                    if any(each.is_cut for each in calls):
                        continue  # Each rank has elements of its own.
                    shares = [_share(calls[0].mask, each.mask) for each in calls]
                    if max(shares) > 0:
                        ranks = [r for r, share in zip(drawn, shares, strict=True) if share]
                        cause = (
                            "another dropout mask on ranks that have the same elements "
                            f"({max(shares):.0%} of them differ): their seeds differ"
                        )
                        values = {r: int(share > 0) for r, share in zip(drawn, shares, strict=True)}
                        yield WrongMask(module, cause, max(shares), ranks, values)

    def _again(self) -> Iterator[WrongMask]:
        """Yield dropouts whose recomputation has another mask than their forward."""
        for rank, step in enumerate(self._ranks):
            for name, calls in step.dropped.items():
                module = name.removesuffix(AGAIN)
                first = step.dropped.get(module, [])
                if name == module or len(calls) > len(first):
                    continue
                # The backward recomputes in any order: each has to be one of the forward's.
                for each in calls:
                    if not any(_share(each.mask, other.mask) == 0 for other in first):
                        share = _share(each.mask, first[0].mask)
                        cause = (
                            f"recomputation draws another dropout mask ({share:.0%} of elements "
                            "differ): the random state of the forward is not restored"
                        )
                        yield WrongMask(module, cause, share, [rank], is_again=True)


def _share(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the share of elements that differ."""
    if one.shape != other.shape:
        return 0.0
    return (one != other).double().mean().item()
