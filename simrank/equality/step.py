"""Steps of all ranks from the start on: what training has of them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import torch

from simrank.equality.alignment import Cut, ParameterElements, cut_of, cuts, is_close
from simrank.equality.comparison import StepComparison, tolerance_of
from simrank.equality.dropouts import Masks
from simrank.equality.layout import varying, varying_values
from simrank.equality.record import INPUT, OPAQUE, OUTPUT, PARTIAL, Spot, calls_text
from simrank.equality.verdict import INITIAL, MODEL, FirstDifference, Tally, module_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from simrank.equality.layout import Layout
    from simrank.equality.record import Record, Reference, Step, Taped

_SAME = 1e-9  # Of losses.
_TELLING = 0.01  # Of a step: a larger tolerance hides a wrong gradient; assumed.
STEP_GRADIENTS, PARAMETERS, BUFFERS = "parameter_gradients", "parameters", "buffers"  # Of a step.


class Wrong(NamedTuple):
    """A parameter of one rank that differs.

    Attributes:
        name: Its name.
        rank: The rank.
        error: Norm of the difference.
        got: The rank's tensor, or its gradient.
        want: What it should be.
        tolerance: Of the error.
    """

    name: str
    rank: int
    error: float
    got: torch.Tensor
    want: torch.Tensor
    tolerance: float

    @property
    def relative_error(self) -> float:
        """Return the error as a part of what it should be."""
        return self.error / (self.want.norm().item() or 1.0)


class AtStep:
    """One training step.

    Args:
        start: The ranks and the single program, aligned.
        number: The step, from 0.
        excluded: Modules that are not compared.

    Attributes:
        comparison: Of the tensors that pass modules.
        single: The step of the single program.
        ranks: The step of each rank.
        masks: Of dropouts.
        tally: What was compared.
        unlike: States of optimizers that differ on some of the ranks that hold their elements, and
            may be of no use there, or by a factor, and may be scaled as the rate is.
        unaligned: Buffers of which a rank has a part that is not found in the single program's.
    """

    def __init__(self, start: Start, number: int, excluded: Sequence[str] = ()) -> None:
        self.start, self.layout, self.number = start, start.layout, number
        self.comparison = StepComparison(
            start.reference, start.ranks, start.layout, number, start.columns
        )
        self.single, self.ranks = self.comparison.single, self.comparison.ranks
        self.masks = Masks(self.comparison, lambda: bool(self.axes_of_losses()))
        self.tally = Tally()
        self.unlike: dict[str, None] = {}
        self.unaligned: dict[str, None] = {}
        self._excluded = excluded

    @property
    def num_calls(self) -> int:
        """Return the most calls of the model, one per micro-batch, on any rank."""
        return max((len(rows) for rows in self.comparison.rows if rows is not None), default=1)

    def is_wrong(self) -> bool:
        """Return whether parameters, buffers, masks of dropouts or the loss differ."""
        return bool(
            self.wrong_parameters(PARAMETERS)
            or self.wrong_hidden_gradients()
            or self.wrong_buffers()
            or self.masks.wrong() is not None
            or not self.is_loss_right(strict=True)
        )

    def is_excluded(self, name: str) -> bool:
        """Return whether a module, or the module of a parameter, is not compared."""
        return any(name == each or name.startswith(f"{each}.") for each in self._excluded)

    def calls_before(self, rank: int, order: int, *, is_back: bool) -> str:
        """Return the collectives between a tensor of a rank and the one that passed before it.

        In a backward both are gradients.
        """
        step = self.ranks[rank]
        if is_back:
            orders = [each.order for calls in step.gradients.values() for each in calls.values()]
        else:
            orders = [each.order for calls in step.values.values() for each in calls]
        before = max((each for each in orders if each < order), default=step.span[0])
        return self._calls(rank, before, order)

    def without_counterpart(self, rank: int, module: str) -> str:
        """Return the calls of a module's forward over groups that its backward has no call of."""
        step, calls = self.ranks[rank], self.start.ranks[rank].calls
        outs = step.values.get(Spot(module, OUTPUT, 0), [])
        ins = [each for spot, each in step.values.items() if spot[:2] == (module, INPUT)]
        back = [
            each.order
            for spot, by_call in step.gradients.items()
            if spot.module == module
            for each in by_call.values()
        ]
        given = {call.group for call in calls if back and min(back) < call.order < max(back)}
        lost = [
            call
            for number, out in enumerate(outs)
            for call in calls
            if call.group not in given
            and any(number < len(e) and e[number].order < call.order < out.order for e in ins)
        ]
        return calls_text(lost, self.layout)

    def calls_after_forward(self, rank: int) -> str:
        """Return the collectives of a rank's backward and of everything after it."""
        step = self.ranks[rank]
        last = max((e.order for calls in step.values.values() for e in calls), default=step.span[0])
        return self._calls(rank, last, step.span[1])

    def _calls(self, rank: int, low: int, high: int) -> str:
        calls = self.start.ranks[rank].calls
        return calls_text((call for call in calls if low < call.order < high), self.layout)

    # ---- Parameters ----

    def wrong_parameters(self, kind: str) -> list[Wrong]:
        """Return the wrong tensors of all ranks: STEP_GRADIENTS, PARAMETERS, or a state."""
        tensors = _tensors(self.single, kind)
        elements = self.start.elements
        flat = elements.flat(tensors)
        tolerances = {name: self._tolerance(kind, name) for name in elements.shapes}
        found = []
        for rank, places in enumerate(self.start.places):
            for name, at in places.items():
                got = None if self.is_excluded(name) else self.whole(kind, name, rank)
                if got is None:
                    continue
                if got.numel() == at.numel():
                    known = at.view(got.shape)
                elif got.shape == elements.shapes.get(name):  # Of the whole of a split parameter.
                    span = elements.span(name)
                    known = torch.arange(span.start, span.stop).view(got.shape)
                else:
                    continue
                want = torch.where(known >= 0, flat[known.clamp(min=0)], 0.0)
                if bool(want.isnan().all()) or (kind in self.single.states and want.isnan().any()):
                    continue  # The single program has none.
                got = torch.where(known >= 0, got.double(), 0.0)
                tolerance = self._tolerance_at(name, known, tolerances)
                error = (got - want).norm().item()
                is_right = error <= tolerance
                self.tally.add(module_of(name), error / (tolerance or 1.0), is_right=is_right)
                if not is_right:
                    found.append(Wrong(name, rank, error, got, want, tolerance))
        return found

    def wrong_hidden_gradients(self) -> list[Wrong]:
        """Return wrong gradients of elements whose step does not tell, on all ranks that hold them.

        A step tells little of a gradient if rounding of the parameter hides it, or if the step
        changes nothing (a warm-up begins at a rate of zero, an optimizer accumulates).
        """
        hidden = {name for name in self.start.elements.shapes if self._is_hidden(name)}
        if not hidden:
            return []
        wrong = [each for each in self.wrong_parameters(STEP_GRADIENTS) if each.name in hidden]
        counts = Counter(each.name for each in wrong)
        holders = Counter(
            name
            for step in self.ranks
            for name in hidden
            if step.parameter_gradients.get(name) is not None
        )
        return [each for each in wrong if counts[each.name] == holders[each.name]]

    def wrong_states(self) -> dict[str, list[Wrong]]:
        """Return by name the states of optimizers that differ on all ranks that hold the elements.

        A factor that all of one name have is none: a rate can make up for it.
        """
        found = {}
        for kind in self.single.states:
            wrong = self.wrong_parameters(kind)
            bad = {(each.name, each.rank) for each in wrong}
            right = {
                (name, self._part(name, rank))
                for rank, step in enumerate(self.ranks)
                for name in step.states.get(kind, ())
                if (name, rank) not in bad and name in self.start.places[rank]
            }
            everywhere = [e for e in wrong if (e.name, self._part(e.name, e.rank)) not in right]
            if everywhere and not _are_multiples(wrong):
                found[kind] = everywhere
            elif wrong:
                self.unlike[f"{kind} of {wrong[0].name}: another on rank {wrong[0].rank}"] = None
        return found

    def _part(self, name: str, rank: int) -> bytes:
        found: bytes = self.start.places[rank][name].numpy().tobytes()
        return found

    def _is_hidden(self, name: str) -> bool:
        """Return whether what a step does to a parameter tells little of its gradient."""
        record = self.start.reference.record
        before = record.steps[self.number - 1].parameters if self.number else record.initial
        gradient, after = self.single.parameter_gradients.get(name), self.single.parameters[name]
        if gradient is None or not gradient.value.norm().item():
            return False
        change = (after.value.double() - before[name].value.double()).norm().item()
        return self._tolerance(PARAMETERS, name) > _TELLING * change

    def _tolerance(self, kind: str, name: str) -> float:
        whole = _tensors(self.single, kind).get(name)
        if whole is None:
            return 0.0
        noisy = [_tensors(step, kind).get(name) for step in self.comparison.noisy]
        errors = [each.value.item() for each in noisy if each is not None]
        return tolerance_of(whole.value, errors, self.comparison.epsilon)

    def _tolerance_at(
        self, name: str, places: torch.Tensor, tolerances: Mapping[str, float]
    ) -> float:
        """Return the tolerance of a parameter, or of those whose elements it has."""
        if name in tolerances:
            return tolerances[name]
        known = places[places >= 0]
        names = {self.start.elements.name_of(int(at)) for at in (known.min(), known.max())}
        return math.hypot(*(tolerances[each] for each in names))

    def whole(self, kind: str, name: str, rank: int) -> torch.Tensor | None:
        """Return a rank's tensor; one that a DTensor declares a partial sum is summed."""
        each = _tensors(self.ranks[rank], kind).get(name)
        if each is None:
            return None
        axes = [axis for axis, at in (each.places or {}).items() if at == PARTIAL]
        value: torch.Tensor = each.value
        if not axes:
            return value
        peers = [_tensors(self.ranks[r], kind).get(name) for r in self.layout.peers(rank, axes)]
        return torch.stack([peer.value for peer in peers if peer is not None]).sum(0)

    def earlier(self, kind: str, name: str, rank: int) -> torch.Tensor | None:
        """Return a rank's part of a tensor of the single program at the step before."""
        tensors = getattr(self.start.reference.record.steps[self.number - 1], kind)
        places = self.start.places[rank].get(name)
        if places is None:
            return None
        return self.start.elements.flat(tensors)[places.clamp(min=0)]

    # ---- Buffers and the loss ----

    def wrong_buffers(self) -> list[tuple[str, int, float]]:
        """Return name, rank and relative error of buffers that a step changes, and that differ."""
        found = []
        before = self.start.reference.record.initial_buffers
        for name, each in self.single.buffers.items():
            is_state = name not in before or not torch.equal(before[name].value, each.value)
            if not is_state or self.is_excluded(name):
                continue
            tolerance = self._tolerance(BUFFERS, name)
            for rank, step in enumerate(self.ranks):
                mine = step.buffers.get(name)
                if mine is None:
                    continue
                want = self.start.part_of_buffer(name, each.value, rank, mine.value.shape)
                if want is None:
                    shapes = f"{tuple(mine.value.shape)} of {tuple(each.value.shape)}"
                    self.unaligned[f"buffer {name}: {shapes}"] = None
                    continue
                want = want.double()
                error = (mine.value.double() - want).norm().item()
                is_right = error <= tolerance
                self.tally.add(module_of(name), error / (tolerance or 1.0), is_right=is_right)
                if not is_right:
                    found.append((name, rank, error / (want.norm().item() or 1.0)))
        return found

    def losses(self) -> dict[int, float]:
        """Return the losses of the ranks that have one."""
        return {
            rank: step.loss.item()
            for rank, step in enumerate(self.ranks)
            if step.loss is not None and step.loss.numel() == 1
        }

    def is_loss_right(self, *, strict: bool) -> bool:
        """Return whether the ranks' losses are, or add up to, that of the single program.

        Args:
            strict: Only a loss that all ranks agree on, and that is another, is wrong, and one that
                ranks with the same rows do not agree on: the loss of a rank's own rows may be
                weighted in any way. A sum over the elements of the batch is right, too.
        """
        losses = list(self.losses().values())
        single = self.single.loss
        if not losses or single is None:
            return strict
        tolerance = self._tolerance_of_loss(single)
        want, total = single.item(), sum(losses)
        if min(abs(total / len(losses) - want), abs(total - want)) <= tolerance * len(losses):
            return True
        if strict and self.num_summed:
            return True
        are_alike = max(losses) - min(losses) <= tolerance
        is_whole = len(losses) > 1 or not self.comparison.data_axes
        return strict and not (are_alike and is_whole) and not self.axes_of_losses()

    def _tolerance_of_loss(self, single: torch.Tensor) -> float:
        noisy = self.comparison.noisy
        errors = [step.loss.item() for step in noisy if step.loss is not None]
        return tolerance_of(single, errors, self.comparison.epsilon)

    @property
    def num_summed(self) -> int:
        """The elements of the batch over which ranks' losses are sums, not means; 0: they are not.

        What a trainer logs may be such a sum; the gradients tell whether it was used.
        """
        losses, single = list(self.losses().values()), self.single.loss
        if not losses or single is None or not single.item():
            return 0
        number = sum(losses) / len(losses) / single.item()
        inputs = [calls for spot, calls in self.single.values.items() if spot[:2] == ("", INPUT)]
        counts = {n for calls in inputs for n in _counts([each.value for each in calls])}
        found = round(number)
        is_sum = found in counts and abs(number - found) <= _SAME * found
        return found if is_sum and max(losses) - min(losses) <= _SAME * max(losses) else 0

    def axes_of_losses(self) -> tuple[str, ...]:
        """Return the axes along which ranks with the same rows have losses that do not add up."""
        losses, single = self.losses(), self.single.loss
        if single is None or not losses:
            return ()
        tolerance = self._tolerance_of_loss(single) * len(losses)
        total, want = sum(losses.values()), single.item()
        if any(abs(total / count - want) <= tolerance for count in range(1, len(losses) + 1)):
            return ()
        found = []
        taken = (*self.comparison.data_axes, *self.comparison.stage_axes)
        for axis in self.layout.axes:
            groups = [
                [losses[rank] for rank in group if rank in losses]
                for group in self.layout.groups([axis])
            ]
            if axis not in taken and any(g and max(g) - min(g) > tolerance for g in groups):
                found.append(axis)
        return tuple(found)


