"""The verdict on a layout: whether it trains as the single program does, and where it first does not.

What training has of a step decides: the parameters and buffers after it, and the loss. Tensors of
the forward and the backward only say where a difference began: in the first tensor that is wrong,
while all that it depends on are right. A tensor that looks wrong, but on which a right one depends,
was not aligned.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from simrank.equal import causes
from simrank.equal.alignment import Elements, is_close
from simrank.equal.layout import Layout
from simrank.equal.masks import Masks
from simrank.equal.comparison import (
    ABSENT,
    FACTOR,
    GRADIENTS,
    RIGHT,
    ROUNDINGS,
    SUMMAND,
    UNALIGNED,
    VALUES,
    WRONG,
    Compared,
    Comparison,
)
from simrank.equal.contributions import Contributions
from simrank.equal.parameters import Reason, Wrong, why_gradients, why_step
from simrank.equal.record import INPUT, OUTPUT, PARTIAL

from simrank.errors import SimrankError, ranks_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from simrank.equal.runs import Reference, Runner
    from simrank.equal.record import Record, Spot, Taped

INITIAL, FORWARD, LOSS, BACKWARD = "initial values", "forward", "loss", "backward"
PARAMETER_GRADIENTS, STEP = "gradients", "step"
WHOLE = "(all)"  # In place of a module.
MODEL = "(model)"
_LOSS_MODULE = "(loss)"
_MAX_NAMED = 8  # Modules in a line of a report.
_NEARLY_ALL = 0.9


@dataclass
class Found:
    """The first difference.

    Attributes:
        direction: INITIAL, FORWARD, LOSS, BACKWARD, PARAMETER_GRADIENTS or STEP.
        module: The module whose code it began in; WHOLE, MODEL, or several with commas.
        axes: Axes of the layout along which it arises; empty where that is not known.
        cause: What is wrong there.
        error: Relative.
        ranks: Those that are wrong.
        step: Training step, from 0.
        place: Line of the program, or "".
        hint: What was expected, or "".
    """

    direction: str
    module: str
    axes: tuple[str, ...]
    cause: str
    error: float
    ranks: Sequence[int] = ()
    step: int = 0
    place: str = ""
    hint: str = ""


@dataclass
class Verdict:
    """What is found out about a layout.

    Attributes:
        layout: The layout.
        found: The first difference; None where it equals the single program.
        num_compared: Tensors that were aligned and compared.
        worst: The largest error of a right tensor, as a part of its tolerance.
        unaligned: Tensors that were not compared, with the reason.
        notes: What a reader should know besides.
        statuses: Status by module of the first step that differs, or of the last one.
    """

    layout: Layout
    found: Found | None = None
    num_compared: int = 0
    worst: float = 0.0
    unaligned: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    statuses: dict[str, dict[str, str]] = field(default_factory=dict)


class Judge:
    """Compares the ranks of a layout with the single program.

    Args:
        reference: The single program.
        ranks: What the ranks did.
        layout: Where they stand.
        runner: Runs programs again to find a cause; None: the cause is what the records tell.
    """

    def __init__(
        self,
        reference: Reference,
        ranks: Sequence[Record],
        layout: Layout,
        runner: Runner | None = None,
    ) -> None:
        self.runner = runner
        self.reference, self.ranks, self.layout = reference, ranks, layout
        self.elements = Elements(reference.record.initial)
        self.verdict = Verdict(layout)
        self.places: list[dict[str, torch.Tensor]] = [{} for _ in ranks]

    def judge(self) -> Verdict:
        """Return the verdict."""
        verdict = self.verdict
        verdict.found = self._initial()
        if verdict.found is not None:
            self._complete(verdict.found)
            return verdict
        for step in range(len(self.reference.record.steps)):
            at = AtStep(self, step)
            if at.is_wrong():
                verdict.found = at.locate()
                verdict.found.step = step
                self._complete(verdict.found)
                return verdict
            at.survey()
        return verdict

    def _complete(self, found: Found) -> None:
        """Name the axes where the records do not tell: without them there is no difference."""
        axes = [axis for axis, size in self.layout.axes.items() if size > 1]
        if len(axes) == 1:
            found.axes = found.axes or tuple(axes)
        elif len(found.axes) != 1 and self.runner is not None:
            needed = [axis for axis in axes if self._is_equal_without(axis)]
            found.axes = tuple(needed) or found.axes

    def _is_equal_without(self, axis: str) -> bool:
        """Return whether the layout with one rank along an axis equals the single program."""
        assert self.runner is not None  # noqa: S101 - asked where there is one
        smaller = Layout({**self.layout.axes, axis: 1})
        try:
            ranks = self.runner.layout(smaller)
        except SimrankError:
            return False
        return Judge(self.reference, ranks, smaller).judge().found is None

    def count(self, share: float) -> None:
        """Note a right tensor."""
        self.verdict.num_compared += 1
        self.verdict.worst = max(self.verdict.worst, share)

    def _initial(self) -> Found | None:
        """Find the elements of each rank's parameters; return the first that has others."""
        for rank, record in enumerate(self.ranks):
            for name, each in record.initial.items():
                places = self.elements.find(name, each.value)
                if places is None:
                    return self._strange(name)
                self.places[rank][name] = places
        return self._missing() or self._misnamed()

    def _strange(self, name: str) -> Found:
        """Return that a parameter has values that the single program has not."""
        wrong = [
            rank
            for rank, record in enumerate(self.ranks)
            if name in record.initial
            and self.elements.find(name, record.initial[name].value) is None
        ]
        axes = causes.varying(self.layout, wrong) or tuple(self.layout.axes)
        cause = f"{name} has values that are no part of the single program's"
        if len(wrong) < self.layout.num_ranks:
            cause += ": not broadcast, or drawn from another seed"
        return Found(INITIAL, _module_of(name), axes, cause, 1.0, wrong)

    def _missing(self) -> Found | None:
        """Return that elements are on no rank."""
        held = torch.zeros(self.elements.count, dtype=torch.bool)
        for places in self.places:
            for each in places.values():
                held[each[each >= 0]] = True
        if bool(held.all()):
            return None
        first = int((~held).nonzero()[0, 0])
        name = self.elements.name_of(first)
        ranks = [rank for rank, places in enumerate(self.places) if name in places]
        alike = [
            axis
            for axis in self.layout.axes
            if any(
                len({self.places[r][name].numpy().tobytes() for r in group if r in ranks}) == 1
                for group in self.layout.groups([axis])
            )
            and self.layout.axes[axis] > 1
        ]
        cause = f"{int((~held).sum())} elements are on no rank, first of {name}"
        if ranks and self.places[ranks[0]][name].numel() < self.elements.shapes[name].numel():
            cause += ": ranks hold the same part"
        return Found(INITIAL, _module_of(name), tuple(alike), cause, 1.0, ranks)

    def _misnamed(self) -> Found | None:
        """Return that a rank has another parameter's values under a name that has its own."""
        for rank, places in enumerate(self.places):
            for name, each in places.items():
                if name not in self.elements.shapes:
                    continue
                known = each[each >= 0]
                start = self.elements.starts[name]
                end = start + self.elements.shapes[name].numel()
                if bool(((known < start) | (known >= end)).any()):
                    other = self.elements.name_of(int(known[(known < start) | (known >= end)][0]))
                    self.verdict.notes.append(f"rank {rank} has the single program's {other} as {name}")
        return None


