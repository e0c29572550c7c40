"""Why the gradients of parameters differ, as the optimizer finds them.

The single program's gradient is the sum of those of the parts of its batch, one for each rank and
micro-batch. Each is computed by itself, and a rank's gradient is written as a sum of them. A factor
of 2 or 0 shows which ranks took part twice in a reduction, or not at all.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING

import torch

from simrank.equality.alignment import bases
from simrank.equality.causes import factor_of
from simrank.equality.layout import varying, varying_values
from simrank.equality.parameters import CLOSE, Reason, are_alike, factors_of, found, names_of
from simrank.equality.record import PARTIAL
from simrank.equality.step import PARAMETERS, STEP_GRADIENTS, AtStep
from simrank.equality.verdict import MICRO_BATCHES, PARAMETER_GRADIENTS, FirstDifference
from simrank.errors import ranks_text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from simrank.equality.comparison import StepComparison
    from simrank.equality.record import Spot
    from simrank.equality.runs import Runner
    from simrank.equality.search import Search
    from simrank.equality.step import Wrong


# ---- wrong gradients as sums: how often they count each rank's part of the batch ----

_MAX_TERMS = 64  # Assumed: of a sum that is looked for.
_RESIDUAL = 1e-7  # Of what is written as a sum, at most.
_NOTHING = 1e-6  # A part that counts less does not count.
UNALIKE, LEFT_OUT = "micro-batches do not count alike", "whole micro-batches of"
_LOST = ": overwritten, or not added up"


@dataclass(frozen=True)
class BatchPart:
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


def parts_of(comparison: StepComparison, whole: torch.Tensor) -> list[BatchPart]:
    """Return the parts of the batch as elements of the model's output."""
    found: dict[tuple[int, tuple[int, ...]], BatchPart] = {}
    index = torch.arange(whole.numel()).view(whole.shape)
    for rank, rows in enumerate(comparison.rows):
        for number, each in enumerate(rows or ()):
            elements = tuple(next(bases(index, each)).flatten().tolist())
            found.setdefault((each.call, elements), BatchPart(rank, number, each.call, elements))
    return list(found.values())


@dataclass
class Sum:
    """A gradient as a sum of parts.

    Attributes:
        factors: By rank whose elements they are, and part, how often it counts.
    """

    factors: Mapping[tuple[int, BatchPart], float]


