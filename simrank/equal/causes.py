"""Why a tensor differs: a missing sum, a factor, another rank's part, an order, a bias added twice."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from simrank.equal.comparison import Compared, Comparison
    from simrank.equal.layout import Layout

_EXACT = 1e-9  # Of a factor; a wrong one is another small number.


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


def factor_of(layout: Layout, factor: float, num_calls: int) -> tuple[tuple[str, ...], str] | None:
    """Return what a factor may come from: sizes of axes, or the number of micro-batches.

    Returns:
        The axes of that size (several where sizes are equal), and the words.
    """
    sizes = {axis: size for axis, size in layout.axes.items() if size > 1}
    groups: dict[tuple[str, ...], int] = {(axis,): size for axis, size in sizes.items()}
    for one, other in combinations(sizes, 2):
        groups[one, other] = sizes[one] * sizes[other]
    for words, exact in (("times too large", lambda n: n), ("of what it should be", lambda n: 1 / n)):
        hits = [axes for axes, size in groups.items() if abs(factor - exact(size)) < _EXACT * size]
        singles = [axes[0] for axes in hits if len(axes) == 1]
        if singles:
            kind = "summed once too often" if factor > 1 else "divided once too often"
            return tuple(singles), f"{factor:.4g} {words}: {kind} by the size of {' or '.join(singles)}"
        if hits:
            return hits[0], f"{factor:.4g} {words}: the size of {' x '.join(hits[0])}"
        if num_calls > 1 and abs(factor - exact(num_calls)) < _EXACT * num_calls:
            return (), f"{factor:.4g} {words}: the number of micro-batches, {num_calls}"
    return None


def _joined(calls: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([each.flatten() for each in calls]).double()


def explain(
    comparison: Comparison, compared: Compared, judge: Any, *, is_back: bool  # noqa: ANN401
) -> tuple[tuple[str, ...], str]:
    """Return along which axes a tensor is wrong, and why."""
    layout = comparison.layout
    wrong = compared.wrong_ranks
    axes = varying(layout, wrong)
    if not compared.want or not wrong:
        return axes or tuple(layout.axes), "it could not be aligned"
    worst = max(compared.errors, key=lambda r: compared.errors[r])
    got, want = _joined(compared.got[worst]), _joined(compared.want[worst])
    free = [a for a in layout.axes if layout.axes[a] > 1 and a not in comparison.stage_axes]
    subject = "gradient: " if is_back else ""
    for count in (1, 2):
        for chosen in combinations(free, count):
            total = _joined(comparison.summed(compared.got, worst, chosen))
            for factor, words in ((1.0, "sum"), (1.0 / len(layout.peers(worst, chosen)), "mean")):
                if (total * factor - want).norm().item() <= compared.tolerance:
                    return chosen, f"{subject}not reduced over {'/'.join(chosen)} ({words})"
    num_calls = max((len(step) for step in compared.got.values()), default=1)
    factor = (got * want).sum().item() / (want.square().sum().item() or 1.0)
    if (got - factor * want).norm().item() <= compared.tolerance * max(1.0, abs(factor)):
        known = factor_of(layout, factor, num_calls)
        if known is not None:
            return (known[0] or axes), f"{subject}{known[1]}"
        return axes or tuple(free), f"{subject}{factor:.6g} times what it should be"
    if not got.norm().item():
        return axes or tuple(free), f"{subject}all zeros"
    for other, wanted in compared.want.items():
        if other != worst and [w.shape for w in wanted] == [g.shape for g in compared.got[worst]]:
            if (got - _joined(wanted)).norm().item() <= compared.tolerance:
                at, there = layout.coordinates(worst), layout.coordinates(other)
                differ = tuple(a for a in layout.axes if at[a] != there[a])
                return differ, f"{subject}rank {worst} has the part of rank {other}"
    if not is_back:
        hit = _bias(comparison, compared, judge, worst)
        if hit is not None:
            return hit
    kind = judge.reference.record.kinds.get(compared.spot.module, "")
    if "Dropout" in kind:
        share = ((got == 0) != (want == 0)).double().mean().item()
        return axes or tuple(free), f"another dropout mask ({share:.0%} of elements): another seed"
    if "BatchNorm" in kind:
        return tuple(comparison.data_axes), "statistics of each rank's own rows"
    return axes or tuple(free), subject + _rows_text(compared, worst)


def _bias(comparison: Comparison, compared: Compared, judge: Any, worst: int) -> tuple[tuple[str, ...], str] | None:  # noqa: ANN401
    """Return that a module's bias is added several times, or not at all."""
    layout = comparison.layout
    bias = judge.reference.record.steps
    del bias
    name = f"{compared.spot.module}.bias"
    known = judge.reference.record.initial.get(name)
    if known is None:
        return None
    value = known.value.double()
    got, want = compared.got[worst][0].double(), compared.want[worst][0].double()
    if got.dim() == 0 or got.shape[-1] != len(value):
        return None
    rest = (got - want).flatten(0, -2).mean(0)
    count = (rest @ value / (value @ value)).item()
    if (got - want - count * value).norm().item() > 1e-6 * (got - want).norm().item():
        return None
    axes = tuple(a for a, n in layout.axes.items() if abs(count + 1 - n) < 1e-6)
    return axes or tuple(layout.axes), f"the bias is added {count + 1:.3g} times"