def _module_of(name: str) -> str:
    return name.rpartition(".")[0] or name


class AtStep:
    """One training step of all ranks.

    Args:
        judge: Whose ranks.
        step: The step.
    """

    def __init__(self, judge: Judge, step: int) -> None:
        self.judge, self.layout, self.number = judge, judge.layout, step
        self.comparison = Comparison(judge.reference, judge.ranks, judge.layout, step)
        self.single = self.comparison.single
        self.ranks = self.comparison.ranks
        self.scales: dict[int, list[float]] = {}
        self.masks = Masks(self.comparison)

    # ---- What training has of a step ----

    def is_wrong(self) -> bool:
        """Return whether parameters, buffers or the loss differ after the step."""
        after = [*self._wrong_parameters("parameters")]
        buffers = [*self._wrong_buffers()]
        masks = self.masks.wrong() is not None
        return bool(after or buffers or masks or not self._is_loss_right(strict=True))

    def _wrong_parameters(self, kind: str) -> Iterator[Wrong]:
        """Yield the wrong tensors of all ranks."""
        judge = self.judge
        tensors: Mapping[str, Taped | None] = getattr(self.single, kind)
        flat = judge.elements.flat(tensors)
        tolerances = {name: self._parameter_tolerance(kind, name) for name in judge.elements.shapes}
        for rank, places in enumerate(judge.places):
            for name, at in places.items():
                got = self.whole(kind, name, rank)
                if got is None:
                    continue
                at_known = at if at.shape == got.shape else None
                if at_known is None:
                    if at.numel() != got.numel():
                        continue
                    at_known = at.view(got.shape)
                want = torch.where(at_known >= 0, flat[at_known.clamp(min=0)], 0.0)
                if bool(want.isnan().all()):
                    continue  # The single program has none.
                got = torch.where(at_known >= 0, got.double(), 0.0)
                tolerance = self._tolerance_of(name, at_known, tolerances)
                error = (got - want).norm().item()
                if error <= tolerance:
                    judge.count(error / (tolerance or 1.0))
                else:
                    yield Wrong(name, rank, error, got, want, tolerance)

    def _tolerance_of(
        self, name: str, places: torch.Tensor, tolerances: Mapping[str, float]
    ) -> float:
        if name in tolerances:
            return tolerances[name]
        known = places[places >= 0]
        names = {self.judge.elements.name_of(int(at)) for at in (known.min(), known.max())}
        return sum(tolerances[each] ** 2 for each in names) ** 0.5

    def whole(self, kind: str, name: str, rank: int) -> torch.Tensor | None:
        """Return a rank's tensor; one that a DTensor declares a partial sum is summed."""
        each = getattr(self.ranks[rank], kind).get(name)
        if each is None:
            return None
        axes = [axis for axis, at in (each.places or {}).items() if at == PARTIAL]
        if not axes:
            return each.value  # type: ignore[no-any-return]
        peers = [getattr(self.ranks[r], kind).get(name) for r in self.layout.peers(rank, axes)]
        return torch.stack([peer.value for peer in peers if peer is not None]).sum(0)

    def earlier(self, kind: str, name: str, rank: int) -> torch.Tensor | None:
        """Return a tensor of a parameter at the step before, of the single program's elements."""
        tensors = getattr(self.judge.reference.record.steps[self.number - 1], kind)
        places = self.judge.places[rank].get(name)
        if places is None:
            return None
        return self.judge.elements.flat(tensors)[places.clamp(min=0)]

    def _parameter_tolerance(self, kind: str, name: str) -> float:
        whole = getattr(self.single, kind).get(name)
        if whole is None:
            return 0.0
        value = whole.value.double()
        noisy = [getattr(step, kind).get(name) for step in self.comparison.noisy]
        errors = [(e.value.double() - value).norm().item() for e in noisy if e is not None]
        floor: float = ROUNDINGS * self.comparison.epsilon * value.norm().item()
        return FACTOR * max(errors, default=0.0) + floor

    def _wrong_buffers(self) -> Iterator[tuple[str, int, float]]:
        """Yield name, rank and error of buffers that change, and differ after the step."""
        record = self.judge.reference.record
        for name, each in self.single.buffers.items():
            before = record.initial_buffers.get(name)
            is_state = before is None or not torch.equal(before.value, each.value)
            if not is_state:
                continue
            tolerance = self._parameter_tolerance("buffers", name)
            for rank, step in enumerate(self.ranks):
                mine = step.buffers.get(name)
                if mine is None or mine.value.shape != each.value.shape:
                    continue
                error = (mine.value.double() - each.value.double()).norm().item()
                if error > tolerance:
                    yield name, rank, error / (each.value.double().norm().item() or 1.0)
                else:
                    self.judge.count(error / (tolerance or 1.0))

    def _losses(self) -> dict[int, float]:
        return {r: s.loss.item() for r, s in enumerate(self.ranks) if s.loss is not None and s.loss.numel() == 1}

    def _loss_tolerance(self) -> float:
        assert self.single.loss is not None  # noqa: S101 - the single program has one
        noisy = [abs(s.loss.item() - self.single.loss.item()) for s in self.comparison.noisy if s.loss is not None]
        floor = ROUNDINGS * self.comparison.epsilon * abs(self.single.loss.item())
        return float(FACTOR * max(noisy, default=0.0) + floor)

    def _is_loss_right(self, *, strict: bool) -> bool:
        """Return whether the ranks' losses are, or add up to, that of the single program.

        Args:
            strict: Only a loss that all ranks agree on, and that is another, is wrong: the loss of
                a rank's own rows may be weighted in any way.
        """
        losses = list(self._losses().values())
        if not losses or self.single.loss is None:
            return strict
        want, tolerance = self.single.loss.item(), self._loss_tolerance()
        sums = [sum(losses) / len(losses), sum(losses)]
        per_part = [sum(losses[0:1] + [v for g in self.layout.groups([a]) for v in []]) for a in ()]
        sums += per_part
        if any(abs(each - want) <= tolerance * max(1, len(losses)) for each in sums):
            return True
        are_same = max(losses) - min(losses) <= tolerance
        return strict and not (are_same and self._are_ranks_several(losses))

    def _are_ranks_several(self, losses: Sequence[float]) -> bool:
        """Return whether the same loss on all ranks says that it was reduced."""
        return len(losses) > 1 or not self.comparison.data_axes

    # ---- Where a difference began ----

    def locate(self) -> Found:
        """Return the first difference of a step that is wrong."""
        found = self._dropout()
        if found is None and not self._is_loss_right(strict=False):
            found = self._forward()
        found = found or self._recomputed() or self._loss_gradient() or self._backward()
        found = found or self._gradients() or self._wrong_loss() or self._update()
        if found is not None:
            return found
        found = self._forward()
        if found is not None:
            return found
        return Found(STEP, WHOLE, (), "what training has after the step differs", 1.0)

    def _dropout(self) -> Found | None:
        wrong = self.masks.wrong()
        if wrong is None:
            return None
        direction = BACKWARD if wrong.is_again else FORWARD
        axes = causes.varying_values(self.layout, wrong.values) if wrong.values else ()
        return Found(direction, wrong.module or MODEL, axes, wrong.cause, wrong.share, wrong.ranks)

    def survey(self) -> None:
        """Count the right tensors of the forward of a right step, and those not aligned."""
        for place, (spot, call) in enumerate(self.single.order):
            del place
            compared = self.comparison.compare(VALUES, spot, call)
            if compared.status in (RIGHT, SUMMAND):
                self.judge.count(compared.share)
            elif compared.status != ABSENT and self.number == 0:
                self.judge.verdict.unaligned.append(_spot_text(spot))

    def _compared(self, kind: str) -> list[Compared]:
        scales = self.scales if kind == GRADIENTS else None
        return [self.comparison.compare(kind, spot, call, scales) for spot, call in self.single.order]

    def _forward(self) -> Found | None:
        every = self._compared(VALUES)
        culprit = self._first(every, [*range(len(every))], self._upstream())
        if culprit is None:
            return None
        return self._blame(FORWARD, every[culprit])

    def _upstream(self) -> list[int]:
        """Return for each tensor those that it depends on, as bits."""
        known = self.single.upstream
        if known and any(known):
            # Tensors without a gradient: all before may be upstream.
            return [bits or (1 << at) - 1 if at and not bits else bits for at, bits in enumerate(known)]
        return [(1 << at) - 1 for at in range(len(self.single.order))]

    def _first(
        self, every: Sequence[Compared], order: Sequence[int], upstream: Sequence[int], cleared: int = 0
    ) -> int | None:
        """Return the first tensor that is wrong, and that no right one depends on.

        Args:
            every: All tensors.
            order: Their numbers in the order in which they are computed.
            upstream: By number the tensors that it depends on, as bits.
            cleared: Tensors that are right for another reason, as bits.
        """
        for number in order:
            if every[number].status == RIGHT:
                cleared |= upstream[number]
        bad = [
            number
            for number in order
            if not cleared >> number & 1
            and (
                every[number].status == WRONG
                or (every[number].status == SUMMAND and not every[number].is_declared)
            )
        ]
        return min(bad, key=lambda number: every[number].order, default=None)

    def _blame(self, direction: str, compared: Compared) -> Found:
        spot = compared.spot
        is_back = direction == BACKWARD
        module = self._owner(spot, is_back=is_back)
        started = None if is_back or self.number else self._wrong_start(module)
        if started is not None:
            return started
        if compared.status == SUMMAND:
            what = f"the gradient of its {spot.side}" if is_back else f"its {spot.side}"
            axes = compared.axes
            cause = f"{what} is a partial sum: not reduced over {'/'.join(axes)}"
            hint = f"expected an all_reduce on '{'/'.join(axes)}'"
            module = spot.module or MODEL
            ranks: Sequence[int] = range(self.layout.num_ranks)
        else:
            axes, cause = causes.explain(self.comparison, compared, self.judge, is_back=is_back)
            hint, ranks = "", compared.wrong_ranks
        return Found(direction, module, axes, cause, compared.relative_error, ranks, place=self._place(spot, module), hint=hint)

    def _wrong_start(self, module: str) -> Found | None:
        """Return that a module that gives wrong values began with a wrong buffer or parameter."""
        judge = self.judge
        prefix = "" if module == MODEL else f"{module}."
        for name, want in judge.reference.record.initial_buffers.items():
            if not name.startswith(prefix) or (not prefix and "." in name):
                continue
            wrong = [
                rank
                for rank, record in enumerate(judge.ranks)
                if name in record.initial_buffers
                and record.initial_buffers[name].value.shape == want.value.shape
                and not is_close(record.initial_buffers[name].value, want.value)
            ]
            if wrong:
                text = f"the buffer {name} is not the single program's from the start"
                axes = causes.varying(self.layout, wrong)
                return Found(INITIAL, module, axes, text, 1.0, wrong)
        return self._wrong_split(prefix)

    def _wrong_split(self, prefix: str) -> Found | None:
        """Return that a parameter is split along other axes than the others are."""
        split = {name: self._split_axes(name) for name in self.held_names()}
        usual = Counter(axes for axes in split.values() if axes)
        if len(usual) < 2:
            return None
        most = usual.most_common(1)[0][0]
        for name, axes in split.items():
            direct = name.startswith(prefix) and "." not in name[len(prefix) :]
            if direct and axes and axes != most and usual[axes] < usual[most]:
                text = f"{name} is split along {'/'.join(axes)}, others along {'/'.join(most)}"
                both = tuple(a for a in self.layout.axes if a in (*axes, *most))
                ranks = range(self.layout.num_ranks)
                text += ": the part of another rank"
                return Found(INITIAL, prefix[:-1] or MODEL, both, text, 1.0, ranks)
        return None

    def _split_axes(self, name: str) -> tuple[str, ...]:
        """Return the axes along which ranks hold different elements of a parameter."""
        held = {r: p[name] for r, p in enumerate(self.judge.places) if name in p}
        values = {rank: each.numpy().tobytes() for rank, each in held.items()}
        return causes.varying_values(self.layout, values)

    def _owner(self, spot: Spot, *, is_back: bool) -> str:
        """Return the module whose code lies between a tensor and the one before it."""
        if (spot.side == OUTPUT) != is_back:
            return spot.module or MODEL
        parent = spot.module.rpartition(".")[0]
        while parent.rpartition(".")[2].isdigit() and parent not in self.judge.reference.record.sites:
            parent = parent.rpartition(".")[0]
        kinds = self.judge.reference.record.kinds
        while kinds.get(parent) in ("ModuleList", "ModuleDict"):
            parent = parent.rpartition(".")[0]
        return parent or MODEL

    def _place(self, spot: Spot, module: str) -> str:
        for record in self.judge.ranks:
            home = record.homes.get("" if module == MODEL else module)
            site = record.sites.get(spot.module)
            if home is not None and (module == spot.module or site is None):
                return str(home)
            if site is not None:
                return str(site)
        return ""

    def _recomputed(self) -> Found | None:
        """Return the first module whose recomputation gives something else than its forward."""
        for spot, call in self.single.order:
            for rank, step in enumerate(self.ranks):
                again, first = step.again.get(spot, ()), step.values.get(spot, ())
                if spot.side != OUTPUT or call >= len(again) or len(again) > len(first):
                    continue
                if len(again) != len(first) and len(first) > 1:
                    continue
                one, other = again[call].value, first[call].value
                if one.shape == other.shape and not torch.equal(one, other):
                    error = (one - other).norm().item() / (other.norm().item() or 1.0)
                    cause = "recomputation gives other values than the forward: its random state or its input is not restored"
                    return Found(BACKWARD, spot.module or MODEL, (), cause, error, [rank])
        return None

    # ---- Backward ----

    def _loss_gradient(self) -> Found | None:
        """Find how the loss is scaled on each rank; return that it is another function."""
        spot = self._loss_spot()
        if spot is None:
            return None
        plain = {r: [1.0] * len(rows) for r, rows in enumerate(self.comparison.rows) if rows is not None}
        compared = self.comparison.compare(GRADIENTS, *spot, plain)
        if not compared.want and compared.status != RIGHT:
            return None
        if compared.status == RIGHT:
            self.scales = plain
            return None
        wants = compared.want
        for axes in [(), *((axis,) for axis in self.layout.axes)]:
            if any(a in self.comparison.data_axes or a in self.comparison.stage_axes for a in axes):
                continue
            scales: dict[int, list[float]] = {}
            misfits: dict[int, float] = {}
            for rank in compared.got:
                have = self.comparison.summed(compared.got, rank, axes)
                for got, want in zip(have, wants[rank], strict=True):
                    factor = (got * want).sum().item() / (want.square().sum().item() or 1.0)
                    error = (got - factor * want).norm().item()
                    tolerance = compared.tolerance * max(abs(factor), 1.0)
                    if error > tolerance:
                        misfits[rank] = max(misfits.get(rank, 0.0), error / (got.norm().item() or 1.0))
                    scales.setdefault(rank, []).append(factor)
            if not misfits:
                break
        else:
            got = {r: compared.got[r] for r in misfits}
            return self._misfit(compared, got, misfits)
        for rank, rows in enumerate(self.comparison.rows):
            if rank in scales or rows is None:
                continue
            peers = [p for p in self.layout.peers(rank, self.comparison.stage_axes) if p in scales]
            if peers and len(scales[peers[0]]) == len(rows):
                scales[rank] = scales[peers[0]]
        self.scales = scales
        return self._uneven(scales, wants)

    def _loss_spot(self) -> tuple[Spot, int] | None:
        """Return the last tensor with a gradient that ranks have."""
        for spot, call in reversed(self.single.order):
            if spot.side == OUTPUT and call in self.single.gradients.get(spot, ()):
                compared = self.comparison.compare(GRADIENTS, spot, call)
                if compared.got:
                    return spot, call
        return None

    def _misfit(self, compared: Compared, got: Mapping[int, Any], misfits: Mapping[int, float]) -> Found | None:
        if any(g.shape != w.shape for r in got for g, w in zip(got[r], compared.want.get(r, ()), strict=False)):
            return None
        axes, cause = causes.explain(self.comparison, compared, self.judge, is_back=True)
        varying = causes.varying(self.layout, sorted(misfits))
        return Found(LOSS, _LOSS_MODULE, varying or axes, f"the gradient of the model's output: {cause}", max(misfits.values()), sorted(misfits))

    def _uneven(self, scales: Mapping[int, Sequence[float]], wants: Mapping[int, Any]) -> Found | None:
        """Return that tokens weigh differently."""
        del wants
        every = [factor for each in scales.values() for factor in each if factor]
        if not every:
            return None
        low, high = min(every), max(every)
        if abs(high - low) <= 1e-7 * abs(high):
            return None
        by_rank = [sum(scales[r]) for r in sorted(scales)]
        differ = max(by_rank) - min(by_rank) > 1e-7 * abs(high)
        ranks = [r for r in scales if abs(sum(scales[r]) / len(scales[r]) - high) > 1e-7 * abs(high)]
        axes = causes.varying_values(self.layout, {r: round(sum(each), 9) for r, each in scales.items()}) if differ else ()
        over = "/".join(axes) if axes else "micro-batches"
        cause = f"tokens weigh {low:.4g} to {high:.4g} times as much as in the single program: a mean of means over {over}"
        return Found(LOSS, _LOSS_MODULE, tuple(axes), cause, high / low - 1 if low else 1.0, ranks)

    def _backward(self) -> Found | None:
        every = self._compared(GRADIENTS)
        upstream = self._upstream()
        downstream = [0] * len(every)
        for at, bits in enumerate(upstream):
            for other in range(len(every)):
                if bits >> other & 1:
                    downstream[other] |= 1 << at
        cleared = 0
        for name in self._right_gradients():
            number = list(self.single.parameter_gradients).index(name)
            for at, bits in enumerate(self.single.reads):
                if bits >> number & 1:
                    cleared |= 1 << at
        culprit = self._first(every, [*reversed(range(len(every)))], downstream, cleared)
        return None if culprit is None else self._blame(BACKWARD, every[culprit])

    def _right_gradients(self) -> list[str]:
        wrong = {each.name for each in self._wrong_parameters("parameter_gradients")}
        return [
            name
            for name, each in self.single.parameter_gradients.items()
            if each is not None
            and name not in wrong
            and each.value.dim() > 1  # That of a bias forgets the order of rows.
            and any(step.parameter_gradients.get(name) is not None for step in self.ranks)
        ]

    # ---- Gradients of parameters, and the optimizer's step ----

    def _gradients(self) -> Found | None:
        wrong = [*self._wrong_parameters("parameter_gradients")]
        if not wrong:
            return self._lost_gradients()
        told = why_gradients(self, wrong)
        if told is None:
            told = self._as_sum(wrong) or ((), "differ", list(dict.fromkeys(e.name for e in wrong)))
        return self._of_parameters(PARAMETER_GRADIENTS, wrong, told)

    def _of_parameters(self, direction: str, wrong: Sequence[Wrong], told: Reason) -> Found:
        axes, cause, names = told
        error = max(each.relative_error for each in wrong)
        ranks = sorted({each.rank for each in wrong if each.name in names})
        return self._named(direction, names, axes, cause, error, ranks)

    def _as_sum(self, wrong: Sequence[Wrong]) -> Reason | None:
        """Explain wrong gradients by how often they count each part of the batch."""
        spot, runner = self._loss_spot(), self.judge.runner
        if spot is None or runner is None:
            return None
        parts = Contributions(self.comparison, runner, self.number, spot)
        names = list(dict.fromkeys(each.name for each in wrong))
        for each in sorted(wrong, key=lambda each: -each.got.numel()):
            places = self._places_within(each.name)
            if each.rank not in places or places[each.rank].shape != each.got.shape:
                continue
            written = parts.written(each.name, each.got, places, each.rank)
            told = None if written is None else parts.explain(each.rank, written)
            if told is not None:
                return *told, names
        return None

    def _places_within(self, name: str) -> dict[int, torch.Tensor]:
        """Return by rank which elements of a parameter it holds, numbered within it."""
        elements = self.judge.elements
        if name not in elements.shapes:
            return {}
        start, count = elements.starts[name], elements.shapes[name].numel()
        within = {r: p[name] - start for r, p in enumerate(self.judge.places) if name in p}
        return {r: p for r, p in within.items() if bool(((p >= 0) & (p < count)).all())}

    def _lost_gradients(self) -> Found | None:
        """Return parameters without a gradient on ranks where the step is wrong, too."""
        wrong = {(each.name, each.rank) for each in self._wrong_parameters("parameters")}
        lost = [
            (name, rank)
            for name, rank in sorted(wrong)
            if self.single.parameter_gradients.get(name) is not None
            and self.ranks[rank].parameter_gradients.get(name) is None
        ]
        if not lost:
            return None
        ranks = sorted({rank for _, rank in lost})
        cause = f"no gradient on {ranks_text(ranks)}"
        axes = causes.varying(self.layout, ranks)
        return self._named(PARAMETER_GRADIENTS, [n for n, _ in lost], axes, cause, 1.0, ranks)

    def _named(self, direction: str, names: Sequence[str], axes: tuple[str, ...], cause: str, error: float, ranks: Sequence[int]) -> Found:
        """Return what is found of some parameters."""
        return Found(direction, modules_text(names, self.held_names()), axes, f"{cause}: {names_text(names, self.held_names())}", error, ranks)

    def held_names(self) -> list[str]:
        """Return the parameters that any rank holds."""
        return list(dict.fromkeys(name for places in self.judge.places for name in places))

    def _wrong_loss(self) -> Found | None:
        if self._is_loss_right(strict=True):
            return None
        losses = self._losses()
        want = self.single.loss.item() if self.single.loss is not None else 0.0
        got = next(iter(losses.values()))
        axes = tuple(self.comparison.data_axes) or tuple(self.layout.axes)
        cause = f"the loss is {got:.6g} and not {want:.6g}: {got / want if want else 0:.4g} of it"
        return Found(LOSS, _LOSS_MODULE, axes, cause, abs(got - want) / (abs(want) or 1.0), sorted(losses))

    def _update(self) -> Found | None:
        wrong = [*self._wrong_parameters("parameters")]
        if wrong:
            return self._of_parameters(STEP, wrong, why_step(self, wrong))
        return self._buffer()

    def _buffer(self) -> Found | None:
        """Return the first buffer that differs after the step."""
        found = [*self._wrong_buffers()]
        if not found:
            return None
        name, _, error = found[0]
        ranks = [rank for other, rank, _ in found if other == name]
        have = {
            rank: step.buffers[name].value.double()
            for rank, step in enumerate(self.ranks)
            if name in step.buffers
        }
        want = self.single.buffers[name].value.double()
        axes = causes.varying(self.layout, ranks)
        cause = "it was not updated as in the single program"
        for axis in self.layout.axes:
            groups = [[have[r] for r in group if r in have] for group in self.layout.groups([axis])]
            if any(not torch.equal(each, group[0]) for group in groups for each in group):
                axes = axes or (axis,)
                cause = f"ranks of {axis} have different values: not synchronized"
                mean = torch.stack(groups[0]).mean(0)
                if (mean - want).norm().item() <= 1e-9 * (want.norm().item() or 1.0):
                    cause += "; their mean is right"
        module = _module_of(name) if "." in name else MODEL
        axes = axes or tuple(self.comparison.data_axes) or tuple(self.layout.axes)
        text = f"the buffer {name} differs after the step: {cause}"
        return Found(STEP, module, axes, text, error, ranks)