def _tensors(step: Step, kind: str) -> Mapping[str, Taped | None]:
    """Return the tensors of a step by parameter: of STEP_GRADIENTS, PARAMETERS, ... or a state."""
    kinds = STEP_GRADIENTS, PARAMETERS, BUFFERS
    found: Mapping[str, Taped | None] = (
        getattr(step, kind) if kind in kinds else step.states.get(kind, {})
    )
    return found


def _are_multiples(wrong: Sequence[Wrong]) -> bool:
    """Return whether all tensors are one multiple of what they should be."""
    got, want = (torch.cat([each.flatten() for each in e]) for e in
                 ([w.got for w in wrong], [w.want for w in wrong]))  # fmt: skip
    factor = (got * want).sum().item() / (want.square().sum().item() or 1.0)
    rest = (got - factor * want).norm().item()
    return bool(
        factor and rest <= max(math.hypot(*(e.tolerance for e in wrong)), _SAME * got.norm())
    )


def _counts(calls: Sequence[torch.Tensor]) -> set[int]:
    """Return the rows of a step's batch, and its rows times columns, where they are several."""
    shapes = [each.shape for each in calls if each.dim()]
    if not shapes:
        return set()
    rows = sum(shape[0] for shape in shapes)
    return {rows, rows * shapes[0][1:2].numel()} - {1}


