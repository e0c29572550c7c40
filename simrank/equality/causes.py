"""Why a tensor that passes a module differs: hypotheses that fit exactly or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import torch

from simrank.equality.comparison import GRADIENTS, VALUES
from simrank.equality.layout import varying_values
from simrank.equality.record import OUTPUT
from simrank.equality.verdict import MICRO_BATCHES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simrank.equality.comparison import Compared
    from simrank.equality.layout import Layout
    from simrank.equality.step import AtStep

_EXACT = 1e-9  # Of a factor; a wrong one is another small number.
_CLOSE = 1e-6  # Of a rest that a hypothesis leaves.
_MAX_MATCHED = 1 << 16  # Elements whose rows are looked for among others; assumed.

OF_GRADIENT = "gradient: "
# In texts of what nothing simple explains.
DIFFER, TIMES = "differ on rank", "times what it should be"
UNEXPLAINED = (DIFFER, TIMES)

Cause = tuple[tuple[str, ...], str]


@dataclass(frozen=True)
class _Case:
    """A tensor that is wrong, and the rank where it is most so.

    Attributes:
        at: The step.
        compared: The tensor.
        rank: The rank.
        got: What it has, flat.
        want: What it should have.
        axes: Along which some ranks are right and others wrong.
        is_back: Whether it is a gradient.
    """

    at: AtStep
    compared: Compared
    rank: int
    got: torch.Tensor
    want: torch.Tensor
    axes: tuple[str, ...]
    is_back: bool

    @property
    def layout(self) -> Layout:
        return self.at.layout

    @property
    def kind(self) -> str:
        """Return the name of the module's type."""
        return self.at.start.reference.record.kinds.get(self.compared.spot.module, "")

    @property
    def kind_of_tensor(self) -> str:
        """Return VALUES or GRADIENTS."""
        return GRADIENTS if self.is_back else VALUES

    @property
    def guess(self) -> tuple[str, ...]:
        """Return the axes that it may be, where ranks do not tell."""
        stages = self.at.comparison.stage_axes
        sizes = self.layout.axes
        return self.axes or tuple(a for a, n in sizes.items() if n > 1 and a not in stages)

    def is_near(self, got: torch.Tensor, want: torch.Tensor) -> bool:
        """Return whether tensors are equal, within the tolerance."""
        return got.shape == want.shape and (got - want).norm().item() <= self.compared.tolerance


def explain(at: AtStep, compared: Compared, *, is_back: bool) -> Cause:
    """Return along which axes a tensor is wrong, and why."""
    wrong = compared.wrong_ranks
    # Ranks that have other calls of the single program say nothing.
    axes = varying_values(at.layout, {rank: rank in wrong for rank in compared.errors})
    if not compared.want or not wrong:
        return axes or tuple(at.layout.axes), "it could not be aligned"
    rank = max(compared.errors, key=lambda r: compared.errors[r])
    got, want = _joined(compared.got[rank]), _joined(compared.want[rank])
    case = _Case(at, compared, rank, got, want, axes, is_back)
    for hypothesis in _HYPOTHESES:
        found = hypothesis(case)
        if found is not None:
            prefix = OF_GRADIENT if is_back else ""
            return found[0], prefix + found[1]
    raise AssertionError("the last hypothesis always fits")