def _rows_text(compared: Compared, worst: int) -> str:
    """Return how many rows of a rank's tensor differ, and whether they are in another order."""
    got, want = compared.got[worst][0].double(), compared.want[worst][0].double()
    if got.dim() < 2:
        bad = int(((got - want).abs() > compared.tolerance).sum())
        return f"{bad} of {got.numel()} elements differ on rank {worst}"
    rows, wanted = got.flatten(0, -2), want.flatten(0, -2)
    bad = ((rows - wanted).norm(dim=-1) > compared.tolerance).nonzero()[:, 0]
    norms = rows.norm(dim=-1).sort()[0], wanted.norm(dim=-1).sort()[0]
    text = f"{len(bad)} of {len(rows)} rows differ on rank {worst}, first row {int(bad[0]) if len(bad) else 0}"
    if (norms[0] - norms[1]).norm().item() <= compared.tolerance:
        return f"the right rows in another order: {text}"
    columns = ((got - want).flatten(0, -2).norm(dim=0) > compared.tolerance).sum().item()
    if columns < got.shape[-1]:
        text += f", in {int(columns)} of {got.shape[-1]} columns"
    return text


def explain_parameters(at: Any, wrong: Sequence[Any], make: Any, direction: str) -> Any:  # noqa: ANN401, C901, PLR0911, PLR0912, PLR0915
    """Return what is found of gradients, or parameters after a step, that are wrong."""
    layout: Layout = at.layout
    names = list(dict.fromkeys(name for name, *_ in wrong))
    by_rank = {(name, rank): (error, got, want, tol) for name, rank, error, got, want, tol in wrong}
    name, rank = max(by_rank, key=lambda k: by_rank[k][0] / (by_rank[k][2].norm().item() or 1.0))
    error, got, want, tolerance = by_rank[name, rank]
    relative = error / (want.norm().item() or 1.0)
    ranks = sorted({r for _, r in by_rank})
    if direction == "gradients":
        tied = _tied(at, names)
        if tied is not None:
            return make(direction, " and ".join(tied[0]), tied[1], "tied parameters: each has its own part of the gradient, not reduced over " + "/".join(tied[1]), relative, ranks)
        hit = _unreduced(at, name, rank, want, tolerance)
        if hit is not None:
            return at._named(direction, names, hit[0], hit[1], relative, ranks)
    kind = "parameter_gradients" if direction == "gradients" else "parameters"
    if kind == "parameters":
        before = _before(at)
        deltas = {k: (g - before(k), w - before(k)) for k, (_, g, w, _) in by_rank.items()}
    else:
        deltas = {k: (g, w) for k, (_, g, w, _) in by_rank.items()}
    factors = {k: (g * w).sum().item() / (w.square().sum().item() or 1.0) for k, (g, w) in deltas.items()}
    factor = factors[name, rank]
    loose = 1e-6
    same = all(abs(f - factor) <= loose * abs(factor) for f in factors.values())
    fits = all((g - factor * w).norm().item() <= loose * (abs(factor) * w.norm().item()) for g, w in deltas.values())
    if same and fits and factor:
        axes = varying(layout, ranks)
        num_calls = max((len(rows) for rows in at.comparison.rows if rows is not None), default=1)
        known = factor_of(layout, factor, num_calls)
        if kind == "parameters":
            clipped = _clipped(at, factor)
            if clipped is not None:
                return at._named(direction, names, clipped[0], clipped[1], relative, ranks)
        if known is not None:
            return at._named(direction, names, known[0] or axes, known[1], relative, ranks)
        return at._named(direction, names, axes, f"{factor:.6g} times what it should be", relative, ranks)
    zero = [k for k, (g, w) in deltas.items() if not g.norm().item() and w.norm().item()]
    axes = varying(layout, ranks) or _disagreeing(at, kind, names)
    if kind == "parameters":
        if zero:
            stale = list(dict.fromkeys(n for n, _ in zero))
            return at._named(direction, stale, varying(layout, sorted({r for _, r in zero})) or axes, "not updated", 1.0, sorted({r for _, r in zero}))
        partly = [k for k, (g, w) in deltas.items() if bool(((g == 0) & (w != 0)).any())]
        if partly:
            return at._named(direction, [n for n, _ in partly], axes or tuple(layout.axes), "elements that no rank has updated, or that are stale", relative, ranks)
        decay = _decay(by_rank, deltas)
        if decay is not None:
            return at._named(direction, names, axes, decay, relative, ranks)
    return at._named(direction, names, axes, "differ", relative, ranks)