def _spot_text(spot: Spot) -> str:
    index = f" {spot.index}" if spot.index else ""
    return f"{spot.module or MODEL}: {spot.side}{index}"


def names_text(names: Sequence[str], every: Sequence[str]) -> str:
    """Return `3 of 20 parameters, first a.weight`."""
    unique = list(dict.fromkeys(names))
    text = f"{len(unique)} of {len(every)} parameters"
    return text if len(unique) == len(every) else f"{text}, {', '.join(unique[:3])}"


def modules_text(names: Sequence[str], every: Sequence[str]) -> str:
    """Return the modules of some parameters: `layers.*.norm` where it is each layer's."""
    unique = list(dict.fromkeys(names))
    if len(unique) > _NEARLY_ALL * len(every):
        return WHOLE
    wrong = dict.fromkeys(map(_module_of, unique))
    known = dict.fromkeys(map(_module_of, every))
    found: dict[str, None] = {}
    for module in wrong:
        pattern = _pattern(module)
        alike = [each for each in known if _pattern(each) == pattern]
        is_each = len(alike) > 1 and all(each in wrong for each in alike)
        found[pattern if is_each else module] = None
    text = ", ".join(list(found)[:_MAX_NAMED])
    return text if len(found) <= _MAX_NAMED else f"{text} and {len(found) - _MAX_NAMED} more"


def _pattern(module: str) -> str:
    """Return a name with `*` in place of numbers."""
    return ".".join("*" if part.isdigit() else part for part in module.split("."))
