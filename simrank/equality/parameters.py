"""Why gradients of parameters, or parameters after a step, differ."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import torch

from simrank.equality.causes import factor_of
from simrank.equality.contributions import Contributions
from simrank.equality.layout import varying
from simrank.equality.step import GRADIENTS, PARAMETERS, AtStep
from simrank.equality.verdict import (
    PARAMETER_GRADIENTS,
    STEP,
    Found,
    module_of,
    modules_text,
    names_text,
)
from simrank.errors import ranks_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from simrank.equality.runs import Runner
    from simrank.equality.search import Search
    from simrank.equality.step import Wrong

_CLOSE = 1e-6  # Of a factor, or of a rest; a fault is far larger.
_KEPT = 0.1  # Of the elements, so that they are taken for stale; assumed.
_CLIPPED = 1e-3  # Of a clipping factor, in which a small constant is added to the norm.

Reason = tuple[tuple[str, ...], str, list[str]]


# ---- What is found ----


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
    if reason is not None and reason == _reason_before(at):
        return None  # So they were at the step before, which is right: the update makes up for it.
    if reason is None and runner is not None:
        reason = _as_sum(at, search, runner, wrong)
    unused = at.comparison.unused_rows()
    if reason is None and unused:
        text = f"rows {', '.join(map(str, unused))} of the batch are on no rank"
        reason = tuple(at.comparison.data_axes), text, _names(wrong)
    return _found(at, PARAMETER_GRADIENTS, wrong, reason or ((), "differ", _names(wrong)))


def _reason_before(at: AtStep) -> Reason | None:
    """Return why the gradients of the step before, which is right, differ."""
    if not at.number:
        return None
    before = AtStep(at.start, at.number - 1)
    wrong = before.wrong_parameters(GRADIENTS)
    return why_gradients(before, wrong) if wrong else None


def find_step(at: AtStep) -> Found | None:
    """Find the fault of parameters after the optimizer's step."""
    wrong = at.wrong_parameters(PARAMETERS)
    return _found(at, STEP, wrong, why_step(at, wrong)) if wrong else None


def find_buffer(at: AtStep) -> Found | None:
    """Find the fault of the first buffer that differs after the step."""
    wrong = at.wrong_buffers()
    if not wrong:
        return None
    name, _, error = wrong[0]
    ranks = [rank for other, rank, _ in wrong if other == name]
    have = {r: s.buffers[name].value.double() for r, s in enumerate(at.ranks) if name in s.buffers}
    want = at.single.buffers[name].value.double()
    axes = varying(at.layout, ranks)
    cause = "it was not updated as in the single program" + _multiple(have[ranks[0]], want)
    for axis in at.layout.axes:
        groups = [[have[r] for r in group if r in have] for group in at.layout.groups([axis])]
        if any(not torch.equal(each, group[0]) for group in groups for each in group):
            axes = axes or (axis,)
            cause = f"ranks of {axis} have different values: not synchronized"
            mean = torch.stack(groups[0]).mean(0)
            if (mean - want).norm().item() <= _CLOSE * (want.norm().item() or 1.0):
                cause += "; their mean is right"
    axes = axes or tuple(at.comparison.data_axes) or tuple(at.layout.axes)
    text = f"the buffer {name} differs after the step: {cause}"
    return Found(STEP, module_of(name), axes, text, error, ranks)


def _multiple(got: torch.Tensor, want: torch.Tensor) -> str:
    """Return by what a buffer is a multiple of what it should be, if it is."""
    if got.shape != want.shape:
        return ""
    factor = (got * want).sum().item() / (want.square().sum().item() or 1.0)
    rest = (got - factor * want).norm().item()
    return f": {factor:.6g} times it" if rest <= _CLOSE * got.norm().item() else ""


def _found(at: AtStep, direction: str, wrong: Sequence[Wrong], reason: Reason) -> Found:
    axes, cause, names = reason
    every = at.start.held_names()
    error = max(each.relative_error for each in wrong)
    ranks = sorted({each.rank for each in wrong if each.name in names})
    text = f"{cause}: {names_text(names, every)}"
    found = Found(direction, modules_text(names, every), axes, text, error, ranks)
    found.calls = at.calls_after_forward(ranks[0]) or "none"
    return found


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
    reason = varying(at.layout, ranks), f"no gradient on {ranks_text(ranks)}", _names(lost)
    return _found(at, PARAMETER_GRADIENTS, lost, reason)


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
                return *reason, _names(wrong)
    return None


# ---- Why ----


def why_gradients(at: AtStep, wrong: Sequence[Wrong]) -> Reason | None:
    """Return axes, cause and parameters of wrong gradients; None if nothing simple fits."""
    names = _names(wrong)
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
    factors = _factors(wrong)
    if factors is None or not _are_alike(factors.values()):
        return None
    factor = next(iter(factors.values()))
    axes = varying(at.layout, sorted({each.rank for each in wrong}))
    num_calls = max((len(rows) for rows in at.comparison.rows if rows is not None), default=1)
    known = factor_of(at.layout, factor, num_calls)
    if known is not None:
        return (known[0] or axes or tuple(at.comparison.stage_axes)), known[1], names
    text = f"{factor:.6g} times what they should be"
    return axes, text + (": clipped or scaled" if factor < 1 else ""), names