def factor_of(layout: Layout, factor: float, num_calls: int) -> Cause | None:
    """Return the origin of a factor: sizes of axes, or the number of micro-batches.

    Returns:
        The axes of that size and MICRO_BATCHES (several where sizes are equal), and the words.
    """
    sizes = {axis: size for axis, size in layout.axes.items() if size > 1}
    pairs = {(a, b): sizes[a] * sizes[b] for a, b in combinations(sizes, 2)}
    is_large = factor > 1
    number = factor if is_large else 1 / (factor or 1.0)
    words = "times too large" if is_large else "of what it should be"
    hits = [axis for axis, size in sizes.items() if abs(number - size) < _EXACT * size]
    origins = [f"the size of {axis}" for axis in hits]
    if num_calls > 1 and abs(number - num_calls) < _EXACT * num_calls:
        origins.append(f"the number of micro-batches, {num_calls}")
        hits.append(MICRO_BATCHES)
    if not origins:
        hits = [a for axes, n in pairs.items() if abs(number - n) < _EXACT * n for a in axes][:2]
        origins = [f"the size of {' x '.join(hits)}"] if hits else []
    if not origins and num_calls > 1:
        hits = [a for a, n in sizes.items() if abs(number - n * num_calls) < _EXACT * number][:1]
        both = (f"the size of {axis} x the number of micro-batches, {num_calls}" for axis in hits)
        origins = list(both)
    if not origins:
        return None
    how = "summed" if is_large else "divided"
    return tuple(hits), f"{factor:.4g} {words}: {how} once too often by {' or '.join(origins)}"


def of_the_batch(at: AtStep) -> Cause | None:
    """Return that the batch is split along an axis that splits parameters, and along no other.

    Ranks of another axis then have the same rows and the same parameters: they are of no use.
    """
    layout, data_axes = at.layout, at.comparison.data_axes
    split = {axis for name in at.start.held_names() for axis in at.start.split_axes(name)}
    useless = [
        axis
        for axis, size in layout.axes.items()
        if size > 1 and axis not in data_axes and axis not in split
    ]
    wrong = [axis for axis in data_axes if axis in split]
    if len(useless) != 1 or len(wrong) != 1:
        return None
    return (wrong[0],), (
        f"the ranks of {wrong[0]} have different rows of the batch, and those of {useless[0]} "
        "the same ones: the batch is split along the wrong axis"
    )


