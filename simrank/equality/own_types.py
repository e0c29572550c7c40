"""The types that a program declares: how far a layout's training is from that in float64.

The tolerance is 8 times the error that the single program has in the same types.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from simrank.equality.layout import varying
from simrank.equality.runs import Reference
from simrank.equality.start import Start
from simrank.equality.step import GRADIENTS, PARAMETERS, AtStep
from simrank.equality.verdict import PRECISION, Found, modules_text, names_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.equality.record import Record
    from simrank.equality.step import Wrong

_FLOOR = 1 / 8  # Of the rounding error of the parameters' type; assumed.
_FACTOR = 8  # As above.
_KINDS = {GRADIENTS: "gradients", PARAMETERS: "parameters after the step"}


@dataclass(frozen=True)
class OwnTypes:
    """A program in its own types.

    Attributes:
        single: The single program.
        ranks: Those of the layout.
    """

    single: Record
    ranks: Sequence[Record]

    def judge(self, exact: Start, excluded: Sequence[str]) -> tuple[Found | None, str]:
        """Return the tensors that are too far from float64, if any, and a line with the distance.

        Args:
            exact: The layout in float64, whose parameters are aligned.
            excluded: Modules that are not compared.
        """
        reference = Reference(exact.reference.record, [self.single])
        start = Start(reference, self.ranks, exact.layout)
        start.places = exact.places
        worst, found = 0.0, None
        for number in range(len(self.single.steps)):
            at = AtStep(start, number, excluded)
            at.comparison.epsilon = self._epsilon() * _FLOOR
            for kind in _KINDS:
                wrong = at.wrong_parameters(kind)
                if wrong and found is None:
                    found = replace(self._found(at, kind, wrong), step=number)
            worst = max(worst, at.tally.worst)
        line = f"in {self._types()}: errors up to {_FACTOR * worst:.2g} times the single program's"
        return found, line

    def _found(self, at: AtStep, kind: str, wrong: Sequence[Wrong]) -> Found:
        names = list(dict.fromkeys(each.name for each in wrong))
        every = at.start.held_names()
        most = max(_FACTOR * each.error / each.tolerance for each in wrong)
        ranks = sorted({each.rank for each in wrong})
        layout = at.layout
        axes = varying(layout, ranks) or tuple(a for a, size in layout.axes.items() if size > 1)
        cause = (
            f"{_KINDS[kind]} are up to {most:.2g} times as far from float64 as those of the single "
            f"program in the same types: {names_text(names, every)}"
        )
        error = max(each.relative_error for each in wrong)
        return Found(PRECISION, modules_text(names, every), axes, cause, error, ranks)

    def _epsilon(self) -> float:
        every = [each.value.dtype for each in self.single.initial.values()]
        return max(torch.finfo(dtype).eps for dtype in every if dtype.is_floating_point)

    def _types(self) -> str:
        """Return the types of what passes modules on ranks, the narrowest first."""
        kinds = {
            each.value.dtype
            for record in self.ranks
            for calls in record.steps[0].values.values()
            for each in calls
            if each.value.is_floating_point()
        }
        names = sorted(kinds, key=lambda dtype: (dtype.itemsize, str(dtype)))
        return ", ".join(str(dtype).removeprefix("torch.") for dtype in names)
