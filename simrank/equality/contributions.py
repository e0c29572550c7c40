"""Wrong gradients as sums: how often they count each rank's part of the batch.

The single program's gradient is the sum of those of the parts of its batch, one for each rank and
micro-batch. Each is computed by itself, and a rank's gradient is written as a sum of them. A factor
of 2 or 0 shows which ranks took part twice in a reduction, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from simrank.equality.alignment import bases
from simrank.equality.layout import varying_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from simrank.equality.comparison import Comparison
    from simrank.equality.record import Spot
    from simrank.equality.runs import Runner

_MAX_TERMS = 64  # Assumed: of a sum that is looked for.
_RESIDUAL = 1e-7  # Of what is written as a sum, at most.
_NOTHING = 1e-6  # A part that counts less does not count.


@dataclass(frozen=True)
class Part:
    """A part of the batch.

    Attributes:
        rank: The first rank that has it.
        number: Of the micro-batch there.
        call: Of the single program's model.
        elements: Of that call's output, flat.
    """

    rank: int
    number: int
    call: int
    elements: tuple[int, ...]


def parts_of(comparison: Comparison, whole: torch.Tensor) -> list[Part]:
    """Return the parts of the batch as elements of the model's output."""
    found: dict[tuple[int, tuple[int, ...]], Part] = {}
    index = torch.arange(whole.numel()).view(whole.shape)
    for rank, rows in enumerate(comparison.rows):
        for number, each in enumerate(rows or ()):
            elements = tuple(next(bases(index, each)).flatten().tolist())
            found.setdefault((each.call, elements), Part(rank, number, each.call, elements))
    return list(found.values())


@dataclass
class Sum:
    """A gradient as a sum of parts.

    Attributes:
        factors: By rank whose elements they are, and part, how often it counts.
    """

    factors: Mapping[tuple[int, Part], float]


class Contributions:
    """The gradients of all parts at one step.

    Args:
        comparison: Of that step.
        runner: Runs the single program again.
        step: Number of the step.
        output: The tensor whose elements are shared out, and its call.
    """

    def __init__(
        self, comparison: Comparison, runner: Runner, step: int, output: tuple[Spot, int]
    ) -> None:
        spot, call = output
        self.parts = parts_of(comparison, comparison.single.values[spot][call].value)
        self._gradients: list[dict[str, torch.Tensor]] = []
        self.layout = comparison.layout
        if 1 < len(self.parts) <= _MAX_TERMS:
            calls = comparison.same_of_each_model_call(spot, call)
            flows = [
                {each: part.elements if n == part.call else () for n, each in enumerate(calls)}
                for part in self.parts
            ]
            self._gradients = runner.part_gradients(step, spot, flows)

    def written(
        self, name: str, got: torch.Tensor, places: Mapping[int, torch.Tensor], rank: int
    ) -> Sum | None:
        """Return a rank's gradient of a parameter as a sum of parts.

        Args:
            name: The parameter.
            got: Its gradient on the rank.
            places: By rank the elements of the parameter that it holds, numbered within it.
            rank: The rank.
        """
        if not self._gradients or any(name not in each for each in self._gradients):
            return None
        others: dict[bytes, int] = {places[rank].numpy().tobytes(): rank}
        for other, held in places.items():
            if held.shape == got.shape:
                others.setdefault(held.numpy().tobytes(), other)
        holders = list(others.values())
        for chosen in ([rank], holders):
            terms = [(holder, part) for holder in chosen for part in range(len(self.parts))]
            if len(terms) > min(_MAX_TERMS, got.numel()):
                return None
            columns = torch.stack(
                [
                    self._gradients[part][name].flatten()[places[holder].flatten()]
                    for holder, part in terms
                ],
                dim=1,
            ).double()
            solved = torch.linalg.lstsq(
                columns, got.double().flatten()[:, None], driver="gelsd"
            ).solution
            rest = (columns @ solved)[:, 0] - got.double().flatten()
            if rest.norm() <= _RESIDUAL * got.double().norm():
                factors = {
                    (holder, self.parts[part]): round(factor, 6) + 0.0
                    for (holder, part), factor in zip(terms, solved[:, 0].tolist(), strict=True)
                }
                return Sum(factors)
        return None

    def explain(self, rank: int, found: Sum) -> tuple[tuple[str, ...], str] | None:
        """Return along which axes a gradient is summed wrongly, and how."""
        layout = self.layout
        strange = [(h, f) for (h, _), f in found.factors.items() if h != rank and abs(f) > _NOTHING]
        if strange:
            axes = _differing(layout.coordinates(rank), [layout.coordinates(h) for h, _ in strange])
            ranks = sorted({h for h, _ in strange})
            return axes, (
                f"adds gradients of other elements, those of rank {ranks[0]}: "
                f"reduced over {'/'.join(axes)}, too, along which the parameter is split"
            )
        own = {part: f for (h, part), f in found.factors.items() if h == rank}
        if max(own.values()) - min(own.values()) < _NOTHING:
            return None
        by_number = {
            number: {f for part, f in own.items() if part.number == number}
            for number in {p.number for p in own}
        }
        if len(by_number) > 1 and all(len(each) == 1 for each in by_number.values()):
            counts = ", ".join(
                f"{number}: {next(iter(each)):.4g}" for number, each in sorted(by_number.items())
            )
            return tuple(
                a for a in layout.axes if layout.axes[a] > 1 and len({p.rank for p in own}) > 1
            ), (f"micro-batches do not count alike ({counts} times)")
        by_rank = {part.rank: f for part, f in own.items()}
        axes = varying_values(layout, by_rank)
        counts = ", ".join(f"rank {r}: {f:.4g}" for r, f in sorted(by_rank.items()))
        missing = [r for r, f in by_rank.items() if abs(f) < _NOTHING]
        text = f"on rank {rank} the parts of the batch count differently ({counts} times)"
        if missing:
            text += f": not reduced with rank {missing[0]}"
            axes = (
                _differing(layout.coordinates(rank), [layout.coordinates(r) for r in missing])
                or axes
            )
        return axes, text


def _differing(here: Mapping[str, int], others: Sequence[Mapping[str, int]]) -> tuple[str, ...]:
    return tuple(axis for axis, at in here.items() if any(other[axis] != at for other in others))
