"""Alignment of a rank's tensors and modules with the single program's, without annotations.

Rows and columns of the batch are found by the values of what the model takes in first. Elements of
parameters are found by their initial values, of which no two are alike. Other dimensions are found
by their sizes: a dimension that is shorter by the sizes of some axes is cut along them.

A stage of a pipeline counts its layers from zero, a wrapper adds a name in front of all others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import permutations, product
from math import prod
from typing import TYPE_CHECKING

import torch

from simrank.equality.record import INPUT, Spot, on_host, plain_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch.nn import Module

    from simrank.equality.layout import Layout
    from simrank.equality.record import Record, Step, Taped

_MAX_BLOCKS = 256  # Assumed: chunks of a parameter that are looked at one by one.
Cut = dict[int, tuple[str, ...]]
_CLOSE = 1e-6  # Assumed: far above rounding in float64, far below other rows.
_MAX_PIECES = 4  # Of a sequence on one rank: zigzag layouts of context parallelism have two.


# ---- Rows and columns of the batch ----


@dataclass(frozen=True)
class BatchRows:
    """The part of the batch of one call of the model.

    Attributes:
        call: The single program's call of the model that has it.
        rows: Of dimension 0.
        columns: Of dimension 1; all of them where the rank has whole rows.
        num_rows: Rows of the single program's call.
        num_columns: Columns there; 0 where the batch has one dimension that is looked at.
        is_unique: Whether no other rows of the single program's call are the same.
    """

    call: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    num_rows: int
    num_columns: int
    is_unique: bool = True


def anchors_of(step: Step) -> list[Spot]:
    """Return the spots at which the single program takes in the batch."""
    inputs = [spot for spot, call in step.order if spot.side == INPUT and not call]
    if not inputs:
        return []
    first = Spot("", INPUT, 0) if Spot("", INPUT, 0) in inputs else inputs[0]
    values = step.values[first]
    alike = [
        spot
        for spot in inputs
        if spot != first
        and len(step.values[spot]) == len(values)
        and all(map(_are_equal, step.values[spot], values))
    ]
    return [first, *alike]


def _are_equal(one: Taped, other: Taped) -> bool:
    return one.value.dtype == other.value.dtype and torch.equal(one.value, other.value)


def rows_of(single: Sequence[Taped], ranks: Sequence[Taped]) -> list[BatchRows] | None:
    """Return the rows and columns of the single program's input that each call has.

    Args:
        single: The input of each call of the single model.
        ranks: That of each call of a rank's model.

    Returns:
        One per call; None where a call has something else.
    """
    found = []
    for each in ranks:
        hits = (_find(call, whole.value, each.value) for call, whole in enumerate(single))
        rows = next((hit for hit in hits if hit is not None), None)
        if rows is None:
            return None
        found.append(rows)
    return found


def _find(call: int, whole: torch.Tensor, part: torch.Tensor) -> BatchRows | None:
    """Return the rows and columns of `whole` that `part` is."""
    if whole.dim() != part.dim() or whole.dim() == 0 or whole.dtype != part.dtype:
        return None
    if whole.dim() == 1 or whole.shape[1:] == part.shape[1:]:
        every = tuple(range(whole.shape[1])) if whole.dim() > 1 else ()
        width = whole[0].numel() if len(whole) else 1
        flat = whole.reshape(len(whole), width), part.reshape(len(part), width)
        at = [_alike(flat[0], row).all(1).nonzero()[:, 0].tolist() for row in flat[1]]
        picked = _picked(at)
        if picked is not None:
            is_unique = all(len(places) == 1 for places in at)
            return BatchRows(call, picked, every, len(whole), len(every), is_unique)
    if whole.dim() < 2 or whole.shape[2:] != part.shape[2:]:
        return None
    whole, part = (each.reshape(*each.shape[:2], -1) for each in (whole, part))
    for num_pieces in range(1, _MAX_PIECES + 1):
        found = None if part.shape[1] % num_pieces else _in_pieces(whole, part, num_pieces)
        if found is not None:
            return BatchRows(call, *found, *whole.shape[:2])
    return None


def _alike(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Compare elements, up to rounding."""
    if not one.is_floating_point():
        return one == other
    return (one - other).abs() <= _CLOSE * other.abs().max()


