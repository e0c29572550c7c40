"""Tensors of all ranks against those of the single program, at one step.

A tensor is right, or it is a partial sum: the sum over the ranks of some axes is right. A partial
sum is no error yet: the next operation may reduce it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations, zip_longest
from typing import TYPE_CHECKING, Any

import torch

from simrank.equality.alignment import (
    BatchRows,
    anchors_of,
    bases,
    cut_of,
    cuts,
    is_close,
    rows_of,
)
from simrank.equality.record import CACHE, OUTPUT, PARTIAL, Record, Spot, Step, Taped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from simrank.equality.layout import Layout
    from simrank.equality.record import Reference

RIGHT, SUMMAND, WRONG, UNALIGNED, ABSENT = "right", "partial sum", "wrong", "not aligned", "absent"
VALUES, GRADIENTS = "values", "gradients"
_FACTOR = 8  # Of the tolerance over what one rounding error per module does.
_ROUNDINGS = 64  # Of the tensor itself, at least; assumed.
_MAX_CANDIDATES = 64  # Assumed: ways to align one tensor that are tried.

Calls = list[torch.Tensor]
Scales = "Mapping[int, Sequence[float]]"


@dataclass
class Compared:
    """A tensor of the single program, and what the ranks have of it.

    Attributes:
        spot: Where it passed.
        call: The single program's call.
        status: RIGHT, SUMMAND, WRONG, UNALIGNED, or ABSENT where no rank has it.
        axes: Of a SUMMAND those to sum over.
        is_declared: Whether a DTensor says that it is a partial sum.
        errors: By rank, the norm of the difference.
        tolerance: What that norm may be.
        norm: Of the single program's tensor.
        got: By rank what it has, per call.
        want: What it should have.
        order: When it passed on the first rank that is wrong.
    """

    spot: Spot
    call: int
    status: str
    axes: tuple[str, ...] = ()
    is_declared: bool = False
    errors: Mapping[int, float] = field(default_factory=dict)
    tolerance: float = 0.0
    norm: float = 0.0
    got: Mapping[int, Calls] = field(default_factory=dict)
    want: Mapping[int, Calls] = field(default_factory=dict)
    order: int = 0

    @property
    def share(self) -> float:
        """Return the largest error as a part of the tolerance."""
        return max(self.errors.values(), default=0.0) / (self.tolerance or 1.0)

    @property
    def relative_error(self) -> float:
        """Return the largest error as a part of the tensor."""
        return max(self.errors.values(), default=0.0) / (self.norm or 1.0)

    @property
    def unsummed_error(self) -> float:
        """Return the largest error as a part of the tensor, before ranks are summed."""
        errors = [
            sum((g - w).square().sum().item() for g, w in zip(got, self.want[rank], strict=True))
            for rank, got in self.got.items()
            if rank in self.want
        ]
        return float(max(errors, default=0.0) ** 0.5 / (self.norm or 1.0))

    @property
    def wrong_ranks(self) -> list[int]:
        """Return the ranks whose tensors differ."""
        return [rank for rank, error in self.errors.items() if error > self.tolerance]


class StepComparison:
    """Compares one step.

    Args:
        reference: The single program.
        ranks: What the ranks did.
        layout: Where they stand.
        step: The number of the step.
        columns: Returns which elements of the last dimension of a module's output a rank has, by
            the rows of the module's parameters that it holds; None where that is not known.

    Attributes:
        rows: Which rows and columns of the batch each rank has, per call of its model; None where
            that is not known.
        data_axes: Axes along which ranks work on different rows or columns.
        stage_axes: Axes along which ranks have different modules.
        declared: The error that the program allows a tensor, as a part of its norm.
    """

    def __init__(
        self,
        reference: Reference,
        ranks: Sequence[Record],
        layout: Layout,
        step: int,
        columns: Callable[[str, int], torch.Tensor | None] = lambda *_: None,
    ) -> None:
        self.layout, self._columns = layout, columns
        self.single: Step = reference.record.steps[step]
        self.noisy = [record.steps[step] for record in reference.noisy]
        self.ranks = [record.steps[step] for record in ranks]
        self.coordinates = [layout.coordinates(rank) for rank in range(layout.num_ranks)]
        self.epsilon = epsilon_of(reference.record)
        self.is_decoding = self.single.decoding is not None
        self.declared = reference.record.tolerance
        names = [frozenset(record.initial) for record in ranks]
        if self.single.decoding is None:
            found = self._find_rows()
        else:
            prefill = step - self.single.decoding.number
            found = self._find_decoding_rows(
                reference.record.steps[prefill], [record.steps[prefill] for record in ranks]
            )
        shared_out = self._axes_that_tell(_facts(found)) if None not in found else []
        # Experts are different modules, too, but the stages of a pipeline have the same rows.
        self.stage_axes = [a for a in self._axes_that_tell(names) if a not in shared_out]
        self._containers = _containers(reference.record.initial, names) if self.stage_axes else ()
        self.rows = self._with_later_stages(found)
        self.data_axes = self._axes_that_tell(_facts(self.rows))
        anchors = anchors_of(self.single)
        self._num_calls = len(self.single.values[anchors[0]]) if anchors else 1

    def _axes_that_tell(self, facts: Sequence[object]) -> list[str]:
        """Return the axes along which ranks differ in something."""
        return [
            axis
            for axis in self.layout.axes
            if any(len({facts[r] for r in group}) > 1 for group in self.layout.groups([axis]))
        ]

    def _find_rows(self) -> list[list[BatchRows] | None]:
        anchors = anchors_of(self.single)
        found = []
        for step in self.ranks:
            tried = (
                rows_of(self.single.values[anchor], step.values[anchor])
                for anchor in anchors
                if anchor in step.values
            )
            found.append(next((rows for rows in tried if rows is not None), None))
        return found

    def _find_decoding_rows(
        self, prefill: Step, ranks: Sequence[Step]
    ) -> list[list[BatchRows] | None]:
        """Return the rows of each rank in a decoding step.

        All of them where its input has the single program's shape, or else those of its prompts.
        """
        anchors = anchors_of(self.single)
        found: list[list[BatchRows] | None] = []
        for number, step in enumerate(self.ranks):
            anchor = next((each for each in anchors if each in step.values), None)
            if anchor is None:
                found.append(None)
                continue
            whole = self.single.values[anchor][0].value
            mine = [each.value for each in step.values[anchor]]
            every = [tuple(range(size)) for size in whole.shape[:2]]
            rows, columns, *_ = *every, (), ()
            full = BatchRows(0, rows, columns, len(rows), len(columns))
            if len(mine) == 1 and mine[0].shape == whole.shape:
                found.append([full])
                continue
            starts = rows_of(prefill.values.get(anchor, ()), ranks[number].values.get(anchor, ()))
            if starts is None or [len(each.rows) for each in starts] != [*map(len, mine)]:
                found.append(None)
            else:
                found.append([replace(full, rows=each.rows) for each in starts])
        return found

    def _with_later_stages(
        self, found: Sequence[list[BatchRows] | None]
    ) -> list[list[BatchRows] | None]:
        """Return the rows of each rank: those of a later stage are those of the first."""
        every = list(found)
        for rank, rows in enumerate(every):
            if rows is None and self.stage_axes:
                peers = self.layout.peers(rank, self.stage_axes)
                every[rank] = next((every[p] for p in peers if every[p] is not None), None)
        return every

    def unused_rows(self) -> list[int]:
        """Return the rows of the single program's first call that no rank works on."""
        known = [each for rows in self.rows if rows is not None for each in rows if not each.call]
        if not all(each.is_unique for each in known):
            return []
        used = {row for each in known for row in each.rows}
        return [row for row in range(known[0].num_rows if known else 0) if row not in used]

    def unused_calls(self) -> list[int]:
        """Return the single program's calls of its model of which no rank has rows."""
        used = {each.call for rows in self.rows if rows is not None for each in rows}
        return [call for call in range(self._num_calls) if used and call not in used]

    def incomplete_ranks(self) -> list[int]:
        """Return the ranks that lack as many of their own rows as one call has, or several.

        A rank's own rows are its part of the batch in equal parts, of which each rank has some
        rows: the first ones and so on, or every n-th row.
        """
        held = {
            rank: {row for each in rows if not each.call for row in each.rows}
            for rank, rows in enumerate(self.rows)
            if rows
        }
        count = len(set(map(frozenset, held.values())))
        first = next((rows[0] for rows in self.rows if rows), None)
        if first is None or first.num_rows % count:
            return []
        size = first.num_rows // count
        numbers = range(first.num_rows)
        for part_of in [row // size for row in numbers], [row % count for row in numbers]:
            homes = [{part_of[row] for row in rows} for rows in held.values()]
            if all(len(each) == 1 for each in homes) and len(set.union(*homes)) == count:
                lacking = {rank: size - len(rows) for rank, rows in held.items()}
                is_whole = all(number % len(first.rows) == 0 for number in lacking.values())
                return [rank for rank, number in lacking.items() if number] if is_whole else []
        return []

    def without_backward(self, rank: int) -> list[int]:
        """Return the calls of a rank's model whose output gets no gradient, unlike another's."""
        step, num_calls = self.ranks[rank], len(self.rows[rank] or ())
        for spot, gradients in self.single.gradients.items():
            mine = step.gradients.get(spot, {})
            is_once = len(step.values.get(spot, ())) == num_calls
            if spot.side == OUTPUT and gradients and is_once and 0 < len(mine) < num_calls:
                return [call for call in range(num_calls) if call not in mine]
        return []

    # ---- One tensor ----

    def compare(
        self, kind: str, spot: Spot, call: int, scales: Mapping[int, Sequence[float]] | None = None
    ) -> Compared:
        """Compare a tensor of the single program with what the ranks have.

        Args:
            kind: VALUES or GRADIENTS.
            spot: Where it passes.
            call: The single program's call.
            scales: By rank and call of its model what the single program's tensor is multiplied by.
        """
        whole = _taped(self.single, kind, spot, call)
        if whole is None or not self._is_comparable(spot, whole.value):
            return self._compare_integers(spot, call, whole)
        got, rows, factors, places, orders = self._calls_of(kind, spot, call, scales)
        if not got:
            return Compared(spot, call, ABSENT)
        norm = whole.value.norm().item()
        tolerance = self.tolerance(kind, spot, call)
        factor = max((abs(f) for each in factors.values() for f in each), default=1.0)
        best = Compared(spot, call, UNALIGNED, tolerance=tolerance * factor, norm=norm * factor)
        is_shared = kind == GRADIENTS and self._is_shared(spot, call, whole.value)
        if is_shared:
            got, rows, factors = _over_calls(got, rows, factors)
        best.got = got
        declared = places and tuple(axis for axis, at in places.items() if at == PARTIAL)
        smallest = torch.inf
        for want in self._candidates(spot, whole.value, got, rows):
            scaled = {r: [w * f for w, f in zip(want[r], factors[r], strict=True)] for r in want}
            for axes in self._summands(declared, is_shared=is_shared):
                errors = self._errors(got, scaled, axes)
                worst = max(errors.values())
                if worst > best.tolerance and (axes or worst >= smallest):
                    continue
                smallest = worst
                status = SUMMAND if set(axes) - set(self.data_axes) else RIGHT
                best.status = status if worst <= best.tolerance else WRONG
                best.axes = tuple(axis for axis in axes if axis not in self.data_axes)
                best.is_declared = bool(axes) and declared is not None
                best.errors, best.want = errors, scaled
                if worst <= best.tolerance:
                    best.order = min(orders.values())
                    return best
        best.order = min(
            (at for rank, at in orders.items() if rank in best.wrong_ranks or not best.wrong_ranks),
            default=0,
        )
        summed_over = self._axes_by_value(kind, best, whole.value, rows, factors, declared)
        if summed_over is not None:
            best.status = SUMMAND if summed_over else RIGHT
            best.axes = summed_over
            best.is_declared = bool(summed_over) and declared is not None
            best.errors, best.want = dict.fromkeys(got, 0.0), {}
        is_loss = not spot.module and not whole.value.dim()  # Weighted in any way on each rank.
        if best.status == WRONG and is_loss and self.data_axes and kind == VALUES:
            best.status = UNALIGNED
        return best

    def _is_comparable(self, spot: Spot, whole: torch.Tensor) -> bool:
        """Return whether a tensor has numbers, and is not the model's where ranks have a stage."""
        return whole.is_floating_point() and spot.module not in self._containers

    def _compare_integers(self, spot: Spot, call: int, taped: Taped | None) -> Compared:
        """Compare integers of a decoding step, such as tokens and positions: each is the same."""
        is_float = taped is not None and taped.value.is_floating_point()
        if taped is None or is_float or not self.is_decoding:
            return Compared(spot, call, ABSENT)
        whole = taped.value
        got, rows, _, _, orders = self._calls_of(VALUES, spot, call, None)
        got = {r: c for r, c in got.items() if not any(e.is_floating_point() for e in c)}
        best = Compared(spot, call, UNALIGNED, norm=whole.double().norm().item())
        return self._closest(best, whole, got, rows, orders)

    def compare_cache(self, name: str) -> Compared:
        """Compare a cache after a decoding step; ranks may have some of its heads."""
        whole, spot = self.single.caches[name].value, Spot(name, CACHE, 0)
        errors = [step.caches[name].value.item() for step in self.noisy if name in step.caches]
        norm = whole.norm().item()
        tolerance = max(tolerance_of(whole, errors, self.epsilon), self.declared * norm)
        best = Compared(spot, 0, UNALIGNED, tolerance=tolerance, norm=norm)
        held = {rank: s.caches[name] for rank, s in enumerate(self.ranks) if name in s.caches}
        got = {rank: [each.value] for rank, each in held.items()}
        first = [None if rows is None else rows[0] for rows in self.rows]
        rows = {rank: [first[rank]] for rank in got}
        orders = {rank: each.order for rank, each in held.items()}
        return self._closest(best, whole, got, rows, orders)

    def _closest(
        self,
        best: Compared,
        whole: torch.Tensor,
        got: Mapping[int, Calls],
        rows: Mapping[int, list[BatchRows | None]],
        orders: Mapping[int, int],
    ) -> Compared:
        """Return a comparison with the way to align it that has the smallest errors."""
        if not got:
            return replace(best, status=ABSENT)
        best.got, best.order = got, min(orders[rank] for rank in got)
        for want in self._candidates(best.spot, whole, got, rows):
            doubles = (
                (r, g.double(), w.double())
                for r in got
                for g, w in zip(got[r], want[r], strict=True)
            )
            errors = dict.fromkeys(got, 0.0)
            for rank, mine, wanted in doubles:
                errors[rank] += (mine - wanted).norm().item()
            if not best.want or sum(errors.values()) < sum(best.errors.values()):
                best.errors, best.want = errors, want
        if best.want:
            best.status = WRONG if best.wrong_ranks else RIGHT
            best.order = min(orders[rank] for rank in best.wrong_ranks or got)
        return best

    def _axes_by_value(
        self,
        kind: str,
        compared: Compared,
        whole: torch.Tensor,
        rows: Mapping[int, list[BatchRows | None]],
        factors: Mapping[int, Sequence[float]],
        declared: tuple[str, ...] | None,
    ) -> tuple[str, ...] | None:
        """Return the axes over which all rows of all ranks add up to some of the single program.

        None where they do not, or where a tensor's shape says which rows a rank has.
        """
        depends = _depends_on_data(whole, rows)
        if compared.want and not depends:
            return None
        every = self._every_call(kind, compared.spot, whole) if depends else whole
        for axes in self._summands(declared, is_shared=False):
            summed = {rank: self.summed(compared.got, rank, axes) for rank in compared.got}
            if self._is_found_by_value(every, summed, factors, compared.tolerance):
                return axes
        return None

    def _every_call(self, kind: str, spot: Spot, whole: torch.Tensor) -> torch.Tensor:
        """Return the rows of all calls: those of experts come from several ranks' batches."""
        calls = range(len(self.single.values[spot]))
        taped = [_taped(self.single, kind, spot, call) for call in calls]
        found = [each.value for each in taped if each is not None]
        return torch.cat([each for each in found if each.shape[1:] == whole.shape[1:]])

    def tolerance(self, kind: str, spot: Spot, call: int) -> float:
        """Return the largest norm that a difference may have."""
        whole = _taped(self.single, kind, spot, call)
        noisy = [_taped(step, kind, spot, call) for step in self.noisy]
        if whole is None:
            return 0.0
        errors = [each.value.item() for each in noisy if each is not None]
        least = self.declared * whole.value.norm().item() if self.declared else 0.0
        return max(tolerance_of(whole.value, errors, self.epsilon), least)

    def based(self, kind: str, compared: Compared, rank: int, number: int) -> torch.Tensor | None:
        """Return the rows of the single program's tensor that a rank's call has, of all columns."""
        whole, rows = _taped(self.single, kind, compared.spot, compared.call), self.rows[rank]
        if whole is None or rows is None or number >= len(rows):
            return None
        return next(bases(whole.value, rows[number]))

    def same_of_each_model_call(self, spot: Spot, call: int) -> list[int]:
        """Return the calls of a place of the single program, one of each call of its model."""
        per_model = len(self.single.values[spot]) // self._num_calls
        return [n * per_model + call % per_model for n in range(self._num_calls)]

    def calls_within(self, rank: int, compared: Compared) -> list[int]:
        """Return the numbers of the calls of a rank's model within one of the single model."""
        per_model = len(self.single.values[compared.spot]) // self._num_calls
        of = compared.call // max(per_model, 1)
        return [n for n, each in enumerate(self.rows[rank] or ()) if each.call == of]

    def elsewhere(self, kind: str, rank: int, got: Calls) -> Iterator[tuple[Spot, int]]:
        """Yield the tensors of the single program that a rank's calls of something else equal."""
        rows: Sequence[BatchRows | None] = self.rows[rank] or [None] * len(got)
        if len(rows) != len(got) or not all(each.norm().item() for each in got):
            return
        for spot, call in self.single.order:
            whole = _taped(self.single, kind, spot, call)
            if whole is None or not whole.value.is_floating_point():
                continue
            if whole.value.dim() != got[0].dim() or not whole.value.norm().item():
                continue
            for wanted in zip(*(bases(whole.value, each) for each in rows), strict=False):
                if all(map(is_close, got, wanted)):
                    yield spot, call
                    break

    def _calls_of(
        self, kind: str, spot: Spot, call: int, scales: Mapping[int, Sequence[float]] | None
    ) -> tuple[
        dict[int, Calls],
        dict[int, list[BatchRows | None]],
        dict[int, list[float]],
        Any,
        dict[int, int],
    ]:
        """Return by rank the tensors of one call of the single program, with their rows."""
        num_here = len(self.single.values.get(spot, ()))
        per_model, rest = divmod(num_here, self._num_calls)
        got: dict[int, Calls] = {}
        rows: dict[int, list[BatchRows | None]] = {}
        factors: dict[int, list[float]] = {}
        places = None
        orders: dict[int, int] = {}
        for rank, step in enumerate(self.ranks):
            num_calls = len(step.values.get(spot, ()))
            mine = self.rows[rank]
            known = mine if mine is not None else [None] * (num_calls // max(per_model, 1))
            if rest or not num_calls or num_calls != per_model * len(known):
                continue
            chosen = [
                number
                for number, each in enumerate(known)
                if each is None or each.call == call // per_model
            ]
            taped = [
                _taped(step, kind, spot, number * per_model + call % per_model) for number in chosen
            ]
            if not taped or any(each is None for each in taped):
                continue
            got[rank] = [each.value for each in taped if each is not None]
            orders[rank] = min(each.order for each in taped if each is not None)
            places = places or taped[0].places  # type: ignore[union-attr]
            rows[rank] = [known[number] for number in chosen]
            given = None if scales is None else scales.get(rank)
            factors[rank] = [1.0 if given is None else given[number] for number in chosen]
        return got, rows, factors, places, orders

    def _candidates(
        self,
        spot: Spot,
        whole: torch.Tensor,
        got: Mapping[int, Calls],
        rows: Mapping[int, list[BatchRows | None]],
    ) -> Iterator[dict[int, Calls]]:
        """Yield what each rank should have, by each way to align it."""
        lists = {rank: [list(bases(whole, each)) for each in rows[rank]] for rank in got}
        first = next(iter(got))
        free = [a for a in self.layout.axes if a not in self.stage_axes and a not in self.data_axes]
        tried = 0
        for number in range(max(len(each) for each in lists[first])):
            if any(number >= len(each) for calls in lists.values() for each in calls):
                return
            based = {rank: [each[number] for each in lists[rank]] for rank in got}
            if not number and spot.side == OUTPUT:
                yield from self._by_columns(spot.module, based, got)
            shape, of = got[first][0].shape, based[first][0].shape
            for how in cuts(shape, of, self.layout, free, replicates=self.is_decoding):
                want = {
                    rank: [
                        cut_of(each, how, self.layout, self.coordinates[rank], shape)
                        for each in based[rank]
                    ]
                    for rank in got
                }
                same = all(
                    w.shape == g.shape
                    for rank in got
                    for w, g in zip_longest(want[rank], got[rank], fillvalue=whole)
                )
                if same:
                    tried += 1
                    yield want
                if tried >= _MAX_CANDIDATES:
                    return

    def _by_columns(
        self, module: str, based: Mapping[int, Calls], got: Mapping[int, Calls]
    ) -> Iterator[dict[int, Calls]]:
        """Yield what ranks should have of an output, by the parameters that they hold."""
        columns = {rank: self._columns(module, rank) for rank in got}
        want: dict[int, Calls] = {}
        for rank, held in columns.items():
            if held is None or any(
                not each.dim() or int(held.max()) >= each.shape[-1] for each in based[rank]
            ):
                return
            want[rank] = [each.index_select(-1, held) for each in based[rank]]
            if any(w.shape != g.shape for w, g in zip(want[rank], got[rank], strict=True)):
                return
        yield want

    def _is_shared(self, spot: Spot, call: int, whole: torch.Tensor) -> bool:
        """Return whether a tensor is the same for all parts of the batch, as positions are.

        Its gradient is then the sum over those parts.
        """
        got, *_ = self._calls_of(VALUES, spot, call, None)
        if not self.data_axes and all(len(calls) == 1 for calls in got.values()):
            return False
        if not got or any(each.shape != whole.shape for calls in got.values() for each in calls):
            return False
        value = _taped(self.single, VALUES, spot, call)
        tolerance = self.tolerance(VALUES, spot, call)
        return value is not None and all(
            (each - value.value).norm().item() <= tolerance
            for calls in got.values()
            for each in calls
        )

    def _summands(
        self, declared: tuple[str, ...] | None, *, is_shared: bool
    ) -> Iterator[tuple[str, ...]]:
        """Yield the axes over which the ranks' tensors may have to be summed."""
        if declared is not None:
            yield declared
            return
        yield ()
        if is_shared:
            yield tuple(self.data_axes)
        free = [
            axis
            for axis in self.layout.axes
            if axis not in self.stage_axes
            and axis not in self.data_axes
            and self.layout.axes[axis] > 1
        ]
        for count in (1, 2):
            for axes in combinations(free, count):
                yield axes
                if is_shared:
                    yield (*self.data_axes, *axes)

    def _errors(
        self, got: Mapping[int, Calls], want: Mapping[int, Calls], axes: Sequence[str]
    ) -> dict[int, float]:
        return {
            rank: sum(
                (each - wanted).square().sum().item()
                for each, wanted in zip(self.summed(got, rank, axes), want[rank], strict=True)
            )
            ** 0.5
            for rank in got
        }

    def summed(self, got: Mapping[int, Calls], rank: int, axes: Sequence[str]) -> Calls:
        """Return the sum of the tensors of ranks that differ along some axes."""
        if not axes:
            return got[rank]
        peers = [got[peer] for peer in self.layout.peers(rank, axes) if peer in got]
        shape = [each.shape for each in got[rank]]
        if any([each.shape for each in peer] != shape for peer in peers):
            return got[rank]
        return [torch.stack(list(each)).sum(0) for each in zip(*peers, strict=True)]

    def are_alike(self, got: Mapping[int, Calls], axes: Sequence[str]) -> bool:
        """Return whether the ranks along some axes have the same values."""
        return all(
            len(got[rank]) == len(got[peer]) and all(map(is_close, got[rank], got[peer]))
            for rank in got
            for peer in self.layout.peers(rank, axes)
            if peer in got
        )

    def _is_found_by_value(
        self,
        whole: torch.Tensor,
        got: Mapping[int, Calls],
        factors: Mapping[int, Sequence[float]],
        tolerance: float,
    ) -> bool:
        """Return whether all rows of all ranks, or all columns, are some of the single program."""
        return all(
            _has_rows(whole * factor, each, tolerance)
            or _has_columns(whole * factor, each, tolerance)
            for rank, calls in got.items()
            for each, factor in zip(calls, factors[rank], strict=True)
        )


def tolerance_of(single: torch.Tensor, errors: Sequence[float], epsilon: float) -> float:
    """Return the largest norm that a tensor's difference may have.

    Args:
        single: Of the single program.
        errors: What one rounding error at each module's output and gradient does to its norm.
        epsilon: The rounding error of the type.
    """
    norm = single.double().norm().item()
    return float(_FACTOR * max(errors, default=0.0) + _ROUNDINGS * epsilon * norm)


def errors_of(record: Record, noisy: Record) -> Record:
    """Return a record of errors: in place of each tensor the norm of the difference of two.

    Args:
        record: Of the single program.
        noisy: The same program with rounding errors, or in other types.
    """
    found = Record()
    for mine, theirs in zip(record.steps, noisy.steps, strict=False):
        step = Step(decoding=theirs.decoding, is_last=theirs.is_last)
        found.steps.append(step)
        for spot, calls in theirs.values.items():
            pairs = zip_longest(mine.values.get(spot, ()), calls)
            step.values[spot] = [_error(*pair) for pair in pairs]
        for spot, by_call in theirs.gradients.items():
            step.gradients[spot] = _errors(mine.gradients.get(spot, {}), by_call)
        for name, states in theirs.states.items():
            step.states[name] = _errors(mine.states.get(name, {}), states)
        step.parameter_gradients = _errors(mine.parameter_gradients, theirs.parameter_gradients)
        step.parameters = _errors(mine.parameters, theirs.parameters)
        step.buffers, step.caches = (
            _errors(getattr(mine, kind), getattr(theirs, kind)) for kind in ("buffers", "caches")
        )
        if theirs.loss is not None:
            loss = None if mine.loss is None else Taped(mine.loss)
            step.loss = _error(loss, Taped(theirs.loss)).value
    return found


def _errors(mine: Mapping[Any, Taped | None], theirs: Mapping[Any, Taped | None]) -> dict[Any, Any]:
    return {name: _error(mine.get(name), e) for name, e in theirs.items() if e is not None}


def _error(one: Taped | None, other: Taped | None) -> Taped:
    """Return the norm of a difference: none of tensors that cannot be compared."""
    value = None if one is None else one.value.double()
    if value is None or other is None or other.value.shape != value.shape:
        return Taped(torch.zeros((), dtype=torch.float64))
    return Taped((other.value.double() - value).norm())


def _over_calls(
    got: Mapping[int, Calls],
    rows: Mapping[int, list[BatchRows | None]],
    factors: Mapping[int, list[float]],
) -> tuple[dict[int, Calls], dict[int, list[BatchRows | None]], dict[int, list[float]]]:
    """Add up the gradients of the calls of each rank, of a tensor that all of them share."""
    return (
        {rank: [torch.stack(calls).sum(0)] for rank, calls in got.items()},
        {rank: each[:1] for rank, each in rows.items()},
        {rank: each[:1] for rank, each in factors.items()},
    )


def _facts(rows: Sequence[Sequence[BatchRows] | None]) -> list[object]:
    return [None if each is None else tuple(each) for each in rows]


def _containers(initial: Mapping[str, Taped], names: Sequence[frozenset[str]]) -> set[str]:
    """Return the modules of which ranks have some of the parameters, the model among them."""
    found = {""}
    for held in names:
        some = {prefix for name in held for prefix in _prefixes(name)}
        found |= some & {prefix for name in initial.keys() - held for prefix in _prefixes(name)}
    return found


def _prefixes(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _depends_on_data(whole: torch.Tensor, rows: Mapping[int, list[BatchRows | None]]) -> bool:
    """Return whether a tensor's first dimension is none of the batch, as that of experts."""
    known = [each for calls in rows.values() for each in calls if each is not None]
    return (
        bool(known)
        and whole.dim() > 0
        and all(
            len(whole) not in (each.num_rows, each.num_columns, each.num_rows * each.num_columns)
            for each in known
        )
    )


def _has_rows(whole: torch.Tensor, part: torch.Tensor, tolerance: float) -> bool:
    """Return whether each row of a part is one of the whole, in any order, or zero."""
    if whole.dim() == part.dim() == 1:
        whole, part = whole[:, None], part[:, None]
    if whole.dim() < 2 or part.dim() < 2 or whole.shape[-1] != part.shape[-1] or not part.numel():
        return not part.numel()
    if not whole.numel():
        return False
    rows, every = part.flatten(0, -2).double(), whole.flatten(0, -2).double()
    drawn = torch.randn(rows.shape[-1], generator=torch.Generator().manual_seed(0)).double()
    values, order = (every @ drawn).sort()
    near = torch.searchsorted(values, rows @ drawn)
    errors = [
        (rows - every[order[(near + shift).clamp(0, len(values) - 1)]]).norm(dim=-1)
        for shift in (-1, 0)
    ]
    smallest = torch.minimum(torch.minimum(*errors), rows.norm(dim=-1))
    return bool((smallest <= tolerance).all()) and bool((rows.norm(dim=-1) > tolerance).any())


def _has_columns(whole: torch.Tensor, part: torch.Tensor, tolerance: float) -> bool:
    """Return whether each column of a part is one of the whole, whose rows are the same."""
    if whole.dim() < 2 or whole.shape[:-1] != part.shape[:-1] or part.shape[-1] >= whole.shape[-1]:
        return False
    return _has_rows(whole.flatten(0, -2).T, part.flatten(0, -2).T, tolerance)


def _taped(step: Step, kind: str, spot: Spot, call: int) -> Taped | None:
    if kind == GRADIENTS:
        return step.gradients.get(spot, {}).get(call)
    calls = step.values.get(spot, ())
    return calls[call] if call < len(calls) else None


def epsilon_of(record: Record) -> float:
    """Return the rounding error of the parameters' type."""
    for each in record.initial.values():
        if each.value.is_floating_point():
            return torch.finfo(each.value.dtype).eps
    return torch.finfo(torch.float32).eps
