"""Search for the first difference of a wrong step: forward, loss, or backward.

The first tensor that is wrong, while all that it depends on are right, has the fault before it. A
tensor that looks wrong, but on which a right one depends, was not aligned, and has none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from simrank.equality import causes
from simrank.equality.comparison import GRADIENTS, RIGHT, SUMMAND, UNALIGNED, VALUES, WRONG
from simrank.equality.layout import varying, varying_values
from simrank.equality.record import OUTPUT, UNKNOWN
from simrank.equality.verdict import (
    BACKWARD,
    FORWARD,
    LOSS,
    LOSS_MODULE,
    MICRO_BATCHES,
    MODEL,
    FirstDifference,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from simrank.equality.comparison import Compared
    from simrank.equality.record import Spot
    from simrank.equality.step import AtStep

Scales = dict[int, list[float]]
_ALIKE = 1e-7  # Of scales that are the same.


class Search:
    """Looks for the first difference of a step.

    Args:
        at: The step.
    """

    def __init__(self, at: AtStep) -> None:
        self._at, self._comparison, self._layout = at, at.comparison, at.layout
        self._record = at.start.reference.record
        self._scales: Scales = {}
        self._forward_counts: Counter[str] = Counter()

    def tensors(self) -> FirstDifference | None:
        """Return the first difference of tensors that pass modules."""
        at = self._at
        found = self._dropout()
        if found is None and not at.is_loss_right(strict=False):
            found = self._forward()
        return found or self._recomputed() or self._loss_gradient() or self._backward()

    def _dropout(self) -> FirstDifference | None:
        wrong = self._at.masks.wrong()
        if wrong is None:
            return None
        direction = BACKWARD if wrong.is_again else FORWARD
        axes = varying_values(self._layout, wrong.values)
        found = FirstDifference(
            direction, wrong.module or MODEL, axes, wrong.cause, wrong.share, wrong.ranks
        )
        found.needs_masks = False
        return found

    def compared_before_backward(self) -> str:
        """Return the text of the comparisons before a wrong backward: the loss, or the forward."""
        at, losses, single = self._at, list(self._at.losses().values()), self._at.single.loss
        if losses and single is not None and at.is_loss_right(strict=False):
            return "loss equal"
        counts = self._forward_counts
        text = f"{counts[RIGHT] + counts[SUMMAND]} tensors of the forward equal" + "".join(
            f", {counts[status]} {status}" for status in (WRONG, UNALIGNED) if counts[status]
        )
        if not counts:
            text = "forward not compared"
        if not losses or single is None:
            return f"{text}; no loss to compare"
        return f"{text}; the loss is {sum(losses) / len(losses):.6g} and not {single.item():.6g}"

    def scale(self) -> float | None:
        """Return the factor of the model output's gradient, if all micro-batches have one."""
        every = [scale for each in self._scales.values() for scale in each if scale]
        is_one = every and max(every) - min(every) <= _ALIKE * max(map(abs, every))
        return every[0] if is_one else None

    # ---- Forward ----

    def _forward(self) -> FirstDifference | None:
        every = self._compared(VALUES)
        self._forward_counts.update(compared.status for compared in every)
        culprit = self._first(every, self._upstream(), self._comparison.single.unused)
        if culprit is not None and culprit.status == SUMMAND:
            culprit = self._reduced_wrongly(every, culprit)
        of_batch = None if culprit is None else causes.of_the_batch(self._at)
        if culprit is not None and of_batch is not None:
            error, ranks = culprit.unsummed_error, culprit.wrong_ranks
            return FirstDifference(FORWARD, MODEL, *of_batch, error, ranks)
        return None if culprit is None else self._blame(FORWARD, culprit)

    def _reduced_wrongly(self, every: Sequence[Compared], partial: Compared) -> Compared:
        """Return the tensor that is wrong though a partial sum before it was reduced."""
        wrong = [e for e in every if e.status == WRONG and e.order > partial.order]
        after = min(wrong, key=lambda compared: compared.order, default=None)
        if after is None:
            return partial
        calls = self._at.start.ranks[after.wrong_ranks[0]].calls
        is_reduced = any(
            partial.order < call.order < after.order
            and set(partial.axes) <= set(self._layout.axes_of(call.group) or ())
            for call in calls
        )
        return after if is_reduced else partial

    def _compared(self, kind: str) -> list[Compared]:
        scales = self._scales if kind == GRADIENTS else None
        found = []
        for spot, call in self._comparison.single.order:
            compared = self._comparison.compare(kind, spot, call, scales)
            if compared.status in (WRONG, RIGHT) and not self._at.is_excluded(spot.module):
                is_right = compared.status == RIGHT
                self._at.tally.add(spot.module or MODEL, compared.share, is_right=is_right)
            found.append(compared)
        return found

    def _upstream(self) -> list[int]:
        """Return for each tensor those that it depends on, as bits."""
        known = self._comparison.single.upstream
        every = [(1 << number) - 1 for number in range(len(self._comparison.single.order))]
        if not known:
            return every
        # Nothing is known of a tensor without a gradient: all before it may be upstream.
        return [b if b != UNKNOWN else before for b, before in zip(known, every, strict=True)]

    def _first(
        self,
        every: Sequence[Compared],
        upstream: Sequence[int],
        cleared: int = 0,
        *,
        clears: bool = True,
    ) -> Compared | None:
        """Return the first tensor that is wrong, and that no right one depends on.

        If it depends on a partial sum, that one, which was to be reduced before.

        Args:
            every: All tensors.
            upstream: By number the tensors that each depends on, as bits.
            cleared: Tensors that are right for another reason, as bits.
            clears: Whether what a right tensor depends on is right.
        """
        known = self._comparison.single.upstream
        for number, compared in enumerate(every) if clears else ():
            # One without a gradient depends on nothing that is known.
            if compared.status == RIGHT and not (known and known[number] == UNKNOWN):
                cleared |= upstream[number]
        numbers = [
            number
            for number, compared in enumerate(every)
            if not cleared >> number & 1 and not self._at.is_excluded(compared.spot.module)
        ]
        if clears:  # Decoding steps are in the single program's order: ranks go on one by one.
            numbers.sort(key=lambda number: every[number].order)
        partial = [
            number
            for number in numbers
            if every[number].status == SUMMAND and not every[number].is_declared
        ]
        wrong = next((number for number in numbers if every[number].status == WRONG), None)
        if wrong is None:
            return every[partial[0]] if partial else None
        before = [
            number
            for number in partial
            if upstream[wrong] >> number & 1 and every[number].order < every[wrong].order
        ]
        # The one that nothing has reduced on the way.
        open_ones = [number for number in before if not self._is_reduced(every[number])]
        return every[(open_ones or before or [wrong])[0]]

    def _is_reduced(self, partial: Compared) -> bool:
        """Return whether a later call of the step reduces as many elements over its axes."""
        rank = next(iter(partial.got))
        count = sum(each.numel() for each in partial.got[rank])
        last = self._comparison.ranks[rank].span[1]
        return any(
            partial.order < call.order < last
            and "reduce" in call.name
            and call.count == count
            and set(partial.axes) <= set(self._layout.axes_of(call.group) or ())
            for call in self._at.start.ranks[rank].calls
        )

    def _blame(self, direction: str, compared: Compared) -> FirstDifference:
        """Explain a wrong tensor, and name the module whose code lies before it."""
        spot, is_back = compared.spot, direction == BACKWARD
        module = self._owner(spot, is_back=is_back)
        if module == LOSS_MODULE and not self._at.is_loss_right(strict=False):
            direction = LOSS
        started = None if is_back or self._at.number else self._at.start.blame(module)
        if started is not None:
            return started
        error = compared.unsummed_error
        if compared.status == SUMMAND:
            module, over = spot.module or MODEL, "/".join(compared.axes)
            what = f"the gradient of its {spot.side}" if is_back else f"its {spot.side}"
            cause = f"{what} is a partial sum: not reduced over {over}"
            if self._comparison.are_alike(compared.got, compared.axes):
                size = len(self._layout.peers(0, compared.axes))
                cause = f"{what} is 1/{size} of it on each rank of {over}: divided, or not summed"
            found = FirstDifference(direction, module, compared.axes, cause, error)
            found.ranks, found.hint = range(self._layout.num_ranks), f"an all_reduce on '{over}'"
        else:
            axes, cause = self._explain(compared, is_back=is_back)
            found = FirstDifference(direction, module, axes, cause, error, compared.wrong_ranks)
        found.place = self._place(spot, module)
        ranks = compared.wrong_ranks or [0]
        lost = self._at.without_counterpart(ranks[0], "" if module == MODEL else module)
        if is_back and causes.DIFFER in found.cause and lost:
            found.cause += f": its forward has {lost}, and its backward no call of that group"
        found.calls = self._at.calls_before(ranks[0], compared.order, is_back=is_back) or "none"
        return found

    def _explain(self, compared: Compared, *, is_back: bool) -> tuple[tuple[str, ...], str]:
        """Return along which axes a tensor is wrong, and why."""
        spot = compared.spot
        axes, cause = causes.explain(self._at, compared, is_back=is_back)
        if is_back and spot.module != self._owner(spot, is_back=is_back):
            where = f"of the {spot.side} of {spot.module or 'the model'}"
            cause = cause.replace(causes.OF_GRADIENT, f"gradient {where}: ", 1)
        keyword = self._record.keywords.get(spot)
        return axes, cause if keyword is None else f"{keyword} of {spot.module or MODEL}: {cause}"

    def _owner(self, spot: Spot, *, is_back: bool) -> str:
        """Return the module whose code lies between a tensor and the one before it."""
        if (spot.side == OUTPUT) != is_back:
            return spot.module or MODEL
        if not spot.module and is_back:
            return LOSS_MODULE
        return self._record.parent(spot.module) or MODEL

    def _place(self, spot: Spot, module: str) -> str:
        """Return the line of a module's forward, or that which calls it."""
        for record in self._at.start.ranks:
            home = record.homes.get("" if module == MODEL else module)
            site = record.sites.get(spot.module)
            if home is not None and (module == spot.module or site is None):
                return str(home)
            if site is not None:
                return str(site)
        return ""

    def _recomputed(self) -> FirstDifference | None:
        """Return the first module whose recomputation gives something else than its forward."""
        for spot, call in self._comparison.single.order:
            for rank, step in enumerate(self._comparison.ranks):
                again, first = step.again.get(spot, ()), step.values.get(spot, ())
                is_whole = len(again) == len(first) or len(first) == 1
                if spot.side != OUTPUT or call >= min(len(again), len(first)) or not is_whole:
                    continue
                one, other = again[call].value, first[call].value
                error = (one - other).norm().item() if one.shape == other.shape else 0.0
                if error:
                    cause = "recomputation gives other values than the forward"
                    error /= other.norm().item() or 1.0
                    return FirstDifference(BACKWARD, spot.module or MODEL, (), cause, error, [rank])
        return None

    # ---- Loss ----

    def output(self) -> tuple[Spot, int] | None:
        """Return the last tensor with a gradient that ranks have, and its call.

        A scalar beside it, such as a temperature, is none: any scale fits it.
        """
        single = self._comparison.single
        for spot, call in reversed(single.order):
            if spot.side != OUTPUT or call not in single.gradients.get(spot, ()):
                continue
            compared = self._comparison.compare(GRADIENTS, spot, call)
            if compared.got and single.values[spot][call].value.numel() > 1:
                return spot, call
        return None

    def _loss_gradient(self) -> FirstDifference | None:
        """Find how the loss is scaled on each rank; return that it is another function."""
        output = self.output()
        if output is None:
            return None
        plain = {
            rank: [1.0] * len(rows)
            for rank, rows in enumerate(self._comparison.rows)
            if rows is not None
        }
        every = [
            self._comparison.compare(GRADIENTS, output[0], call, plain)
            for call in self._comparison.same_of_each_model_call(*output)
        ]
        every = [compared for compared in every if compared.got]
        if all(compared.status == RIGHT for compared in every):
            self._scales = plain
            return None
        if not all(compared.want for compared in every):
            return None
        for axes in self._summed_axes():
            scales, misfits = self._fitted(every, axes)
            if not misfits:
                self._scales = self._with_stages(scales)
                return self._uneven(scales)
        wrong = max(every, key=lambda compared: compared.share)
        scales, misfits = self._fitted([wrong], ())
        axes, cause = causes.explain(self._at, _misfit(wrong, scales, misfits), is_back=True)
        axes = varying(self._layout, sorted(misfits)) or axes
        text = f"the gradient of the model's output: {cause.removeprefix(causes.OF_GRADIENT)}"
        direction = LOSS
        if self._at.is_loss_right(strict=False):
            direction, text = BACKWARD, f"the loss is right, and its backward is not: {text}"
        return FirstDifference(
            direction, LOSS_MODULE, axes, text, max(misfits.values()), ranks=sorted(misfits)
        )

    def _summed_axes(self) -> Iterator[tuple[str, ...]]:
        """Yield no axis, and each one along which ranks have the same rows."""
        yield ()
        taken = (*self._comparison.data_axes, *self._comparison.stage_axes)
        yield from ((axis,) for axis in self._layout.axes if axis not in taken)

    def _fitted(
        self, every: Sequence[Compared], axes: tuple[str, ...]
    ) -> tuple[Scales, dict[int, float]]:
        """Return the scale of each call, and the errors of ranks where none fits."""
        scales: Scales = {}
        misfits: dict[int, float] = {}
        for compared in every:
            for rank in compared.got:
                have = self._comparison.summed(compared.got, rank, axes)
                known = scales.setdefault(rank, [0.0] * self._num_calls(rank, len(have)))
                numbers = self._comparison.calls_within(rank, compared) or range(len(have))
                for number, got, want in zip(numbers, have, compared.want[rank], strict=True):
                    scale = (got * want).sum().item() / (want.square().sum().item() or 1.0)
                    error = (got - scale * want).norm().item()
                    if error > compared.tolerance * max(abs(scale), 1.0):
                        relative = error / (got.norm().item() or 1.0)
                        misfits[rank] = max(misfits.get(rank, 0.0), relative)
                    known[number] = scale
        return scales, misfits

    def _num_calls(self, rank: int, least: int) -> int:
        return max(len(self._comparison.rows[rank] or ()), least)

    def _with_stages(self, scales: Mapping[int, list[float]]) -> Scales:
        """Return the scales also of earlier stages of a pipeline."""
        found = dict(scales)
        for rank, rows in enumerate(self._comparison.rows):
            peers = self._layout.peers(rank, self._comparison.stage_axes)
            known = next((scales[peer] for peer in peers if peer in scales), None)
            if rank not in found and known is not None and len(known) == len(rows or ()):
                found[rank] = known
        return found

    def _uneven(self, scales: Scales) -> FirstDifference | None:
        """Return that tokens weigh differently."""
        every = [scale for each in scales.values() for scale in each if scale]
        low, high = min(every, default=0.0), max(every, default=0.0)
        if abs(high - low) <= _ALIKE * abs(high):
            return None
        totals = {rank: round(sum(each), 9) for rank, each in scales.items()}
        axes = varying_values(self._layout, totals)
        within = [[scale for scale in each if scale] or [0.0] for each in scales.values()]
        if not axes or any(max(e) - min(e) > _ALIKE * abs(high) for e in within):
            axes = (*axes, MICRO_BATCHES)
        over = "/".join(axes)
        ranks = [rank for rank, total in totals.items() if total < max(totals.values())]
        cause = (
            f"tokens weigh {low:.4g} to {high:.4g} times as much as in the single program: "
            f"a mean of means over {over}"
        )
        return FirstDifference(
            LOSS, LOSS_MODULE, axes, cause, high / low - 1, ranks or sorted(totals)
        )

    # ---- Backward ----

    def _backward(self) -> FirstDifference | None:
        every = self._compared(GRADIENTS)
        downstream = [0] * len(every)
        for number, bits in enumerate(self._upstream()):
            for other in range(len(every)):
                if bits >> other & 1:
                    downstream[other] |= 1 << number
        cleared = self._parameters_themselves()
        for parameter in self._right_gradients():
            for number, bits in enumerate(self._comparison.single.reads):
                if bits >> parameter & 1:
                    cleared |= 1 << number
        culprit = self._first(every, downstream, cleared)
        if culprit is None:
            return None
        found = self._blame(BACKWARD, culprit)
        return self._lost(found) or found

    def _lost(self, found: FirstDifference) -> FirstDifference | None:
        """Return a module within the blamed one whose output gets no gradient, where it should."""
        if causes.DIFFER not in found.cause:
            return None
        single, home = self._comparison.single, "" if found.module == MODEL else found.module
        for spot, call in reversed(single.order):
            is_within = not home or spot.module.startswith(f"{home}.")
            if spot.side != OUTPUT or not is_within or call not in single.gradients.get(spot, ()):
                continue
            ranks = [
                rank
                for rank, step in enumerate(self._comparison.ranks)
                if step.values.get(spot) and not step.gradients.get(spot)
            ]
            if ranks and single.gradients[spot][call].value.norm().item():
                axes = varying(self._layout, ranks) or found.axes
                cause = "its output gets no gradient: detached, or sent without autograd"
                place, error = self._place(spot, spot.module), found.error
                lost = FirstDifference(
                    BACKWARD, spot.module, axes, cause, error, ranks, place=place
                )
                lost.calls = found.calls
                return lost
        return None

    def _parameters_themselves(self) -> int:
        """Return, as bits, the tensors that are parameters: those have their own comparison."""
        single, step = self._comparison.single, self._at.number
        before = self._record.steps[step - 1].parameters if step else self._record.initial
        names = list(single.parameter_gradients)
        found = 0
        for number, reads in enumerate(single.reads):
            if reads.bit_count() == 1:
                spot, call = single.order[number]
                parameter = before[names[reads.bit_length() - 1]].value
                is_it = torch.equal(single.values[spot][call].value, parameter)
                found |= is_it << number
        return found

    def _right_gradients(self) -> list[int]:
        """Return the numbers of parameters whose gradients are right on every rank."""
        at = self._at
        wrong = {each.name for each in at.wrong_parameters("parameter_gradients")}
        return [
            number
            for number, (name, each) in enumerate(at.single.parameter_gradients.items())
            if each is not None
            and name not in wrong
            and each.value.dim() > 1  # That of a bias forgets the order of rows.
            and any(step.parameter_gradients.get(name) is not None for step in at.ranks)
        ]


def _misfit(
    compared: Compared, scales: Mapping[int, Sequence[float]], misfits: Mapping[int, float]
) -> Compared:
    """Return the ranks that no scale fits, with what they should have at the others' scale."""
    right = [scale for rank, each in scales.items() if rank not in misfits for scale in each]
    scale = right[0] if right else 1.0
    want = {rank: [each * scale for each in compared.want[rank]] for rank in compared.want}
    errors = {
        rank: sum(
            (g - w).norm().item() for g, w in zip(compared.got[rank], want[rank], strict=True)
        )
        for rank in misfits
    }
    tolerance = compared.tolerance * max(1.0, abs(scale))
    return replace(compared, want=want, errors=errors, tolerance=tolerance)
