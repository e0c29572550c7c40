"""The start: the elements of the single program's parameters that ranks hold."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch

from simrank.equality.alignment import Elements, is_close
from simrank.equality.layout import varying, varying_values
from simrank.equality.verdict import INITIAL, MODEL, Found, module_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simrank.equality.layout import Layout
    from simrank.equality.record import Record
    from simrank.equality.runs import Reference


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
        self.elements = Elements(reference.record.initial)
        self.places: list[dict[str, torch.Tensor]] = [{} for _ in ranks]
        self._columns: dict[tuple[str, int], torch.Tensor | None] = {}

    def align(self) -> Found | None:
        """Find the elements of each rank's parameters; return the first that has others."""
        strange: list[tuple[str, int]] = []
        for rank, record in enumerate(self.ranks):
            for name, each in record.initial.items():
                places = self.elements.find(name, each.value)
                if places is None:
                    strange.append((name, rank))
                else:
                    self.places[rank][name] = places
        for name, rank in strange:
            if not self._is_padding(name, rank):
                return self._strange(name)
        return self._missing()

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

    def _strange(self, name: str) -> Found:
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
        return Found(INITIAL, module_of(name), axes, cause, ranks=wrong)

    def _missing(self) -> Found | None:
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
            if gradient is None:  # Nobody trains it: a rank may leave it out.
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
        return Found(INITIAL, module_of(name), alike, cause, ranks=ranks)

    # ---- Of a module that gives wrong values ----

    def blame(self, module: str) -> Found | None:
        """Return that a module began with a wrong buffer, or a parameter split in another way."""
        prefix = "" if module == MODEL else f"{module}."
        return self._wrong_buffer(module, prefix) or self._wrong_split(module, prefix)

    def _wrong_buffer(self, module: str, prefix: str) -> Found | None:
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
                return Found(INITIAL, module, varying(self.layout, wrong), text, ranks=wrong)
        return None

    def _wrong_split(self, module: str, prefix: str) -> Found | None:
        split = {name: self.split_axes(name) for name in self.held_names()}
        usual = Counter(axes for axes in split.values() if axes)
        if len(usual) < 2:
            return None
        most = usual.most_common(1)[0][0]
        for name, axes in split.items():
            is_direct = name.startswith(prefix) and "." not in name[len(prefix) :]
            is_other = not set(axes) < set(most)  # A part may be whole along some.
            if is_direct and axes and usual[axes] < usual[most] and is_other:
                both = tuple(a for a in self.layout.axes if a in (*axes, *most))
                text = (
                    f"{name} is split along {'/'.join(axes)}, others along {'/'.join(most)}: "
                    "the part of another rank"
                )
                return Found(INITIAL, module, both, text, ranks=range(self.layout.num_ranks))
        return None
