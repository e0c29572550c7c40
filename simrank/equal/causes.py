"""Why a tensor differs: a missing sum, a factor, another rank's part, an order, a bias added twice."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch

from simrank.equal.comparison import GRADIENTS, VALUES

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
    swapped = _swapped_data(comparison, judge)
    if swapped is not None and not is_back:
        return swapped
    taken = _of_others(comparison, compared, worst, is_back=is_back)
    if taken is not None:
        return (taken[0] or axes), subject + taken[1]
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


def _swapped_data(comparison: Comparison, judge: Any) -> tuple[tuple[str, ...], str] | None:  # noqa: ANN401
    """Return that the batch is split along an axis that splits parameters, and along no other.

    Ranks of another axis then have the same rows and the same parameters: they are of no use.
    """
    layout = comparison.layout
    places = [{name: each.numpy().tobytes() for name, each in p.items()} for p in judge.places]

    def differs(axis: str) -> bool:
        return any(places[r] != places[group[0]] for group in layout.groups([axis]) for r in group)

    useless = [
        axis
        for axis, size in layout.axes.items()
        if size > 1 and axis not in comparison.data_axes and not differs(axis)
    ]
    split = [axis for axis in comparison.data_axes if differs(axis)]
    if len(useless) == 1 and len(split) == 1:
        return (split[0],), (
            f"the ranks of {split[0]} have different rows of the batch, and those of {useless[0]} "
            "the same ones: the batch is split along the wrong axis"
        )
    return None


def _of_others(
    comparison: Comparison, compared: Compared, worst: int, *, is_back: bool
) -> tuple[tuple[str, ...], str] | None:
    """Return that a rank has what another rank, call or module should have."""
    layout, got = comparison.layout, compared.got[worst]
    for other, wanted in compared.want.items():
        if other != worst and _is_near(got, wanted, compared.tolerance):
            at, there = layout.coordinates(worst), layout.coordinates(other)
            differ = tuple(a for a in layout.axes if at[a] != there[a])
            return differ, f"rank {worst} has the part of rank {other}"
    want = compared.want[worst]
    for number, each in enumerate(got):
        for other, wanted in enumerate(want):
            if other != number and _is_near([each], [wanted], compared.tolerance):
                return (), (
                    f"micro-batch {number} of rank {worst} has what micro-batch {other} should have"
                )
    kind = GRADIENTS if is_back else VALUES
    for spot, call in comparison.elsewhere(kind, worst, got):
        if (spot, call) != (compared.spot, compared.call):
            return (), (
                f"it is what the single program has as the {spot.side} of "
                f"{spot.module or 'the model'}"
            )
    return None


def _is_near(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor], tolerance: float) -> bool:
    if [each.shape for each in got] != [each.shape for each in want]:
        return False
    return (_joined(got) - _joined(want)).norm().item() <= tolerance


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
