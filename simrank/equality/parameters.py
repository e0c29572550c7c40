"""Why parameters or buffers differ after a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from simrank.equality.layout import varying
from simrank.equality.step import PARAMETERS, AtStep
from simrank.equality.verdict import (
    MICRO_BATCHES,
    STEP,
    FirstDifference,
    module_of,
    modules_text,
    names_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from simrank.equality.step import Wrong

CLOSE = 1e-6  # Of a factor, or of a rest; a fault is far larger.
_KEPT = 0.1  # Of the elements, so that they are taken for stale; assumed.
_CLIPPED = 1e-3  # Of a clipping factor, in which a small constant is added to the norm.

Reason = tuple[tuple[str, ...], str, list[str]]


# ---- What is found ----


def find_step(at: AtStep) -> FirstDifference | None:
    """Find the fault of parameters after the optimizer's step."""
    wrong = at.wrong_parameters(PARAMETERS)
    return found(at, STEP, wrong, why_step(at, wrong)) if wrong else None


def find_state(at: AtStep) -> FirstDifference:
    """Find the fault of an optimizer's state, where parameters do not show it yet."""
    kind, wrong = next(iter(at.wrong_states().items()))
    axes = varying(at.layout, sorted({each.rank for each in wrong}))
    text = f"the optimizer's state {kind} differs after the step, though parameters do not yet"
    return found(at, STEP, wrong, (axes, text, names_of(wrong)))


def find_buffer(at: AtStep) -> FirstDifference | None:
    """Find the fault of the first buffer that differs after the step."""
    wrong = at.wrong_buffers()
    if not wrong:
        return None
    name, _, error = wrong[0]
    ranks = [rank for other, rank, _ in wrong if other == name]
    have = {r: s.buffers[name].value.double() for r, s in enumerate(at.ranks) if name in s.buffers}
    want = at.single.buffers[name].value.double()
    is_whole = all(each.shape == want.shape for each in have.values())
    axes = varying(at.layout, ranks)
    cause = "it was not updated as in the single program" + _multiple(have[ranks[0]], want)
    share = _share_of_change(at, name, ranks[0])
    if share is not None and at.num_calls > 1 and 1 < share <= at.num_calls + CLOSE:
        axes = (MICRO_BATCHES,)
        every = f"updated for each of {at.num_calls} micro-batches"
        cause = f"it changed {share:.4g} times as much: {every}"
    elif share == 0:
        cause = "the step did not change it: not updated, or before the parameters were"
    for axis in at.layout.axes if is_whole else ():
        groups = [[have[r] for r in group if r in have] for group in at.layout.groups([axis])]
        if any(not torch.equal(each, group[0]) for group in groups for each in group):
            axes = axes or (axis,)
            cause = f"ranks of {axis} have different values: not synchronized"
            mean = torch.stack(groups[0]).mean(0)
            if (mean - want).norm().item() <= CLOSE * (want.norm().item() or 1.0):
                cause += "; their mean is right"
    axes = axes or tuple(at.comparison.data_axes) or tuple(at.layout.axes)
    text = f"the buffer {name} differs after the step: {cause}"
    return FirstDifference(STEP, module_of(name), axes, text, error, ranks)


def _share_of_change(at: AtStep, name: str, rank: int) -> float | None:
    """Return a buffer's change as a multiple of the single program's; None: it is no multiple."""
    single, own = at.start.reference.record, at.start.ranks[rank]
    if at.number:
        before = single.steps[at.number - 1].buffers, own.steps[at.number - 1].buffers
    else:
        before = single.initial_buffers, own.initial_buffers
    after = at.single.buffers, at.ranks[rank].buffers
    want, got = (
        a[name].value.double() - b[name].value.double() for a, b in zip(after, before, strict=True)
    )
    if got.shape != want.shape or not want.norm().item():
        return None
    share = (got * want).sum().item() / want.square().sum().item()
    rest = (got - share * want).norm().item()
    return share if rest <= CLOSE * max(got.norm().item(), want.norm().item()) else None


def _multiple(got: torch.Tensor, want: torch.Tensor) -> str:
    """Return by what a buffer is a multiple of what it should be, if it is."""
    if got.shape != want.shape:
        return ""
    factor = (got * want).sum().item() / (want.square().sum().item() or 1.0)
    rest = (got - factor * want).norm().item()
    return f": {factor:.6g} times it" if rest <= CLOSE * got.norm().item() else ""


def found(at: AtStep, direction: str, wrong: Sequence[Wrong], reason: Reason) -> FirstDifference:
    """Return the first difference of a step, where some tensors are wrong."""
    axes, cause, names = reason
    every = at.start.held_names()
    error = max(each.relative_error for each in wrong)
    ranks = sorted({each.rank for each in wrong if each.name in names})
    text = f"{cause}: {names_text(names, every)}"
    found = FirstDifference(direction, modules_text(names, every), axes, text, error, ranks)
    found.calls = at.calls_after_forward(ranks[0]) or "none"
    return found


def names_of(wrong: Sequence[Wrong]) -> list[str]:
    """Return the names of the parameters, each once."""
    return list(dict.fromkeys(each.name for each in wrong))


def factors_of(wrong: Sequence[Wrong]) -> dict[tuple[str, int], float] | None:
    """Return the factor by which each is too large; None if one is no multiple of the right one."""
    found = {}
    for each in wrong:
        factor = (each.got * each.want).sum().item() / (each.want.square().sum().item() or 1.0)
        rest = (each.got - factor * each.want).norm().item()
        if rest > max(CLOSE * abs(factor) * each.want.norm().item(), each.tolerance):
            return None
        found[each.name, each.rank] = factor
    return found


def are_alike(values: Iterable[float]) -> bool:
    """Return whether factors are equal but for rounding."""
    each = [*values]
    return max(each) - min(each) <= CLOSE * max(map(abs, each))


# ---- The optimizer's step ----


def why_step(at: AtStep, wrong: Sequence[Wrong]) -> Reason:
    """Return axes, cause and parameters of what differs after the optimizer's step."""
    layout, names = at.layout, names_of(wrong)
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
    factors = factors_of(changes)
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
    trained = names_of([each for each in free if not each.want.norm().item()])
    if trained:
        return "trained, though the single program does not train them", trained
    if not free or len(free) < len(changes):
        return None
    text = "have no gradients, and other values, as of a moving average that is wrong"
    return text, names_of(free)


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
    names = names_of(still)
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
    if not all(map(are_alike, by_rank.values())):
        low, high = min(factors.values()), max(factors.values())
        return (), f"steps are {low:.4g} to {high:.4g} times what they should be, by parameter"
    found = {rank: each[0] for rank, each in by_rank.items()}
    if not are_alike(found.values()):
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
    """Return whether what differs is a multiple of elements before the step, of all or of some."""
    for each in wrong:
        rest, before = (each.got - each.want).flatten(), _before(at, each).flatten()
        some = (rest.abs() > each.tolerance) & (before != 0)
        counts = (rest[some] / before[some]).abs()
        if not len(counts) or counts.max() - counts.min() > _CLIPPED * counts.max():
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