def _before(at: Any) -> Any:  # noqa: ANN401
    """Return a function that gives a rank's parameter before the step."""
    def find(key: tuple[str, int]) -> torch.Tensor:
        name, rank = key
        record = at.judge.ranks[rank]
        tensors = record.steps[at.number - 1].parameters if at.number else record.initial
        value: torch.Tensor = tensors[name].value.double()
        return value
    return find


def _disagreeing(at: Any, kind: str, names: Sequence[str]) -> tuple[str, ...]:  # noqa: ANN401
    """Return the axes along which ranks hold the same elements with different values."""
    layout = at.layout
    found = []
    for axis in layout.axes:
        for group in layout.groups([axis]):
            for name in names:
                have = [(at.judge.places[r][name], at._whole(kind, name, r)) for r in group if name in at.judge.places[r]]
                have = [(p, v) for p, v in have if v is not None]
                if len(have) > 1 and all(torch.equal(p, have[0][0]) for p, _ in have):
                    if any((v - have[0][1]).norm().item() > 1e-9 * (v.norm().item() or 1) for _, v in have):
                        found.append(axis)
    return tuple(dict.fromkeys(found))


def _unreduced(at: Any, name: str, rank: int, want: torch.Tensor, tolerance: float) -> tuple[tuple[str, ...], str] | None:  # noqa: ANN401
    """Return that the sum, or the mean, of a gradient over some axes is right."""
    layout = at.layout
    loose = max(tolerance, 1e-9 * want.norm().item())
    for count in (1, 2):
        for axes in combinations([a for a in layout.axes if layout.axes[a] > 1], count):
            peers = [at._whole("parameter_gradients", name, r) for r in layout.peers(rank, axes)]
            have = [p for p in peers if p is not None and p.shape == want.shape]
            if len(have) < 2:
                continue
            if all((p - have[0]).norm().item() <= loose for p in have):
                continue
            total = torch.stack(have).sum(0)
            for factor, words in ((1.0, "sum"), (1.0 / len(have), "mean")):
                if (total * factor - want).norm().item() <= loose * 4:
                    return axes, f"not reduced over {'/'.join(axes)} ({words})"
    return None


def _tied(at: Any, names: Sequence[str]) -> tuple[list[str], tuple[str, ...]] | None:  # noqa: ANN401
    """Return tied parameters whose copies on several ranks each have a summand of the gradient."""
    for tied in at.judge.reference.record.aliases:
        if not set(names) & set(tied):
            continue
        copies = [
            (rank, name)
            for rank, step in enumerate(at.ranks)
            for name in tied
            if step.parameter_gradients.get(name) is not None
        ]
        want = at.single.parameter_gradients[tied[0]]
        holders = {rank: name for rank, name in copies}
        if len(set(holders.values())) > 1 and want is not None:
            total = sum(at._whole("parameter_gradients", n, r) for r, n in holders.items())
            if total.shape == want.value.shape and (total - want.value).norm().item() <= 1e-6 * want.value.norm().item():
                return tied, tuple(at.comparison.stage_axes) or tuple(at.layout.axes)
    return None


def _clipped(at: Any, factor: float) -> tuple[tuple[str, ...], str] | None:  # noqa: ANN401
    """Return that a step is what a gradient norm gives that counts copies, or misses parts."""
    squares = {n: g.value.double().square().sum().item() for n, g in at.single.parameter_gradients.items() if g is not None}
    true = sum(squares.values())
    for axis, size in at.layout.axes.items():
        if size == 1:
            continue
        whole = {
            name
            for name in squares
            if all(
                places[name].numel() == at.judge.elements.shapes[name].numel()
                for places in at.judge.places
                if name in places
            )
        }
        copied = sum(squares[name] for name in whole)
        for norm, words in (
            (true + (size - 1) * copied, f"counts parameters that all ranks of {axis} hold {size} times"),
            (copied + (true - copied) / size, f"is of each rank's own part: not reduced over {axis}"),
            (true * size, f"counts every parameter {size} times"),
        ):
            if norm and abs((true / norm) ** 0.5 - factor) < 1e-3 * factor:
                return (axis,), f"steps are {factor:.4g} of what they should be: the gradient norm {words}"
    return None


def _decay(by_rank: Mapping[Any, Any], deltas: Mapping[Any, Any]) -> str | None:
    """Return that what differs is a multiple of the parameter: its decay."""
    del deltas
    for _, got, want, _ in by_rank.values():
        rest = got - want
        count = (rest * want).sum() / (want.square().sum() or 1.0)
        if (rest - count * want).norm().item() > 1e-2 * rest.norm().item():
            return None
    return "differ by a multiple of the parameters themselves: weight decay"