def _names(wrong: Sequence[Wrong]) -> list[str]:
    return list(dict.fromkeys(each.name for each in wrong))


def _factors(wrong: Sequence[Wrong]) -> dict[tuple[str, int], float] | None:
    """Return by how much each is too large; None if one is not a multiple of what it should be."""
    found = {}
    for each in wrong:
        factor = (each.got * each.want).sum().item() / (each.want.square().sum().item() or 1.0)
        rest = (each.got - factor * each.want).norm().item()
        if rest > max(_CLOSE * abs(factor) * each.want.norm().item(), each.tolerance):
            return None
        found[each.name, each.rank] = factor
    return found


def _are_alike(values: Iterable[float]) -> bool:
    each = [*values]
    return max(each) - min(each) <= _CLOSE * max(map(abs, each))


# ---- Gradients ----


def _unreduced(at: AtStep, worst: Wrong) -> tuple[tuple[str, ...], str] | None:
    """Return that the sum, or the mean, of a gradient over some axes is right."""
    layout, want = at.layout, worst.want
    loose = 4 * max(worst.tolerance, _CLOSE**1.5 * want.norm().item())
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
        total = torch.stack([each for each in parts if each is not None]).sum(0)
        num_copies = len(holders) // len(set(holders.values()))
        if (total / num_copies - want.value).norm().item() <= _CLOSE * want.value.norm().item():
            axes = tuple(at.comparison.stage_axes) or tuple(at.layout.axes)
            over = "/".join(axes)
            return (
                axes,
                (
                    f"tied parameters {' and '.join(tied)}: each has its own part of the gradient, "
                    f"not reduced over {over}"
                ),
                list(tied),
            )
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
        if rest.norm().item() > max(_CLOSE * each.error, each.tolerance):
            return None
    return (), "contain the gradients of the step before: not set to zero", _names(wrong)


# ---- The optimizer's step ----


def why_step(at: AtStep, wrong: Sequence[Wrong]) -> Reason:
    """Return axes, cause and parameters of what differs after the optimizer's step."""
    layout, names = at.layout, _names(wrong)
    changes = [_change(at, each) for each in wrong]
    ranks = sorted({each.rank for each in wrong})
    axes = varying(layout, ranks) or _disagreeing(at, names)
    still = [e for e in changes if not e.got.norm().item() and e.want.norm().item()]
    if still:
        return _stale(at, still, axes)
    told = _without_gradients(at, changes)
    if told is not None:
        return axes, *told
    if any(_share_kept(at, each) > _KEPT for each in changes):
        text = "elements that no rank has updated, or that are stale"
        return axes or tuple(layout.axes), text, names
    factors = _factors(changes)
    if factors is not None:
        scaled = _scaled(at, factors)
        if scaled is not None:
            return (scaled[0] or axes), scaled[1], names
    text = "the step differs, though its gradients do not: the optimizer's state"
    if _is_decay(at, wrong):
        text = "differ by a multiple of the parameters themselves: weight decay"
    return axes, text, names


def _without_gradients(at: AtStep, changes: Sequence[Wrong]) -> tuple[str, list[str]] | None:
    """Return that parameters which the single program does not train are changed, or others."""
    free = [e for e in changes if at.single.parameter_gradients.get(e.name) is None]
    trained = _names([each for each in free if not each.want.norm().item()])
    if trained:
        return "trained, though the single program does not train them", trained
    if not free or len(free) < len(changes):
        return None
    text = "have no gradients, and other values, as of a moving average that is wrong"
    return text, _names(free)


def _share_kept(at: AtStep, change: Wrong) -> float:
    """Return the share of elements that have a gradient, and that the step has not changed."""
    places = at.start.places[change.rank].get(change.name)
    is_kept = (change.got == 0) & (change.want != 0)
    if places is None or places.shape != is_kept.shape:
        return is_kept.double().mean().item()
    gradients = at.start.elements.flat(at.single.parameter_gradients)[places.clamp(min=0)]
    # Others are moved by momentum, or decay.
    return (is_kept & (gradients != 0)).double().mean().item()


def _change(at: AtStep, each: Wrong) -> Wrong:
    """Return the change that a step made, and the right one, in place of results."""
    before = _before(at, each)
    return each._replace(got=each.got - before, want=each.want - before)


def _before(at: AtStep, each: Wrong) -> torch.Tensor:
    """Return a rank's parameter before the step."""
    record = at.start.ranks[each.rank]
    tensors = record.steps[at.number - 1].parameters if at.number else record.initial
    return tensors[each.name].value.double()