class Contributions:
    """The gradients of all parts at one step.

    Args:
        comparison: Of that step.
        runner: Runs the single program again.
        step: Number of the step.
        output: The tensor whose elements are shared out, and its call.
    """

    def __init__(
        self, comparison: StepComparison, runner: Runner, step: int, output: tuple[Spot, int]
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
            text = f"{UNALIKE} ({counts} times)"
            is_lost = any(abs(f) < _NOTHING for f in own.values())
            return (MICRO_BATCHES,), text + (_LOST if is_lost else "")
        every: dict[int, list[float]] = defaultdict(list)
        for part, factor in own.items():
            every[part.rank].append(factor)
        axes = varying_values(layout, {r: tuple(factors) for r, factors in every.items()})
        if any(len(set(factors)) > 1 for factors in every.values()):
            counts = "; ".join(
                f"rank {r}: {', '.join(f'{f:.4g}' for f in factors)}"
                for r, factors in sorted(every.items())
            )
            return axes, f"{UNALIKE} ({counts} times)"
        by_rank = {rank: factors[0] for rank, factors in every.items()}
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


# ---- why the gradients of parameters differ, as the optimizer finds them ----


def find_gradients(at: AtStep, search: Search, runner: Runner | None) -> FirstDifference | None:
    """Find the fault of gradients as the optimizer finds them.

    Args:
        at: The step.
        search: Of that step.
        runner: Runs the single program again, part by part; None: that is not tried.
    """
    wrong = at.wrong_parameters(STEP_GRADIENTS)
    if not wrong:
        return _lost_gradients(at)
    reason = why_gradients(at, wrong)
    if reason is not None and (
        reason == _reason_before(at) or _is_reduced_later(at, wrong, reason[0])
    ):
        return None  # So they were at the step before, which is right: the update makes up for it.
    reason = _of_micro_batches(at, search, wrong) or reason
    if reason is None and runner is not None:
        reason = _as_sum(at, search, runner, wrong)
    left_out = None if reason is not None else _left_out(at)
    if left_out is not None:
        reason = *left_out, names_of(wrong)
    reason = reason or _of_another(at, wrong) or _in_places(wrong)
    return found(at, PARAMETER_GRADIENTS, wrong, reason)


def _of_micro_batches(at: AtStep, search: Search, wrong: Sequence[Wrong]) -> Reason | None:
    """Return that each micro-batch's loss is divided by another number than theirs.

    The model's output then has a wrong factor, and what follows it is right.
    """
    num_calls, scale, factors = at.num_calls, search.scale(), factors_of(wrong)
    if num_calls == 1 or scale is None or factors is None or not are_alike(factors.values()):
        return None
    factor = next(iter(factors.values()))
    sizes = [at.layout.axes[axis] for axis in at.comparison.data_axes]
    right = {prod(each) for n in range(len(sizes) + 1) for each in combinations(sizes, n)}
    if not factor or not any(abs(scale / factor - each) <= CLOSE * each for each in right):
        return None
    if factor_of(at.layout, factor, num_calls) is not None:
        return None
    text = (
        f"{factor:.6g} times what they should be, from the loss of each micro-batch on: divided by "
        f"another number than that of micro-batches, {num_calls}"
    )
    return (MICRO_BATCHES,), text, names_of(wrong)


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {ranks_text(ranks)}"


def _left_out(at: AtStep) -> tuple[tuple[str, ...], str] | None:
    """Return that some of the batch takes no part: its rows, or the backward of a micro-batch."""
    comparison, layout = at.comparison, at.layout

    def axes_of(ranks: Sequence[int], every: Collection[int]) -> tuple[str, ...]:
        return (MICRO_BATCHES,) if len(ranks) == len(every) else varying(layout, ranks)

    known = [rank for rank, rows in enumerate(comparison.rows) if rows]
    lost = {rank: comparison.without_backward(rank) for rank in known}
    ranks = [rank for rank, calls in lost.items() if calls]
    if ranks:
        numbers = ", ".join(map(str, lost[ranks[0]]))
        return axes_of(ranks, known), f"micro-batch {numbers} has no backward on {_named(ranks)}"
    calls = comparison.unused_calls()
    if calls:
        return (MICRO_BATCHES,), f"micro-batch {', '.join(map(str, calls))} is on no rank: left out"
    unused = comparison.unused_rows()
    if not unused:
        return None
    text = f"rows {', '.join(map(str, unused))} of the batch are on no rank"
    ranks = comparison.incomplete_ranks()
    if not ranks:
        return tuple(comparison.data_axes), text
    return axes_of(ranks, known), f"{text}: {LEFT_OUT} {_named(ranks)}"


def _is_reduced_later(at: AtStep, wrong: Sequence[Wrong], axes: Sequence[str]) -> bool:
    """Return whether an update reduces as many elements over some axes as are wrong.

    Optimizers over shards reduce gradients themselves.
    """
    rank = wrong[0].rank
    step = at.ranks[rank]
    noted = [each for each in step.parameter_gradients.values() if each is not None]
    count = sum(each.got.numel() for each in wrong if each.rank == rank)
    # Those that are declared partial sums are reduced when they are used.
    count += sum(e.value.numel() for e in noted if PARTIAL in (e.places or {}).values())
    first = max(each.order for each in noted)
    reduced = sum(
        call.count
        for call in at.start.ranks[rank].calls
        if first < call.order < step.span[1]
        and "reduce" in call.name
        and {*axes} - {MICRO_BATCHES} <= set(at.layout.axes_of(call.group) or ())
    )
    return reduced >= count > 0 and tuple(axes) != (MICRO_BATCHES,)


def _reason_before(at: AtStep) -> Reason | None:
    """Return why the gradients of the step before, which is right, differ."""
    if not at.number:
        return None
    before = AtStep(at.start, at.number - 1)
    wrong = before.wrong_parameters(STEP_GRADIENTS)
    return why_gradients(before, wrong) if wrong else None


def _lost_gradients(at: AtStep) -> FirstDifference | None:
    """Return parameters without a gradient on ranks where the step is wrong, too."""
    lost = [
        each
        for each in at.wrong_parameters(PARAMETERS)
        if at.single.parameter_gradients.get(each.name) is not None
        and at.ranks[each.rank].parameter_gradients.get(each.name) is None
    ]
    if not lost:
        return None
    ranks = sorted({each.rank for each in lost})
    reason = varying(at.layout, ranks), f"no gradient on {_named(ranks)}", names_of(lost)
    return found(at, PARAMETER_GRADIENTS, lost, reason)


def _as_sum(at: AtStep, search: Search, runner: Runner, wrong: Sequence[Wrong]) -> Reason | None:
    """Explain wrong gradients by how often they count each part of the batch."""
    output = search.output()
    if output is None:
        return None
    parts = Contributions(at.comparison, runner, at.number, output)
    for each in sorted(wrong, key=lambda each: -each.got.numel()):
        places = at.start.places_within(each.name)
        if each.rank in places and places[each.rank].shape == each.got.shape:
            written = parts.written(each.name, each.got, places, each.rank)
            reason = None if written is None else parts.explain(each.rank, written)
            if reason is not None:
                return *reason, names_of(wrong)
    return None


# ---- Why ----


def why_gradients(at: AtStep, wrong: Sequence[Wrong]) -> Reason | None:
    """Return axes, cause and parameters of wrong gradients; None if nothing simple fits."""
    names = names_of(wrong)
    worst = max(wrong, key=lambda each: each.relative_error)
    tied = _tied(at, names)
    if tied is not None:
        return tied
    kept = _kept(at, wrong)
    if kept is not None:
        return kept
    unreduced = _unreduced(at, worst)
    if unreduced is not None:
        return *unreduced, names
    factors = factors_of(wrong)
    if factors is None or not are_alike(factors.values()):
        return None
    factor = next(iter(factors.values()))
    axes = varying(at.layout, sorted({each.rank for each in wrong}))
    known = factor_of(at.layout, factor, at.num_calls)
    if known is not None:
        return (known[0] or axes or tuple(at.comparison.stage_axes)), known[1], names
    text = f"{factor:.6g} times what they should be"
    return axes, text + (": clipped or scaled" if factor < 1 else ""), names


def _unreduced(at: AtStep, worst: Wrong) -> tuple[tuple[str, ...], str] | None:
    """Return that the sum, or the mean, of a gradient over some axes is right."""
    layout, want = at.layout, worst.want
    loose = 4 * max(worst.tolerance, CLOSE**1.5 * want.norm().item())
    sizes = [axis for axis in layout.axes if layout.axes[axis] > 1]
    for count in (1, 2):
        for axes in combinations(sizes, count):
            peers = layout.peers(worst.rank, axes)
            have = [at.whole(STEP_GRADIENTS, worst.name, rank) for rank in peers]
            found = [each for each in have if each is not None and each.shape == want.shape]
            if len(found) < 2 or all((e - found[0]).norm().item() <= loose for e in found):
                continue
            total = torch.stack(found).sum(0)
            for factor, words in ((1.0, "sum"), (1.0 / len(found), "mean")):
                if (total * factor - want).norm().item() <= loose:
                    return axes, f"not reduced over {'/'.join(axes)} ({words})"
    return _unreduced_copies(at, worst, loose)


def _unreduced_copies(at: AtStep, worst: Wrong, loose: float) -> tuple[tuple[str, ...], str] | None:
    """Return that the sum over the ranks that hold the same elements is right."""
    places = at.start.places
    held = places[worst.rank][worst.name]
    holders = [
        rank
        for rank, each in enumerate(places)
        if worst.name in each and torch.equal(each[worst.name], held)
    ]
    copies = [at.whole(STEP_GRADIENTS, worst.name, rank) for rank in holders]
    if len(holders) < 2 or any(each is None for each in copies):
        return None
    found = [each for each in copies if each is not None]
    are_alike = all((each - found[0]).norm().item() <= loose for each in found)
    if are_alike or (torch.stack(found).sum(0) - worst.want).norm().item() > loose:
        return None
    at_axes = [at.layout.coordinates(rank) for rank in holders]
    axes = tuple(a for a in at.layout.axes if len({each[a] for each in at_axes}) > 1)
    ranks = ", ".join(map(str, holders))
    return axes, (
        f"not reduced over {'/'.join(axes)}: the ranks that hold the same elements ({ranks})"
    )


def _tied(at: AtStep, names: Sequence[str]) -> Reason | None:
    """Return tied parameters whose copies on several ranks each have a part of the gradient."""
    for tied in at.start.reference.record.aliases:
        want = at.single.parameter_gradients[tied[0]]
        if not set(names) & set(tied) or want is None:
            continue
        untied = _untied(at, tied)
        if untied:
            text = f"tied parameters {' and '.join(tied)} are several, each with its own gradient"
            return varying(at.layout, untied), text, list(tied)
        holders = {
            rank: name
            for rank, step in enumerate(at.ranks)
            for name in tied
            if step.parameter_gradients.get(name) is not None
        }
        if len(set(holders.values())) < 2:
            continue
        parts = [at.whole(STEP_GRADIENTS, name, rank) for rank, name in holders.items()]
        shape = want.value.shape
        if any(each is None or each.shape != shape for each in parts):
            continue
        axes = tuple(at.comparison.stage_axes) or tuple(at.layout.axes)
        copies = [each for each in parts if each is not None]
        num_copies = len(holders) // len(set(holders.values()))
        rest = (torch.stack(copies).sum(0) / num_copies - want.value).norm().item()
        both = f"tied parameters {' and '.join(tied)}:"
        if rest <= CLOSE * want.value.norm().item():
            text = f"each has its own part of the gradient, not reduced over {'/'.join(axes)}"
            return axes, f"{both} {text}", list(tied)
        if set(names) <= set(tied) and all(torch.equal(each, copies[0]) for each in copies):
            text = "all have one gradient, which is not the sum of their parts"
            return axes, f"{both} {text}", list(tied)
    return None


def _untied(at: AtStep, tied: Sequence[str]) -> list[int]:
    """Return ranks that hold tied parameters as several."""
    return [
        rank
        for rank, record in enumerate(at.start.ranks)
        if set(tied) <= set(record.initial)
        and not any(set(tied) <= set(each) for each in record.aliases)
    ]


def _kept(at: AtStep, wrong: Sequence[Wrong]) -> Reason | None:
    """Return that gradients contain those of the step before, which were not set to zero."""
    if not at.number:
        return None
    for each in wrong:
        earlier = at.earlier(STEP_GRADIENTS, each.name, each.rank)
        if earlier is None or earlier.shape != each.got.shape:
            return None
        rest = each.got - each.want - earlier
        if rest.norm().item() > max(CLOSE * each.error, each.tolerance):
            return None
    return (), "contain the gradients of the step before: not set to zero", names_of(wrong)


def _of_another(at: AtStep, wrong: Sequence[Wrong]) -> Reason | None:
    """Return parameters that have the gradients of others."""
    known = at.single.parameter_gradients
    for each in wrong:
        for name, other in known.items():
            if other is None or name == each.name or other.value.numel() != each.got.numel():
                continue
            rest = other.value.flatten().double() - each.got.flatten()
            if rest.norm().item() <= max(CLOSE * each.got.norm().item(), each.tolerance):
                names = names_of(wrong)
                return (
                    varying(at.layout, sorted({e.rank for e in wrong})),
                    f"{each.name} has the gradient of {name} on rank {each.rank}",
                    names,
                )
    return None


def _in_places(wrong: Sequence[Wrong]) -> Reason:
    """Return that gradients differ, and in which rows if not in all."""
    names = names_of(wrong)
    worst = max(wrong, key=lambda each: each.relative_error)
    rows = worst.got.flatten(1) if worst.got.dim() > 1 else worst.got.view(-1, 1)
    wanted = worst.want.view(rows.shape)
    bad = ((rows - wanted).norm(dim=1) > worst.tolerance).nonzero()[:, 0]
    if not 0 < len(bad) < len(rows):
        return (), "differ", names
    how = "differ" if rows[bad].norm().item() else "are zero"
    return (
        (),
        (
            f"{len(bad)} of {len(rows)} rows of {worst.name} {how} "
            f"on rank {worst.rank}, first row {int(bad[0])}"
        ),
        names,
    )