# ---- the start: the elements of the single program's parameters that ranks hold ----


class Start:
    """The ranks' parameters before the first step.

    Args:
        reference: The single program.
        ranks: What the ranks did.
        layout: Where they stand.

    Attributes:
        elements: All elements of the single program's parameters.
        places: By rank and parameter the places of its elements among them.
    """

    def __init__(self, reference: Reference, ranks: Sequence[Record], layout: Layout) -> None:
        self.reference, self.ranks, self.layout = reference, ranks, layout
        self.elements = ParameterElements(reference.record.initial)
        self.places: list[dict[str, torch.Tensor]] = [{} for _ in ranks]
        self._columns: dict[tuple[str, int], torch.Tensor | None] = {}
        self._cuts: dict[str, Cut | None] = {}  # Of buffers.

    def align(self) -> FirstDifference | None:
        """Find the elements of each rank's parameters; return the first that has others."""
        strange: list[tuple[str, int]] = []
        known: dict[str, list[torch.Tensor]] = defaultdict(list)  # Replicas share theirs.
        for rank, record in enumerate(self.ranks):
            for name, each in record.initial.items():
                places = self.elements.find(name, each.value)
                if places is None:
                    strange.append((name, rank))
                    continue
                same = (one for one in known[name] if torch.equal(one, places))
                self.places[rank][name] = next(same, places)
                if self.places[rank][name] is places:
                    known[name].append(places)
        for name, rank in strange:
            is_quantized = self.reference.record.tolerance > 0  # Ranks have other values.
            if not is_quantized and not self._is_padding(name, rank):
                return self._strange(name)
        return self._missing() if not self.reference.record.tolerance else None

    def _is_padding(self, name: str, rank: int) -> bool:
        """Note as padding a part whose parameter other ranks, or its own first rows, have whole."""
        part = self.ranks[rank].initial[name].value
        shape = self.elements.shapes.get(name)
        if shape is None or not part.dim() or part.shape == shape or part.shape[1:] != shape[1:]:
            return False
        places = torch.full(part.shape, -1, dtype=torch.long)
        for count in range(len(part) - 1, 0, -1):
            found = self.elements.find(name, part[:count])
            if found is not None:
                places[:count] = found
                break
        self.places[rank][name] = places
        span = self.elements.span(name)
        held = [p[name].flatten() for p in self.places if name in p]
        known = torch.cat(held)
        if len(torch.unique(known[known >= 0])) == span.stop - span.start:
            return True
        del self.places[rank][name]
        return False

    def held_names(self) -> list[str]:
        """Return the parameters that any rank holds."""
        return list(dict.fromkeys(name for places in self.places for name in places))

    def split_axes(self, name: str) -> tuple[str, ...]:
        """Return the axes along which ranks hold different elements of a parameter."""
        held = {rank: places[name] for rank, places in enumerate(self.places) if name in places}
        values = {rank: each.numpy().tobytes() for rank, each in held.items()}
        return varying_values(self.layout, values)

    def places_within(self, name: str) -> dict[int, torch.Tensor]:
        """Return by rank which elements of a parameter it holds, numbered within it."""
        elements = self.elements
        if name not in elements.shapes:
            return {}
        start, count = elements.starts[name], elements.shapes[name].numel()
        within = {rank: p[name] - start for rank, p in enumerate(self.places) if name in p}
        return {rank: p for rank, p in within.items() if bool(((p >= 0) & (p < count)).all())}

    def columns(self, module: str, rank: int) -> torch.Tensor | None:
        """Return the rows of a module's parameters that a rank holds, if they are whole rows.

        They are the elements of the last dimension of its output, as of a linear layer that is
        split by its rows.
        """
        if (module, rank) not in self._columns:
            self._columns[module, rank] = self._find_columns(module, rank)
        return self._columns[module, rank]

    def _find_columns(self, module: str, rank: int) -> torch.Tensor | None:
        for name, places in self.places[rank].items():
            shape = self.elements.shapes.get(name)
            if shape is None or not len(shape) or name.rpartition(".")[0] != module:
                continue
            if not 0 < len(places) < shape[0] or places.shape[1:] != shape[1:]:
                continue
            first = places.flatten(1)[:, 0] if places.dim() > 1 else places
            within = first - self.elements.starts[name]
            rows = torch.div(within, shape[1:].numel(), rounding_mode="floor")
            if bool(((rows >= 0) & (rows < shape[0])).all()):
                return rows
        return None

    def notes(self) -> list[str]:
        """Note the parameters that have the values of others of the single program."""
        found = []
        for rank, places in enumerate(self.places):
            for name, each in places.items():
                known = each[each >= 0]
                if name in self.elements.shapes and len(known):
                    other = self.elements.name_of(int(known[0]))
                    if other != name and not self._are_tied(name, other):
                        found.append(f"rank {rank} has the single program's {other} as {name}")
        return found

    def _are_tied(self, name: str, other: str) -> bool:
        return any({name, other} <= set(tied) for tied in self.reference.record.aliases)

    def _strange(self, name: str) -> FirstDifference:
        """Return that a parameter has values that the single program has not."""
        wrong = [
            rank
            for rank, record in enumerate(self.ranks)
            if name in record.initial
            and self.elements.find(name, record.initial[name].value) is None
        ]
        axes = varying(self.layout, wrong) or tuple(self.layout.axes)
        cause = f"{name} has values that are no part of the single program's"
        if len(wrong) < self.layout.num_ranks:
            cause += ": not broadcast, or drawn from another seed"
        return FirstDifference(INITIAL, module_of(name), axes, cause, ranks=wrong)

    def _missing(self) -> FirstDifference | None:
        """Return that elements are on no rank."""
        held = torch.zeros(self.elements.count, dtype=torch.bool)
        for places in self.places:
            for each in places.values():
                held[each[each >= 0]] = True
        for tied in self.reference.record.aliases:  # They have the same elements.
            spans = [self.elements.span(name) for name in tied]
            every = torch.stack([held[span] for span in spans]).any(0)
            for span in spans:
                held[span] = every
        for name, gradient in self.reference.record.steps[0].parameter_gradients.items():
            if gradient is None:  # It is not trained: a rank may leave it out.
                held[self.elements.span(name)] = True
        if bool(held.all()):
            return None
        name = self.elements.name_of(int((~held).nonzero()[0, 0]))
        ranks = [rank for rank, places in enumerate(self.places) if name in places]
        alike = tuple(
            axis
            for axis in self.layout.axes
            if self.layout.axes[axis] > 1 and axis not in self.split_axes(name)
        )
        cause = f"{int((~held).sum())} elements are on no rank, first of {name}"
        if ranks and self.places[ranks[0]][name].numel() < self.elements.shapes[name].numel():
            cause += ": ranks hold the same part"
        return FirstDifference(INITIAL, module_of(name), alike, cause, ranks=ranks)

    def part_of_buffer(
        self, name: str, whole: torch.Tensor, rank: int, shape: torch.Size
    ) -> torch.Tensor | None:
        """Return the part of a buffer that a rank has, by where it began; None: unknown.

        Args:
            name: The buffer's.
            whole: The single program's values.
            rank: The rank.
            shape: Of the rank's buffer.
        """
        if shape == whole.shape:
            return whole
        if name not in self._cuts:
            self._cuts[name] = self._cut_of_buffer(name)
        how = self._cuts[name]
        return None if how is None else cut_of(whole, how, self.layout, self._at(rank))

    def _cut_of_buffer(self, name: str) -> Cut | None:
        """Return the cut of the single program's buffer that gives the initial buffers of ranks."""
        whole = self.reference.record.initial_buffers.get(name)
        parts = [record.initial_buffers.get(name) for record in self.ranks]
        first = next((part for part in parts if part is not None), None)
        if whole is None or first is None:
            return None
        for how in cuts(first.value.shape, whole.value.shape, self.layout, [*self.layout.axes]):
            wants = [cut_of(whole.value, how, self.layout, self._at(r)) for r in range(len(parts))]
            if all(
                part is None or (part.value.shape == want.shape and is_close(part.value, want))
                for part, want in zip(parts, wants, strict=True)
            ):
                return how
        return None

    # ---- What no comparison sees ----

    def not_seen(self) -> dict[str, list[str]]:
        """Return by kind the names of what no comparison has seen, with the reason."""
        single, ranks = self.reference.record, self.ranks
        every = [single, *ranks]
        found = {
            "arguments": self._unlike([each.arguments for each in every]),
            "attributes": self._unlike([each.attributes for each in every]),
            "buffers": self._unseen_buffers(),
            "dropouts": [f"{n}: off in both programs" for n in sorted(single.switched_off)],
            "optimizer_states": list(dict.fromkeys(n for each in every for n in each.optimizers)),
        }
        found["dropouts"] += dict.fromkeys(
            f"{module or MODEL}: {'not aligned' if not each.is_aligned else 'shards on the CPU'}"
            for record in ranks
            for step in record.steps
            for module, calls in step.dropped.items()
            for each in calls
            if not each.is_aligned or (any(each.cuts) and not each.has_own_numbers)
        )
        return {kind: names for kind, names in found.items() if names}

    def _unlike(self, every: Sequence[Mapping[str, set[str]]]) -> list[str]:
        """Return the values, those of the single program first, that are opaque or differ."""
        single = every[0]
        kinds = self.reference.record.kinds
        found: dict[str, None] = {}
        for name, texts in single.items():
            if any(text.startswith(OPAQUE) for text in texts):
                found[f"{name} {', '.join(sorted(texts))}"] = None
        for values in every[1:]:
            for name, texts in values.items():
                module = name.partition(":")[0] if ":" in name else module_of(name)
                if texts == single.get(name) or ("" if module == MODEL else module) not in kinds:
                    continue
                want = ", ".join(sorted(single.get(name, ["missing"])))
                found[f"{name} {', '.join(sorted(texts))}, and not {want}"] = None
        return list(found)

    def _unseen_buffers(self) -> list[str]:
        """Return buffers that ranks do not have, or that no step changes and that differ."""
        known, found = self.reference.record.initial_buffers, []
        for name, whole in known.items():
            last = self.reference.record.steps[-1].buffers.get(name)
            is_constant = last is not None and torch.equal(whole.value, last.value)
            held = {r: each.initial_buffers[name] for r, each in enumerate(self.ranks)
                    if name in each.initial_buffers}  # fmt: skip
            if not held:
                found.append(f"{name}: on no rank")
            for rank, each in held.items() if is_constant else ():
                part = self.part_of_buffer(name, whole.value, rank, each.value.shape)
                if part is None or not is_close(each.value, part):
                    found.append(f"{name}: a constant, another on rank {rank}")
                    break
        more = (name for record in self.ranks for name in record.initial_buffers)
        return found + [f"{n}: only on ranks" for n in dict.fromkeys(more) if n not in known]

    def _at(self, rank: int) -> dict[str, int]:
        return self.layout.coordinates(rank)

    # ---- Of a module that gives wrong values ----

    def blame(self, module: str) -> FirstDifference | None:
        """Return that a module began with a wrong buffer, or a parameter split in another way."""
        prefix = "" if module == MODEL else f"{module}."
        return self._wrong_buffer(module, prefix) or self._wrong_split(module, prefix)

    def _wrong_buffer(self, module: str, prefix: str) -> FirstDifference | None:
        for name, want in self.reference.record.initial_buffers.items():
            if not name.startswith(prefix) or (not prefix and "." in name):
                continue
            wrong = [
                rank
                for rank, record in enumerate(self.ranks)
                if name in record.initial_buffers
                and record.initial_buffers[name].value.shape == want.value.shape
                and not is_close(record.initial_buffers[name].value, want.value)
            ]
            if wrong:
                text = f"the buffer {name} is not the single program's from the start"
                return FirstDifference(
                    INITIAL, module, varying(self.layout, wrong), text, ranks=wrong
                )
        return None

    def _wrong_split(self, module: str, prefix: str) -> FirstDifference | None:
        split = {name: self.split_axes(name) for name in self.held_names()}
        usual = Counter(axes for axes in split.values() if axes)
        if len(usual) < 2:
            return None
        most = usual.most_common(1)[0][0]
        for name, axes in split.items():
            is_direct = name.startswith(prefix) and "." not in name[len(prefix) :]
            is_other = not (set(axes) < set(most) or set(most) < set(axes))  # Whole along some.
            if is_direct and axes and usual[axes] < usual[most] and is_other:
                both = tuple(a for a in self.layout.axes if a in (*axes, *most))
                text = (
                    f"{name} is split along {'/'.join(axes)}, others along {'/'.join(most)}: "
                    "the part of another rank"
                )
                return FirstDifference(
                    INITIAL, module, both, text, ranks=range(self.layout.num_ranks)
                )
        return None