def is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are equal, up to rounding."""
    if one.shape != other.shape or one.is_complex() != other.is_complex():
        return False
    if not one.is_complex():
        one, other = one.double(), other.double()
    return bool((one - other).norm() <= _CLOSE * other.norm())


def _picked(at: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """Return one of the places of each row; where rows are alike, each its own."""
    picked: list[int] = []
    for places in at:
        free = [place for place in places if place not in picked] or places
        if not free:
            return None
        picked.append(free[0])
    return tuple(picked)


def _in_pieces(
    whole: torch.Tensor, part: torch.Tensor, num_pieces: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return rows and columns of a part whose rows have the same pieces of columns."""
    width = part.shape[1] // num_pieces
    if not 0 < width <= whole.shape[1]:
        return None
    windows = whole.unfold(1, width, 1).transpose(2, 3)  # row, first column, column, rest
    starts: list[set[int]] = []
    hits = []
    for piece in part.split(width, 1):
        # For each row of the part: rows and first columns where the single program has it.
        where = [_alike(windows, row).flatten(2).all(2) for row in piece]
        hits.append(where)
        starts.append(set.intersection(*(set(w.any(0).nonzero()[:, 0].tolist()) for w in where)))
    for chosen in product(*map(sorted, starts)):
        if len(set(chosen)) < num_pieces:
            continue
        at = []
        for row in range(len(part)):
            fits = [where[row][:, start] for where, start in zip(hits, chosen, strict=True)]
            at.append(torch.stack(fits).all(0).nonzero()[:, 0].tolist())
        rows = _picked(at)
        if rows is not None:
            return rows, tuple(c for start in chosen for c in range(start, start + width))
    return None


def bases(whole: torch.Tensor, rows: BatchRows | None) -> Iterator[torch.Tensor]:
    """Yield what the rows and columns of a rank may be of a tensor of the single program."""
    if rows is None:
        yield whole
        return
    shape, b, t = whole.shape, rows.num_rows, rows.num_columns
    first, second = (torch.tensor(each, dtype=torch.long) for each in (rows.rows, rows.columns))
    has_all = len(rows.columns) == t and list(rows.columns) == list(range(t))
    pairs = [
        (0, 1),
        (1, 0),
        *((0, d) for d in range(2, len(shape))),
        *((d, 0) for d in range(2, len(shape))),
    ]
    for row_dim, column_dim in pairs if t else ():
        if max(row_dim, column_dim) < len(shape) and (shape[row_dim], shape[column_dim]) == (b, t):
            yield whole.index_select(row_dim, first).index_select(column_dim, second)
    if t and len(shape) and shape[0] == b * t:
        for sizes, turned in (((b, t), False), ((t, b), True)):
            split = whole.view(*sizes, *shape[1:])
            dims = (1, 0) if turned else (0, 1)
            yield split.index_select(dims[0], first).index_select(dims[1], second).flatten(0, 1)
    for dim, size in enumerate(shape):
        if size == b and (has_all or t not in shape):
            yield whole.index_select(dim, first)
        if t and size == t and b not in shape[:dim]:
            yield whole.index_select(dim, second)
    yield whole


# ---- Other dimensions ----


