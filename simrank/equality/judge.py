"""Verdicts on layouts: each trains as the single program does, or differs somewhere.

What training has of a step decides: the parameters and buffers after it, the loss, and which
elements dropouts drop. Tensors of the forward and the backward only tell where a difference began.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from simrank.equality import gradients, parameters
from simrank.equality.causes import UNEXPLAINED
from simrank.equality.comparison import ABSENT, GRADIENTS, RIGHT, SUMMAND, VALUES
from simrank.equality.search import Search
from simrank.equality.start import Start
from simrank.equality.step import AtStep
from simrank.equality.verdict import (
    BACKWARD,
    FORWARD,
    LOSS,
    LOSS_MODULE,
    MODEL,
    STEP,
    WHOLE,
    Found,
    Verdict,
)
from simrank.errors import SimrankError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.equality.layout import Layout
    from simrank.equality.record import Record
    from simrank.equality.runs import Reference, Runner

_SUMMED = "the loss that the ranks return is a sum over {} elements of the batch, not its mean"
# What is looked for among the results of operations: values, or gradients.
_KINDS = {FORWARD: (VALUES,), LOSS: (VALUES, GRADIENTS), BACKWARD: (GRADIENTS,)}


class Judge:
    """Compares the ranks of a layout with the single program.

    Args:
        reference: The single program.
        ranks: What the ranks did.
        layout: Where they stand.
        runner: Runs programs again to find a cause; None: the cause is what the records tell.
        excluded: Modules that are not compared.

    Attributes:
        start: The ranks and the single program, aligned once it has judged.
    """

    def __init__(
        self,
        reference: Reference,
        ranks: Sequence[Record],
        layout: Layout,
        runner: Runner | None = None,
        excluded: Sequence[str] = (),
    ) -> None:
        self.start = Start(reference, ranks, layout)
        self._layout, self._runner, self._excluded = layout, runner, excluded

    def judge(self) -> Verdict:
        """Return the verdict."""
        verdict = Verdict(self._layout)
        found = self.start.align()
        verdict.notes += self.start.notes()
        off = sorted(self.start.reference.record.switched_off)
        verdict.notes += [f"the dropout of {name} is off in both programs" for name in off]
        for number in range(len(self.start.reference.record.steps)):
            if found is not None:
                break
            at = AtStep(self.start, number, self._excluded)
            at.tally = verdict.tally
            if at.is_wrong():
                found = self._located(at)
                found.step = number
            else:
                self._survey(at, verdict)
                if at.num_summed and not number:
                    verdict.notes.append(_SUMMED.format(at.num_summed))
        if found is not None:
            self._complete(found)
            verdict.found = found
        return verdict

    def _located(self, at: AtStep) -> Found:
        """Return the first difference of a step that is wrong."""
        search = Search(at)
        found = search.tensors()
        found = found or gradients.find_gradients(at, search, self._runner)
        found = found or self._wrong_loss(at) or parameters.find_step(at)
        found = found or parameters.find_buffer(at)
        return found or Found(STEP, WHOLE, (), "what training has after the step differs")

    @staticmethod
    def _wrong_loss(at: AtStep) -> Found | None:
        if at.is_loss_right(strict=True) or at.single.loss is None:
            return None
        losses, want = at.losses(), at.single.loss.item()
        apart = at.axes_of_losses()
        if apart:
            cause = f"ranks of {'/'.join(apart)} have the same rows and different losses"
            error = (max(losses.values()) - min(losses.values())) / (abs(want) or 1.0)
            return Found(LOSS, LOSS_MODULE, apart, cause, error, sorted(losses))
        got = next(iter(losses.values()))
        axes = tuple(at.comparison.data_axes) or tuple(at.layout.axes)
        cause = f"the loss is {got:.6g} and not {want:.6g}, {got / (want or 1.0):.4g} of it"
        error = abs(got - want) / (abs(want) or 1.0)
        return Found(LOSS, LOSS_MODULE, axes, cause, error, sorted(losses))

    @staticmethod
    def _survey(at: AtStep, verdict: Verdict) -> None:
        """Count the tensors of the forward of a right step, and those that were not aligned."""
        for spot, call in at.single.order:
            if at.is_excluded(spot.module):
                continue
            compared = at.comparison.compare(VALUES, spot, call)
            name = spot.module or MODEL
            if compared.status in (RIGHT, SUMMAND):
                at.tally.add(name, compared.share)
            elif compared.status != ABSENT and not at.number:
                index = f" {spot.index}" if spot.index else ""
                text = f"{name}: {spot.side}{index}"
                if text not in verdict.unaligned:
                    verdict.unaligned.append(text)
                at.tally.shares.setdefault(name, None)

    def _complete(self, found: Found) -> None:
        """Name the axes where the records do not tell: without them there is no difference."""
        axes = [axis for axis, size in self._layout.axes.items() if size > 1]
        if self._runner is not None:
            self._locate(found, self._runner)
        if len(axes) == 1:
            found.axes = found.axes or tuple(axes)
        elif len(found.axes) != 1 and self._runner is not None:
            needed = [axis for axis in axes if self._is_equal_without(axis, self._runner)]
            found.axes = tuple(needed) or found.axes
            for axis in set(axes) - set(needed) if needed else ():
                size = f"the size of {axis}"
                found.cause = found.cause.replace(f"{size} or ", "").replace(f" or {size}", "")

    def _locate(self, found: Found, runner: Runner) -> None:
        """Name the operation that a difference began with, where nothing simple explains it."""
        is_open = any(words in found.cause for words in UNEXPLAINED)
        if not is_open or found.direction not in _KINDS or not found.ranks:
            return
        name = "" if found.module == MODEL else found.module
        ranks, step, kinds = found.ranks, found.step, _KINDS[found.direction]
        try:
            begin = runner.begin(self._layout, ranks, name, step, kinds)
            while begin is not None and begin.is_before and name:
                name = self.start.reference.record.parent(name)
                before = runner.begin(self._layout, ranks, name, step, kinds)
                if before is None:
                    break
                begin, found.module = before, name or MODEL
        except SimrankError as error:  # What is found stands.
            text = str(error).partition("\n")[0]
            found.cause += f" (its operations could not be recorded: {text})"
            return
        if begin is not None:
            found.place = begin.place
            found.cause += f": {begin.text} is the first that the single program does not have"

    def _is_equal_without(self, axis: str, runner: Runner) -> bool:
        """Return whether the layout with one rank along an axis equals the single program."""
        smaller = replace(self._layout, axes={**self._layout.axes, axis: 1})
        try:
            ranks = runner.layout(smaller).ranks
        except SimrankError:  # The program needs the axis.
            return False
        reference = self.start.reference
        return Judge(reference, ranks, smaller, excluded=self._excluded).judge().found is None