def _stale(at: AtStep, still: Sequence[Wrong], axes: tuple[str, ...]) -> Reason:
    """Return that parameters were not updated, on some ranks or on all."""
    ranks = sorted({each.rank for each in still})
    names = _names(still)
    axes = varying(at.layout, ranks) or axes
    by_name = {name: {e.rank for e in still if e.name == name} for name in names}
    updated = {
        name: [r for r, p in enumerate(at.start.places) if name in p and r not in stale]
        for name, stale in by_name.items()
    }
    if all(updated.values()):
        owners = sorted({rank for each in updated.values() for rank in each})
        text = (
            f"not updated on every rank: the new values of ranks {', '.join(map(str, owners))} "
            "did not reach the others"
        )
        return axes or tuple(at.layout.axes), text, names
    return axes, "not updated: the optimizer does not have them", names


def _scaled(
    at: AtStep, factors: Mapping[tuple[str, int], float]
) -> tuple[tuple[str, ...], str] | None:
    """Return why steps are multiples of what they should be."""
    by_rank: dict[int, list[float]] = {}
    for (_, rank), factor in factors.items():
        by_rank.setdefault(rank, []).append(factor)
    if not all(map(_are_alike, by_rank.values())):
        low, high = min(factors.values()), max(factors.values())
        return (), f"steps are {low:.4g} to {high:.4g} times what they should be, by parameter"
    found = {rank: each[0] for rank, each in by_rank.items()}
    if not _are_alike(found.values()):
        return _own_norm(at, found)
    factor = next(iter(found.values()))
    for axis, norm, words in _norms(at):
        if abs(norm * factor - 1) < _CLIPPED:
            return (axis,), (
                f"steps are {factor:.4g} of what they should be: the gradient norm {words}"
            )
    return (), (
        f"steps are {factor:.6g} times what they should be: the learning rate, or the scale"
    )


def _norms(at: AtStep) -> Iterator[tuple[str, float, str]]:
    """Yield an axis, what a wrong norm is over the right one, and why."""
    squares = _squares(at)
    true = sum(squares.values()) or 1.0
    for axis, size in at.layout.axes.items():
        if size == 1:
            continue
        shapes = at.start.elements.shapes
        copied = sum(
            square
            for name, square in squares.items()
            if all(p[name].numel() == shapes[name].numel() for p in at.start.places if name in p)
        )
        norms = {
            f"counts parameters that all ranks of {axis} hold {size} times": true
            + (size - 1) * copied,
            f"counts every parameter {size} times, once for each rank of {axis}": true * size,
            f"misses parameters that {axis} splits": copied,
        }
        for words, square in norms.items():
            yield axis, (square / true) ** 0.5, words


def _squares(at: AtStep) -> dict[str, float]:
    """Return the squared norm of each gradient of the single program; tied ones count once."""
    twice = {name for tied in at.start.reference.record.aliases for name in tied[1:]}
    return {
        name: each.value.double().square().sum().item()
        for name, each in at.single.parameter_gradients.items()
        if each is not None and name not in twice
    }


def _own_norm(at: AtStep, factors: Mapping[int, float]) -> tuple[tuple[str, ...], str] | None:
    """Return that each rank clips by the norm of the gradients that it holds."""
    axes = tuple(
        axis
        for axis in at.layout.axes
        if any(
            len({round(factors[r], 6) for r in group if r in factors}) > 1
            for group in at.layout.groups([axis])
        )
    )
    norms = {}
    for rank in factors:
        found = [each for each in at.ranks[rank].parameter_gradients.values() if each is not None]
        norms[rank] = sum(e.value.double().square().sum().item() for e in found) ** 0.5
    products = [factors[rank] * norms[rank] for rank in factors]
    low, high = min(factors.values()), max(factors.values())
    text = f"steps are {low:.4g} to {high:.4g} times what they should be, by rank"
    if max(products) - min(products) <= _CLIPPED * max(products):
        over = "/".join(axes)
        text += f": the gradient norm is that of each rank's own part, not reduced over {over}"
    return axes, text


def _is_decay(at: AtStep, wrong: Sequence[Wrong]) -> bool:
    """Return whether what differs is a multiple of the parameters before the step."""
    for each in wrong:
        before, rest = _before(at, each), each.got - each.want
        count = (rest * before).sum() / (before.square().sum() or 1.0)
        if (rest - count * before).norm().item() > 1e-2 * rest.norm().item():
            return False
    return True


def _disagreeing(at: AtStep, names: Sequence[str]) -> tuple[str, ...]:
    """Return the axes along which ranks hold the same elements with different values."""
    found = {}
    for axis in at.layout.axes:
        for group in at.layout.groups([axis]):
            for name in names:
                held = [at.start.places[rank].get(name) for rank in group]
                have = [at.whole(PARAMETERS, name, rank) for rank in group]
                pairs = [
                    (place, value)
                    for place, value in zip(held, have, strict=True)
                    if place is not None and value is not None
                ]
                for place, value in pairs[1:]:
                    is_copy = torch.equal(place, pairs[0][0])
                    error = (value - pairs[0][1]).norm().item() if is_copy else 0.0
                    if error > 1e-9 * value.norm().item():
                        found[axis] = True
    return tuple(found)
