"""The first difference of a decoding step: of what a module gives, a token, or a cache.

There is no backward, and so no graph of what depends on what. A module whose output is right clears
all that passed within it, and a right output of the whole step all of the step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from simrank.equality.comparison import ABSENT, RIGHT, SUMMAND, UNALIGNED, VALUES, WRONG
from simrank.equality.layout import varying_values
from simrank.equality.record import GENERATED, INPUT, OUTPUT
from simrank.equality.search import Search
from simrank.equality.verdict import FORWARD, GENERATE, MODEL, FirstDifference, module_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simrank.equality.comparison import Compared
    from simrank.equality.record import Spot
    from simrank.equality.step import AtStep

_DIMS_OF_CACHE = 3  # At least, of keys and values: rows, positions, and what a head has.
_ALIKE = 1e-7  # Relative, of elements.


class DecodingSearch(Search):
    """Looks for the first difference of a decoding step.

    Args:
        at: The step.

    Attributes:
        culprit: The tensor in which it was found; None: none was, or a cache.
    """

    def __init__(self, at: AtStep) -> None:
        super().__init__(at)
        self.culprit: Compared | None = None

    def first(self, *, has_wrong_cache: bool = False) -> FirstDifference | None:
        """Return the first difference of the step.

        Args:
            has_wrong_cache: Whether a cache differed before: the first module that reads it counts.
        """
        every = self._with_open_integers(self._compared(VALUES))
        if has_wrong_cache:
            every = [replace(e, status=UNALIGNED) if self._is_given(e) else e for e in every]
        within = self._comparison.single.within
        cleared = 0
        for number, compared in enumerate(every):
            if compared.status == RIGHT and compared.spot.module != GENERATED:
                cleared |= within[number]
        last = next((e for e in reversed(every) if _is_output(e)), None)
        if last is not None and last.status == RIGHT:  # All else was of no consequence.
            cleared |= sum(1 << n for n, e in enumerate(every) if e.spot.module != GENERATED)
        if any(self._is_wrong(e) for n, e in enumerate(every) if not cleared >> n & 1):
            before = [(1 << number) - 1 for number in range(len(every))]
            culprit = self._first(every, before, cleared, clears=False)
            assert culprit is not None
            if culprit.status == SUMMAND:
                culprit = self._reduced_wrongly(every, culprit)
            self.culprit = culprit
            return self._blame(FORWARD, culprit)
        return None

    def _is_given(self, compared: Compared) -> bool:
        """Return whether a module takes a cache as the step before has left it."""
        if compared.spot.side != INPUT or compared.status != WRONG:
            return False
        given = self._comparison.single.values[compared.spot][compared.call].value
        before = self._at.start.reference.record.steps[self._at.number - 1].caches.values()
        return any(given.shape == e.value.shape and torch.equal(given, e.value) for e in before)

    def near_tie(self) -> str:
        """Return words for a token that differs where logits are closer than is allowed; or ""."""
        compared, declared = self.culprit, self._comparison.declared
        if compared is None or not declared or not compared.wrong_ranks:
            return ""
        text = ""
        for rank in compared.wrong_ranks:
            got, want = (each[rank][0] for each in (compared.got, compared.want))
            if got.is_floating_point() or not got.dim():
                return ""
            rows = got.flatten(1) if got.dim() > 1 else got[:, None]
            wanted = want.reshape(rows.shape)
            number = self._at.number - (compared.spot.module != GENERATED)
            logits = next(self._logits(number, rank, len(rows)), None)
            if logits is None or not torch.equal(rows[:, :-1], wanted[:, :-1]):
                return ""
            own, right = rows[:, -1], wanted[:, -1]
            every = torch.cat([own, right])
            if int(every.min()) < 0 or int(every.max()) >= logits.shape[-1]:
                return ""
            apart = (logits.gather(-1, right[:, None]) - logits.gather(-1, own[:, None]))[:, 0]
            if bool((apart.abs() > 2 * declared * logits.abs().amax(-1)).any()):
                return ""
            row = int((own != right).nonzero()[0])
            text = text or (
                f"rank {rank} chooses {int(own[row])} and not {int(right[row])}, whose logits are "
                f"{float(apart[row]):.3g} apart"
            )
        return text

    def partial_output(self) -> FirstDifference | None:
        """Return that what the model gives in the step is a partial sum, if it is."""
        for spot, call in reversed(self._comparison.single.order):
            compared = self._comparison.compare(VALUES, spot, call)
            if _is_output(compared):
                is_partial = compared.status == SUMMAND and not compared.is_declared
                return self._blame(FORWARD, compared) if is_partial else None
        return None

    def _is_wrong(self, compared: Compared) -> bool:
        """Return whether a tensor is wrong; a partial sum is if it is returned."""
        is_returned = compared.spot.module == GENERATED and compared.status == SUMMAND
        is_wrong = compared.status == WRONG or is_returned
        return is_wrong and not self._at.is_excluded(compared.spot.module)

    def _with_open_integers(self, every: Sequence[Compared]) -> list[Compared]:
        """Return comparisons, integers of modules within whose outputs are not wrong left out.

        Ranks count some of them from their own first row of a table, or expert.
        """
        single = self._comparison.single
        wrong = {e.spot.module for e in every if e.spot.side == OUTPUT and e.status == WRONG}
        return [
            replace(each, status=UNALIGNED)
            if each.status == WRONG
            and each.spot.side == INPUT
            and each.spot not in single.names
            and each.spot.module not in wrong
            and not single.values[each.spot][each.call].value.is_floating_point()
            else each
            for each in every
        ]

    def cache(self) -> FirstDifference | None:
        """Return the first cache that differs after the step."""
        for name, each in self._comparison.single.caches.items():
            module = module_of(name)
            is_held = module not in self._record.kinds and module != MODEL
            if not _is_cache(each.value) or self._at.is_excluded(module):
                continue
            if is_held and self._comparison.stage_axes:  # A stage counts its own from zero.
                continue
            compared = self._comparison.compare_cache(name)
            if compared.status == WRONG:
                cause = f"the cache {name} after the step {_elements(compared)}"
                error, wrong = compared.relative_error, compared.wrong_ranks
                return FirstDifference(
                    FORWARD, module, self._axes_of(compared), cause, error, wrong
                )
        return None

    # ---- Causes ----

    def _owner(self, spot: Spot, *, is_back: bool) -> str:
        if spot.module == GENERATED or spot in self._comparison.single.names:
            return GENERATE
        return super()._owner(spot, is_back=is_back)

    def _explain(self, compared: Compared, *, is_back: bool) -> tuple[tuple[str, ...], str]:
        spot = compared.spot
        is_integer = any(not c.is_floating_point() for e in compared.got.values() for c in e)
        if not is_integer and spot.module != GENERATED:
            module = self._owner(spot, is_back=is_back)
            return self._replica(module) or super()._explain(compared, is_back=is_back)
        name = self._comparison.single.names.get(spot) or self._record.keywords.get(spot)
        what = f"{name or f'input {spot.index}'} of {spot.module or 'the model'}"
        if spot.module == GENERATED:
            what = f"tensor {spot.index} that it returns"
        chosen = self._chosen(compared) if is_integer else ""
        return self._axes_of(compared), f"{what} {_elements(compared)}{chosen}"

    def _axes_of(self, compared: Compared) -> tuple[str, ...]:
        """Return the axes along which some ranks are right, and others wrong; or all."""
        wrong = compared.wrong_ranks
        found = varying_values(self._layout, {rank: rank in wrong for rank in compared.errors})
        return found or tuple(axis for axis, size in self._layout.axes.items() if size > 1)

    def _chosen(self, compared: Compared) -> str:
        """Return words for how ranks have chosen tokens."""
        free = [a for a in self._layout.axes if a not in self._comparison.data_axes]
        for axis in free:
            if self._is_of_shard(compared, axis):
                return f": the argmax over its own shard of the vocabulary along {axis}"
        values = {r: each[0].numpy().tobytes() for r, each in compared.got.items()}
        apart = [axis for axis in varying_values(self._layout, values) if axis in free]
        return f": ranks of {'/'.join(apart)} have different ones" if apart else ""

    def _is_of_shard(self, compared: Compared, axis: str) -> bool:
        """Return whether wrong ranks have the argmax of their own shard of logits along an axis."""
        size = self._layout.axes[axis]
        for rank in compared.wrong_ranks:
            tokens = compared.got[rank][0].flatten()
            logits = next(self._logits(self._at.number - 1, rank, len(tokens)), None)
            if size == 1 or logits is None or logits.shape[-1] % size:
                return False
            shard = logits.chunk(size, -1)[self._comparison.coordinates[rank][axis]]
            if not torch.equal(shard.argmax(-1), tokens):
                return False
        return True

    def _logits(self, number: int, rank: int, num_rows: int) -> Iterator[torch.Tensor]:
        """Yield the last outputs of a step, of a rank's rows: one for each token."""
        if number < 0:
            return
        step = self._at.start.reference.record.steps[number]
        for spot, call in reversed(step.order):
            value = step.values[spot][call].value
            if spot.side == OUTPUT and spot.module != GENERATED and value.dim() > 1:
                last = value[:, -1] if value.dim() > 2 else value
                rows = self._comparison.rows[rank]
                if rows and max(rows[0].rows, default=0) < len(last):
                    last = last[list(rows[0].rows)]
                if len(last) == num_rows:
                    yield last
                return

    def _replica(self, module: str) -> tuple[tuple[str, ...], str] | None:
        """Return that ranks which share parts of a parameter do not share them in their order.

        Neighbouring ranks have the same KV heads, where there are fewer than ranks.
        """
        start = self._at.start
        prefix = "" if module == MODEL else f"{module}."
        for name in start.held_names():
            axes = start.split_axes(name)
            if not name.startswith(prefix) or len(axes) != 1:
                continue
            size = self._layout.axes[axes[0]]
            firsts = {r: int(p[name].flatten()[0]) for r, p in enumerate(start.places) if name in p}
            parts = sorted(set(firsts.values()))
            if not 1 < len(parts) < size or size % len(parts):
                continue
            for rank, first in firsts.items():
                at = self._comparison.coordinates[rank][axes[0]]
                has, wants = parts.index(first), at * len(parts) // size
                if has != wants:
                    of = f"part {has + 1} of {len(parts)} of {name}, and not part {wants + 1}"
                    text = f"rank {rank} has {of}: the heads of other ranks"
                    return axes, text
        return None


def _is_cache(tensor: torch.Tensor) -> bool:
    return tensor.dim() >= _DIMS_OF_CACHE and tensor.is_floating_point()


def _is_output(compared: Compared) -> bool:
    """Return whether a tensor is an output of a module that ranks have."""
    spot = compared.spot
    return spot.side == OUTPUT and spot.module != GENERATED and compared.status != ABSENT


def _elements(compared: Compared) -> str:
    """Return `is 3 and not 5 at [0, 2] on rank 1 (4 of 8 elements)`, of the most wrong rank."""
    rank = max(compared.errors, key=lambda each: compared.errors[each])
    got, want = compared.got[rank][0], compared.want[rank][0]
    if not got.dim():
        return f"is {got.item():.6g} and not {want.item():.6g} on rank {rank}"
    apart = (got.double() - want.double()).abs()
    limit = _ALIKE * want.abs().max() if got.is_floating_point() else 0
    places = (apart > limit).nonzero().tolist() or [[0] * got.dim()]
    at = tuple(places[0])
    values = f"is {got[at].item():.6g} and not {want[at].item():.6g} at {list(at)} on rank {rank}"
    return f"{values} ({len(places)} of {got.numel()} elements)"