def cuts(
    part: torch.Size,
    whole: torch.Size,
    layout: Layout,
    axes: Sequence[str],
    *,
    replicates: bool = False,
) -> Iterator[Cut]:
    """Yield the ways to cut `whole` to `part` along axes: per dimension some, outermost first.

    Args:
        part: Shape of a rank's tensor.
        whole: That of the single program's.
        layout: Where the ranks stand.
        axes: Along which it may be cut.
        replicates: Whether neighbouring ranks may have the same part, as of few KV heads.
    """
    if len(part) != len(whole):
        return
    need = {d: w // g for d, (g, w) in enumerate(zip(part, whole, strict=True)) if g and w != g}
    if not all(need.values()):
        return
    if any(part[d] * factor != whole[d] for d, factor in need.items()):
        return
    if any(not g and w for g, w in zip(part, whole, strict=True)):
        return
    options = [
        [
            chosen
            for count in range(1, len(axes) + 1)
            for chosen in permutations(axes, count)
            if (size := prod(layout.axes[axis] for axis in chosen)) == factor
            or (replicates and size > factor and size % factor == 0)
        ]
        for factor in need.values()
    ]
    for picked in product(*options):
        used = [axis for chosen in picked for axis in chosen]
        if len(set(used)) == len(used):
            yield dict(zip(need, picked, strict=True))


def cut_of(
    whole: torch.Tensor,
    how: Cut,
    layout: Layout,
    at: Mapping[str, int],
    shape: torch.Size | None = None,
) -> torch.Tensor:
    """Return the part of a tensor at some coordinates.

    Args:
        whole: The tensor.
        how: The axes that cut each dimension.
        layout: Where the ranks stand.
        at: The coordinates.
        shape: Of the part, where neighbouring ranks may have the same one.
    """
    for dim, axes in how.items():
        place, count = 0, 1
        for axis in axes:
            place, count = place * layout.axes[axis] + at[axis], count * layout.axes[axis]
        num_parts = count if shape is None else whole.shape[dim] // shape[dim]
        whole = whole.chunk(num_parts, dim)[place * num_parts // count]
    return whole


# ---- Parameters ----


def _key(row: torch.Tensor) -> bytes:
    """Return the bytes of a row."""
    found: bytes = row.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return found


class ParameterElements:
    """All elements of the single program's parameters, found by their initial values.

    An element's place is its number among those of all parameters, one after the other.

    Args:
        initial: The parameters before the first step.
    """

    def __init__(self, initial: Mapping[str, Taped]) -> None:
        self.shapes = {name: each.value.shape for name, each in initial.items()}
        self._initial = initial
        self.starts: dict[str, int] = {}
        self.count = 0
        for name, shape in self.shapes.items():
            self.starts[name] = self.count
            self.count += shape.numel()
        self._sorted: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def find(self, name: str, part: torch.Tensor) -> torch.Tensor | None:
        """Return the places of a rank's elements, of the parameter's shape; None if unknown.

        Padding with zeros has the place -1.
        """
        if not part.numel():
            return torch.empty(part.shape, dtype=torch.long)
        if name in self._initial:
            if self.shapes[name] == part.shape and torch.equal(self._whole(name), part):
                start = self.starts[name]
                return torch.arange(start, start + part.numel()).view(part.shape)
            for look in (self._as_block, self._as_rows, self._search):
                found = look(name, part)
                if found is not None:
                    return found
        return self._search("", part)

    def _whole(self, name: str) -> torch.Tensor:
        return self._initial[name].value

    def _as_block(self, name: str, part: torch.Tensor) -> torch.Tensor | None:
        """Return the places of a part that is one of the equal chunks along some dimensions."""
        shape = self.shapes[name]
        if len(shape) != part.dim() or any(
            not g or w % g for w, g in zip(shape, part.shape, strict=True)
        ):
            return None
        counts = [w // g for w, g in zip(shape, part.shape, strict=True)]
        if prod(counts) > _MAX_BLOCKS:
            return None
        whole = self._whole(name)
        for at in product(*map(range, counts)):
            block = tuple(slice(i * g, (i + 1) * g) for i, g in zip(at, part.shape, strict=True))
            if torch.equal(whole[block], part):
                start = self.starts[name]
                every = torch.arange(start, start + whole.numel()).view(shape)
                return every[block].contiguous()
        return None

    def _as_rows(self, name: str, part: torch.Tensor) -> torch.Tensor | None:
        """Return the places of a part that has some rows, or some columns, in any order.

        Elements of narrow types are not unique, rows of them are.
        """
        shape = self.shapes[name]
        if part.dim() < 2 or len(shape) != part.dim():
            return None
        start = self.starts[name]
        whole = self._whole(name)
        every = torch.arange(start, start + whole.numel()).view(shape)
        for turned in (False, True):
            if turned:
                whole, every, part = (each.transpose(0, 1) for each in (whole, every, part))
            if whole.shape[1:] != part.shape[1:]:
                continue
            rows = {_key(row): n for n, row in enumerate(whole)}
            found = [rows.get(_key(row)) for row in part]
            known = [number for number in found if number is not None]
            if len(rows) == len(whole) and len(known) == len(found) == len(set(known)):
                places = every[known]
                return (places.transpose(0, 1) if turned else places).contiguous()
        return None

    def span(self, name: str) -> slice:
        """Return the places of a parameter."""
        return slice(self.starts[name], self.starts[name] + self.shapes[name].numel())

    def name_of(self, place: int) -> str:
        """Return the parameter that has an element."""
        return next(n for n in reversed(self.starts) if self.starts[n] <= place)

    def _search(self, name: str, part: torch.Tensor) -> torch.Tensor | None:
        if name not in self._sorted:
            names = [name] if name else [*self.shapes]
            every = torch.cat([self._whole(each).flatten() for each in names])
            self._sorted[name] = every.sort()
        values, order = self._sorted[name]
        flat = part.flatten()
        at = torch.searchsorted(values, flat).clamp(max=len(values) - 1)
        found = order[at] + (self.starts[name] if name else 0)
        is_hit = values[at] == flat
        is_padding = ~is_hit & (flat == 0)
        if not (is_hit | is_padding).all() or not is_hit.any():
            return None
        return torch.where(is_hit, found, -1).view(part.shape)

    def flat(self, tensors: Mapping[str, Taped | None]) -> torch.Tensor:
        """Return a value for each element; NaN where there is none."""
        found = [
            torch.full((self.shapes[name].numel(),), torch.nan, dtype=torch.float64)
            if tensors.get(name) is None
            else tensors[name].value.flatten().double()  # type: ignore[union-attr]
            for name in self.shapes
        ]
        return torch.cat(found) if found else torch.empty(0)


# ---- names of a rank's modules in the single program, found by the values of their parameters ----

_MAX_ELEMENTS = 4_000_000  # Assumed: of models whose every parameter is looked up.


def names_of(
    parts: Sequence[Module], single: Record, renamed: Mapping[str, str]
) -> list[dict[str, str]]:
    """Return for each part the names of its modules that are others in the single program.

    Args:
        parts: The model of a rank, or its parts.
        single: What the single program did.
        renamed: Names that the user gives.
    """
    named = [[plain_name(n, renamed) for n, _ in part.named_parameters()] for part in parts]
    every = [name for names in named for name in names]
    count = sum(each.value.numel() for each in single.initial.values())
    are_known = set(every) <= set(single.initial) and len(set(every)) == len(every)
    if are_known and count > _MAX_ELEMENTS:
        return [dict(renamed) for _ in parts]
    elements = ParameterElements(single.initial)
    return [{**_names_of(part, elements, renamed, single.kinds), **renamed} for part in parts]


def _names_of(
    part: Module, elements: ParameterElements, renamed: Mapping[str, str], kinds: Mapping[str, str]
) -> dict[str, str]:
    """Return the shortest names that explain all names of a part's parameters."""
    own = {plain_name(name, renamed): type(each).__name__ for name, each in part.named_modules()}
    votes: Counter[tuple[str, str]] = Counter()
    for name, parameter in part.named_parameters():
        here = plain_name(name, renamed)
        places = elements.find(here, on_host(parameter))
        known = None if places is None else places[places >= 0]
        if known is None or not len(known):
            continue
        there = elements.name_of(int(known[0]))
        if there.rpartition(".")[2] == here.rpartition(".")[2]:
            pair = _without_common_end(here, there)
            # Tied parameters are those of modules of two types, which keep their names.
            if pair[0] not in kinds or own.get(pair[0]) == kinds.get(pair[1]):
                votes[pair] += 1
    found = {here: there for (here, there), _ in votes.most_common()[::-1] if here != there}
    return {**_by_number(part, found), **found}


def _without_common_end(here: str, there: str) -> tuple[str, str]:
    """Return two names without the parts at their ends that are the same."""
    one, other = here.split("."), there.split(".")
    while one and other and one[-1] == other[-1]:
        one.pop()
        other.pop()
    return ".".join(one), ".".join(other)


def _by_number(part: Module, found: Mapping[str, str]) -> dict[str, str]:
    """Return names of numbered modules without parameters, between those that have some."""
    shifts: dict[tuple[str, str], int] = {}
    for here, there in found.items():
        (home, _, number), (other, _, moved) = here.rpartition("."), there.rpartition(".")
        if number.isdigit() and moved.isdigit():
            shifts[home, other] = int(moved) - int(number)
    names = {}
    for name, _ in part.named_modules():
        home, _, number = plain_name(name).rpartition(".")
        for (here, there), shift in shifts.items():
            if home == here and number.isdigit():
                names[f"{home}.{number}".strip(".")] = f"{there}.{int(number) + shift}".strip(".")
    return names