def _joined(calls: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([each.flatten() for each in calls]).double()


# ---- Hypotheses, in the order in which they are tried ----


def _unreduced(case: _Case) -> Cause | None:
    """Other ranks have summands."""
    stages = case.at.comparison.stage_axes
    free = [a for a, size in case.layout.axes.items() if size > 1 and a not in stages]
    for count in (1, 2):
        for axes in combinations(free, count):
            total = _joined(case.at.comparison.summed(case.compared.got, case.rank, axes))
            size = len(case.layout.peers(case.rank, axes))
            for divisor, word in ((1, "sum"), (size, "mean")):
                if case.is_near(total / divisor, case.want):
                    return axes, f"not reduced over {'/'.join(axes)} ({word})"
    return None


def _scaled(case: _Case) -> Cause | None:
    """It is a multiple of what it should be."""
    factor = (case.got * case.want).sum().item() / (case.want.square().sum().item() or 1.0)
    rest = (case.got - factor * case.want).norm().item()
    if rest > case.compared.tolerance * max(1.0, abs(factor)):
        return None
    if not factor:
        return case.guess, "all zeros"
    num_calls = max(map(len, case.compared.got.values()))
    known = factor_of(case.layout, factor, num_calls)
    if known is not None:
        return known[0] or case.axes, known[1]
    return case.guess, f"{factor:.6g} {TIMES}"


def _of_another_rank(case: _Case) -> Cause | None:
    """It is what another rank should have."""
    for other, wanted in case.compared.want.items():
        if other != case.rank and case.is_near(case.got, _joined(wanted)):
            here, there = case.layout.coordinates(case.rank), case.layout.coordinates(other)
            axes = tuple(axis for axis in case.layout.axes if here[axis] != there[axis])
            return axes, f"rank {case.rank} has the part of rank {other}"
    return None


def _of_another_call(case: _Case) -> Cause | None:
    """It is what the rank should have at another micro-batch."""
    got, want = case.compared.got[case.rank], case.compared.want[case.rank]
    for number, each in enumerate(got):
        for other, wanted in enumerate(want):
            if other != number and case.is_near(each, wanted):
                return case.axes or (MICRO_BATCHES,), (
                    f"micro-batch {number} of rank {case.rank} has what micro-batch {other} "
                    "should have"
                )
    return None


def _of_another_module(case: _Case) -> Cause | None:
    """It is what the single program has elsewhere."""
    compared, kind = case.compared, case.kind_of_tensor
    for spot, call in case.at.comparison.elsewhere(kind, case.rank, compared.got[case.rank]):
        if (spot, call) != (compared.spot, compared.call):
            where = f"the {spot.side} of {spot.module or 'the model'}"
            own = f"the {compared.spot.side} of {compared.spot.module or 'the model'}"
            axes = case.axes or tuple(case.at.comparison.stage_axes)
            return axes, f"{own} is what the single program has as {where}"
    return None


def _bias(case: _Case) -> Cause | None:
    """A module's bias is added several times, or not at all."""
    held = case.at.start.ranks[case.rank].initial
    known = held.get(f"{case.compared.spot.module}.bias")
    got, want = case.compared.got[case.rank][0], case.compared.want[case.rank][0]
    if case.is_back or known is None or not got.dim() or got.shape[-1] != len(known.value):
        return None
    value = known.value.double()
    rest = (got - want).double()
    count = (rest.flatten(0, -2).mean(0) @ value / (value @ value)).item()
    if (rest - count * value).norm().item() > _CLOSE * rest.norm().item():
        return None
    split = case.at.start.split_axes(f"{case.compared.spot.module}.bias")
    sizes = {axis: size for axis, size in case.layout.axes.items() if axis not in split}
    axes = tuple(axis for axis, size in sizes.items() if abs(count + 1 - size) < _CLOSE)
    return axes or case.guess, f"the bias is added {count + 1:.3g} times"


def _statistics(case: _Case) -> Cause | None:
    """Return that a norm, whose input and parameters are right, has other statistics."""
    if "norm" not in case.kind.lower() or case.is_back or case.compared.spot.side != OUTPUT:
        return None
    if "BatchNorm" in case.kind:
        return tuple(case.at.comparison.data_axes), "statistics of each rank's own rows"
    return case.guess, "statistics of each rank's own part, or not those of the whole"


def _lacking(case: _Case) -> Cause | None:
    """Return that a gradient lacks that of another tensor, or has it, too."""
    compared, rank = case.compared, case.rank
    if not case.is_back:
        return None
    pairs = list(zip(compared.got[rank], compared.want[rank], strict=True))
    for sign, words in ((-1, "lacks"), (1, "has, besides its own,")):
        rest = [sign * (got - want) for got, want in pairs]
        for spot, _ in case.at.comparison.elsewhere(GRADIENTS, rank, rest):
            if spot.module != compared.spot.module:
                return (
                    case.guess,
                    f"{words} that of the {spot.side} of {spot.module or 'the model'}",
                )
    return None


def _misplaced(case: _Case) -> Cause | None:
    """Its wrong rows, or columns, are those that another place should have."""
    number, got, want = _worst_call(case)
    if got.shape != want.shape or got.numel() > _MAX_MATCHED:
        return None
    tolerance = case.compared.tolerance
    columns = ((got - want).norm(dim=0) > tolerance).nonzero()[:, 0]
    based = case.at.comparison.based(case.kind_of_tensor, case.compared, case.rank, number)
    if based is not None and based.dim() > 1 and based.numel() <= _MAX_MATCHED:
        whole = based.double().flatten(0, -2)
        found = _found(got[:, columns].T, whole.T, tolerance) if len(whole) == len(got) else None
        if found is not None:
            return case.guess, (
                f"column {int(columns[0])} of rank {case.rank} is what column {int(found[0])} of "
                f"the single program is, and so on: {len(columns)} columns of the wrong part"
            )
    rows = ((got - want).norm(dim=1) > tolerance).nonzero()[:, 0]
    for other, calls in case.compared.want.items():
        theirs = torch.cat([_as_rows(each) for each in calls])
        if other == case.rank or theirs.shape[1:] != got.shape[1:]:
            continue
        if theirs.numel() <= _MAX_MATCHED and _found(got[rows], theirs, tolerance) is not None:
            here, there = case.layout.coordinates(case.rank), case.layout.coordinates(other)
            axes = tuple(axis for axis in case.layout.axes if here[axis] != there[axis])
            return axes, (
                f"{len(rows)} of {len(got)} rows of rank {case.rank} are rows of rank {other}, "
                f"first row {int(rows[0])}"
            )
    return None


def _places(case: _Case) -> str:
    """Return the places where a tensor is wrong, along each dimension but that of rows."""
    pairs = zip(case.compared.got[case.rank], case.compared.want[case.rank], strict=True)
    got, want = max(pairs, key=lambda pair: (pair[0] - pair[1]).norm().item())
    wrong = ((got - want).abs() > case.compared.tolerance).nonzero()
    text = ""
    for dim in range(1, got.dim()):
        at = sorted(set(wrong[:, dim].tolist()))
        if 0 < len(at) < got.shape[dim]:
            span = f"{at[0]}" if len(at) == 1 else f"{len(at)} places from {at[0]} to {at[-1]}"
            text += f", only at {span} of {got.shape[dim]} along dimension {dim}"
    return text


def _found(lines: torch.Tensor, among: torch.Tensor, tolerance: float) -> torch.Tensor | None:
    """Return the places of some lines among others; None where one is not, or is zero."""
    if not len(lines) or not len(among) or not lines.norm(dim=1).min().item():
        return None
    mode = "donot_use_mm_for_euclid_dist"  # Which would round too much.
    least = torch.cdist(lines, among, compute_mode=mode).min(dim=1)
    return least.indices if bool((least.values <= tolerance).all()) else None


def _worst_call(case: _Case) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Return the call that is most wrong, its rows, and those that it should have."""
    compared, rank = case.compared, case.rank
    pairs = list(zip(compared.got[rank], compared.want[rank], strict=True))
    errors = [(got - want).norm().item() for got, want in pairs]
    number = errors.index(max(errors))
    got, want = map(_as_rows, pairs[number])
    return number, got, want


def _as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with two dimensions; one with fewer is a row."""
    return tensor.double().flatten(0, -2) if tensor.dim() > 1 else tensor.double().view(1, -1)


def _rows(case: _Case) -> Cause:
    """Rows differ; perhaps they are right but for their order, or for a rotation."""
    compared, rank = case.compared, case.rank
    _, rows, wanted = _worst_call(case)
    tolerance = compared.tolerance
    if compared.got[rank][0].dim() < 2:
        bad = int(((rows - wanted).abs() > tolerance).sum())
        return case.guess, f"{bad} of {rows.numel()} elements {DIFFER} {rank}"
    wrong = ((rows - wanted).norm(dim=-1) > tolerance).nonzero()[:, 0]
    text = f"{len(wrong)} of {len(rows)} rows {DIFFER} {rank}"
    if 0 < len(wrong) < len(rows):
        text += f", first row {int(wrong[0])}"
    text += _places(case)
    ordered, wanted_order = rows.flatten().sort()[0], wanted.flatten().sort()[0]
    if rows.numel() <= _MAX_MATCHED and _found(rows[wrong], wanted, tolerance) is not None:
        text = f"the right rows in another order: {text}"
    elif (ordered - wanted_order).norm().item() <= tolerance:
        text = f"the right values in another order: {text}"
    elif (rows.norm(dim=-1) - wanted.norm(dim=-1)).norm().item() <= tolerance:
        text = f"rows are rotated, as by other positions: {text}"
    return case.guess, text


_HYPOTHESES: tuple[Callable[[_Case], Cause | None], ...] = (
    _unreduced,
    _scaled,
    _of_another_rank,
    _of_another_call,
    _of_another_module,
    _bias,
    _statistics,
    _lacking,
    _misplaced,
    _rows,
)
