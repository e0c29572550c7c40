"""Why the gradients of parameters differ, as the optimizer finds them."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import torch

from simrank.equality.causes import factor_of
from simrank.equality.contributions import Contributions
from simrank.equality.layout import varying
from simrank.equality.parameters import CLOSE, Reason, are_alike, factors_of, found, names_of
from simrank.equality.record import PARTIAL
from simrank.equality.step import GRADIENTS, PARAMETERS, AtStep
from simrank.equality.verdict import PARAMETER_GRADIENTS, Found
from simrank.errors import ranks_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.equality.runs import Runner
    from simrank.equality.search import Search
    from simrank.equality.step import Wrong


def find_gradients(at: AtStep, search: Search, runner: Runner | None) -> Found | None:
    """Find the fault of gradients as the optimizer finds them.

    Args:
        at: The step.
        search: Of that step.
        runner: Runs the single program again, part by part; None: that is not tried.
    """
    wrong = at.wrong_parameters(GRADIENTS)
    if not wrong:
        return _lost_gradients(at)
    reason = why_gradients(at, wrong)
    if reason is not None and (
        reason == _reason_before(at) or _is_reduced_later(at, wrong, reason[0])
    ):
        return None  # So they were at the step before, which is right: the update makes up for it.
    if reason is None and runner is not None:
        reason = _as_sum(at, search, runner, wrong)
    unused = at.comparison.unused_rows()
    if reason is None and unused:
        text = f"rows {', '.join(map(str, unused))} of the batch are on no rank"
        reason = tuple(at.comparison.data_axes), text, names_of(wrong)
    reason = reason or _of_another(at, wrong) or _in_places(wrong)
    return found(at, PARAMETER_GRADIENTS, wrong, reason)


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
        and set(axes) <= set(at.layout.axes_of(call.group) or ())
    )
    return reduced >= count > 0


def _reason_before(at: AtStep) -> Reason | None:
    """Return why the gradients of the step before, which is right, differ."""
    if not at.number:
        return None
    before = AtStep(at.start, at.number - 1)
    wrong = before.wrong_parameters(GRADIENTS)
    return why_gradients(before, wrong) if wrong else None


def _lost_gradients(at: AtStep) -> Found | None:
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
    reason = varying(at.layout, ranks), f"no gradient on {ranks_text(ranks)}", names_of(lost)
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
    num_calls = max((len(rows) for rows in at.comparison.rows if rows is not None), default=1)
    known = factor_of(at.layout, factor, num_calls)
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
            have = [at.whole(GRADIENTS, worst.name, rank) for rank in peers]
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
    copies = [at.whole(GRADIENTS, worst.name, rank) for rank in holders]
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
        parts = [at.whole(GRADIENTS, name, rank) for rank, name in holders.items()]
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
        earlier = at.earlier(GRADIENTS, each.name, each.rank)
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
