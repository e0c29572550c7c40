"""Dropout: a rank drops what the single program drops, so that the rest can be compared.

A rank draws its own random numbers as ever. Its mask is recorded, and compared with those of the
ranks that work on the same elements; then the single program's mask takes its place.

What a rank has drawn is compared here; the rest of the comparison uses the single program's masks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's custom
from torch._ops import OpOverloadPacket
from torch.overrides import TorchFunctionMode

from simrank.equality.alignment import bases, cut_of, cuts, is_close
from simrank.equality.dtensors import is_dtensor, local_part
from simrank.equality.record import AGAIN, OUTPUT, Dropped, Spot

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from simrank.equality.alignment import BatchRows, Cut
    from simrank.equality.comparison import StepComparison
    from simrank.equality.layout import Layout

    Place = tuple[Layout, Mapping[str, int], str]  # Coordinates, and cuda or cpu.

_DROPOUTS = {
    F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout,
    torch.dropout, torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout,
}  # fmt: skip
_ALPHA_DROPOUTS = {
    F.alpha_dropout, F.feature_alpha_dropout, torch.alpha_dropout, torch.feature_alpha_dropout,
}  # fmt: skip
_ALPHA = 1.7580993408473766  # Minus the value of a dropped element, as in torch.
_DRAWN = 0.5  # In place of random numbers where nothing is drawn.
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
# Which have no mask that could be replaced: they drop nothing.
_SWITCHED_OFF = {
    F.scaled_dot_product_attention: "dropout_p",
    F.multi_head_attention_forward: "dropout_p",
}


@cache
def _is_draw(name: str) -> bool:
    """Return whether the functions of a name return random numbers: torch says so of its own."""
    found = getattr(torch.ops.aten, name, None)
    if not isinstance(found, OpOverloadPacket):
        return False
    every = [getattr(found, each) for each in found.overloads()]
    is_random = any(torch.Tag.nondeterministic_seeded in each.tags for each in every)
    return is_random and any("Generator?" in str(each._schema) for each in every)  # noqa: SLF001


def _constant(name: str, drawn: torch.Tensor, arguments: Sequence[Any]) -> float | None:
    """Return the number in place of random ones where nothing is drawn; None: they are drawn."""
    if "bernoulli" in name:
        return 1.0
    if drawn.is_floating_point():
        return _DRAWN
    limits = [each for each in arguments if isinstance(each, int)]
    return limits[-1] - 1 if name.startswith("randint") and limits else None


class Dropouts(TorchFunctionMode):
    """Records dropouts, and on a rank replaces their masks.

    Args:
        find: Returns where a dropout is recorded, the single program's, and a rank's rows; of
            random numbers that are drawn by hand, if it is given True.
        counts_draws: Returns whether random numbers that are drawn now count, given whether they
            are those of a generator that is handed over.
        switched_off: Gets the names of functions whose dropout is left out.
        place: Where the rank stands, and its model lies; None in the single program.
        is_off: Whether nothing is dropped.
        records: Whether dropouts are recorded; otherwise torch does those that are on.

    Attributes:
        is_plain: Whether torch does all that is called, but for dropout in attention operators.
    """

    def __init__(
        self,
        find: Callable[[bool], tuple[list[Dropped], Dropped | None, BatchRows | None]],
        counts_draws: Callable[[bool], bool],
        switched_off: set[str],
        place: Place | None = None,
        *,
        is_off: bool = False,
        records: bool = True,
    ) -> None:
        super().__init__()
        self._is_off, self._counts_draws = is_off, counts_draws
        self.is_plain = not (records or is_off)
        self._find, self._place = find, place
        self._switched_off = switched_off

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Call `func`, with a mask that is known if it is a dropout."""
        named = dict(kwargs or {})
        if func in _DROPOUTS and not self.is_plain:
            if self._is_off:
                return args[0] if args else named["input"]
            return self._drop(func, args, named)
        if func in _SWITCHED_OFF:
            args, named = self._without_dropout(func, args, named)
        if self.is_plain:
            return func(*args, **named)
        name = getattr(func, "__name__", "")
        if name in _RECURRENT:
            args = self._recurrent(args)
        out = func(*args, **named)
        if _is_draw(name) and isinstance(out, torch.Tensor):
            if not self._counts_draws(named.get("generator") is not None):
                return out
            constant = _constant(name, out, [*args, named.get("high")])
            if not self._is_off:
                self._note_drawn(out, has_constant=constant is not None)
            elif constant is not None:
                out.fill_(constant)
        return out

    def _note_drawn(self, drawn: torch.Tensor, *, has_constant: bool) -> None:
        """Record random numbers of a module; others are drawn also where dropout is off."""
        found, single, rows = self._find(True)
        local = local_part(drawn)
        dropped = Dropped(local.detach().clone(), torch.empty(0))
        dropped.is_aligned = self._place is None or not has_constant
        found.append(dropped)
        if self._place is None or single is None or rows is None:
            return
        layout, _, device = self._place
        dropped.has_own_numbers = device != "cpu"
        axes = [axis for axis, size in layout.axes.items() if size > 1]
        for whole in bases(single.mask, rows):  # The first that fits has the rank's rows.
            fitting = list(cuts(local.shape, whole.shape, layout, axes))
            dropped.cuts = _axes_of(fitting)
            if fitting:
                return

    def _recurrent(self, args: Sequence[Any]) -> Sequence[Any]:
        """Return the arguments of a recurrent network, without its dropout if it is off."""
        if not any(isinstance(each, float) and each > 0 for each in args):
            return args
        if self._is_off:
            return [0.0 if isinstance(each, float) else each for each in args]
        self._note_unaligned()
        return args

    def _note_unaligned(self) -> None:
        """Record random numbers whose place in the single program is not known."""
        found, *_ = self._find(False)
        none = torch.empty(0)
        found.append(Dropped(none, none, is_aligned=self._place is None))

    def _without_dropout(
        self, func: Callable[..., Any], args: Sequence[Any], named: dict[str, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        name = _SWITCHED_OFF[func]
        if name in named:
            if named[name]:
                self._switched_off.add(func.__name__)
                named[name] = 0.0
            return args, named
        at = 4 if func is F.scaled_dot_product_attention else 10
        if len(args) > at and args[at]:
            self._switched_off.add(func.__name__)
            args = [*args[:at], 0.0, *args[at + 1 :]]
        return args, named

    def _drop(self, func: Callable[..., Any], args: Sequence[Any], named: dict[str, Any]) -> Any:  # noqa: ANN401
        tensor = args[0] if args else named["input"]
        with torch.no_grad():
            ones = torch.ones_like(tensor)
            drawn = func(ones, *args[1:], **{n: e for n, e in named.items() if n != "input"})
        local = local_part(drawn)
        if bool((torch.ones_like(local) == local).all()):
            return tensor  # It drops nothing: p is 0, or the model is evaluated.
        found, single, rows = self._find(False)
        taken = local_part(tensor)
        dropped = Dropped(local.detach().clone(), taken.detach().clone())
        dropped.has_own_numbers = local.device.type != "cpu"
        found.append(dropped)
        if self._place is None or single is None:
            dropped.is_aligned = self._place is None
            return _applied(func, args, named, drawn)
        mask = self._replaced(dropped, single, rows)
        if mask is None:
            return _applied(func, args, named, drawn)
        mask = mask.to(local.device, local.dtype)
        if is_dtensor(tensor):
            like = tensor.device_mesh, tensor.placements
            mask = type(tensor).from_local(mask, *like, run_check=False)
        return _applied(func, args, named, mask)

    def _replaced(
        self, dropped: Dropped, single: Dropped, rows: BatchRows | None
    ) -> torch.Tensor | None:
        """Return the part of the single program's mask that a rank has."""
        assert self._place is not None
        dropped.is_aligned = False
        if rows is not None and not rows.is_unique:
            return None
        taken = dropped.taken.cpu()
        parts = list(self._parts(single, rows, taken.shape))
        fitting = [(mask, how) for mask, wanted, how in parts if is_close(taken, wanted)]
        if not fitting:
            return parts[0][0] if parts else None
        dropped.is_aligned = True
        dropped.cuts = _axes_of([how for _, how in fitting])
        return fitting[0][0]

    def _parts(
        self, single: Dropped, rows: BatchRows | None, shape: torch.Size
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, Cut]]:
        assert self._place is not None
        layout, at, _ = self._place
        pairs = zip(bases(single.mask, rows), bases(single.taken, rows), strict=True)
        axes = [axis for axis, size in layout.axes.items() if size > 1][::-1]
        for mask, taken in pairs:
            for how in cuts(shape, mask.shape, layout, axes):
                part = cut_of(mask, how, layout, at)
                if part.shape == shape:
                    yield part, cut_of(taken, how, layout, at), how


def _axes_of(fitting: Sequence[Cut]) -> tuple[tuple[str, ...], ...]:
    """Return the axes of each way to cut a tensor."""
    every = (tuple(axis for axes in how.values() for axis in axes) for how in fitting)
    return tuple(dict.fromkeys(every))


def _applied(
    func: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any], mask: torch.Tensor
) -> torch.Tensor:
    """Apply a dropout by its mask, the result for ones; in place where the program asks for it."""
    given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | dict(named)
    tensor: torch.Tensor = given["input"]
    slope, offset = mask, None
    if func in _ALPHA_DROPOUTS:
        p = given.get("p", 0.5)
        slope = (mask > 0).to(mask.dtype) * (
            ((1 - p) * (1 + p * _ALPHA**2)) ** -0.5 if p < 1 else 0.0
        )
        offset = mask - slope
    tensor = tensor.mul_(slope) if given.get("inplace") else tensor * slope
    if offset is None:
        return tensor
    return tensor.add_(offset) if given.get("inplace") else tensor + offset


# ---- masks of dropout: ranks must drop the same of what they share, and other of their shards ----

_CHANCE = -6  # Power of ten: of equal masks that were drawn apart, in all comparisons of a step.


@dataclass
class WrongMask:
    """The first dropout whose masks differ where they must not.

    Attributes:
        module: Its module.
        cause: What differs.
        share: Of the elements.
        ranks: Those that differ.
        values: By rank which mask it has, or should have, where ranks are compared with each other.
        is_again: Whether a recomputation differs from its forward.
    """

    module: str
    cause: str
    share: float
    ranks: Sequence[int]
    values: Mapping[int, object] = field(default_factory=dict)
    is_again: bool = False


@dataclass
class _Call:
    """A call of a dropout on ranks that have the same rows and modules.

    Attributes:
        module: Its module.
        axes: Along which ranks have parts of the elements; None: unknown.
        parts: The ranks that have each part.
    """

    module: str
    axes: tuple[str, ...] | None
    parts: list[dict[int, Dropped]]


class Masks:
    """The masks of one step.

    Args:
        comparison: Of that step.
        are_losses_apart: Returns whether ranks with the same rows have different losses.
    """

    def __init__(self, comparison: StepComparison, are_losses_apart: Callable[[], bool]) -> None:
        self._are_losses_apart = are_losses_apart
        self._single = comparison.single
        self._ranks, self._layout = comparison.ranks, comparison.layout
        self._rows = comparison.rows
        self._axes = [
            axis
            for axis in self._layout.axes
            if axis not in comparison.data_axes and axis not in comparison.stage_axes
        ]

    def wrong(self) -> WrongMask | None:
        """Return the first dropout that differs."""
        found = next(self._rates(), None) or next(self._of_shared_elements(), None)
        return found or self._of_shards() or next(self._again(), None)

    def _rates(self) -> Iterator[WrongMask]:
        """Yield dropouts with another rate than the single program's."""
        for rank, step in enumerate(self._ranks):
            for module, single in self._single.dropped.items():
                has_run = Spot(module, OUTPUT, 0) in step.values
                if has_run and single[0].taken.numel() and not step.dropped.get(module):
                    cause = "it drops nothing, though the single program does"
                    yield WrongMask(module, cause, 1.0, [rank])
            for module, calls in step.dropped.items():
                single = self._single.dropped.get(module, [])
                for each, other in zip(calls, single, strict=False):
                    if not each.taken.numel() or not other.taken.numel():
                        continue  # Random numbers that are no mask.
                    scale, wanted = each.mask.max().item(), other.mask.max().item()
                    if scale > 0 and wanted > 0 and abs(scale - wanted) > 1e-6 * wanted:
                        rates = f"{1 - 1 / scale:.3g} and not {1 - 1 / wanted:.3g}"
                        cause = f"the rate of dropout is {rates}"
                        yield WrongMask(module, cause, abs(scale / wanted - 1), [rank])

    def _calls(self) -> Iterator[_Call]:
        """Yield the calls of each dropout, by ranks that have the same rows and modules."""
        modules = dict.fromkeys(n for step in self._ranks for n in step.dropped if AGAIN not in n)
        for module in modules:
            for group in self._layout.groups(self._axes):
                drawn = {
                    r: self._ranks[r].dropped[module]
                    for r in group
                    if module in self._ranks[r].dropped
                }
                for calls in zip(*drawn.values(), strict=False):
                    found = dict(zip(drawn, calls, strict=True))
                    axes = self._cut(found.values())
                    parts: list[dict[int, Dropped]] = []
                    for rank, each in found.items():
                        home = next((p for p in parts if self._is_of(rank, each, p, axes)), None)
                        if home is None:
                            parts.append({rank: each})
                        else:
                            home[rank] = each
                    yield _Call(module, axes, parts)

    def _cut(self, calls: Collection[Dropped]) -> tuple[str, ...] | None:
        """Return the axes along which ranks have parts of the elements; None: unknown."""
        fitting = [{cut for cut in each.cuts if set(cut) <= set(self._axes)} for each in calls]
        common = set.intersection(*fitting)
        return common.pop() if len(common) == 1 else None

    def _is_of(
        self, rank: int, dropped: Dropped, part: Mapping[int, Dropped], axes: Sequence[str] | None
    ) -> bool:
        """Return whether a rank has the elements that other ranks have."""
        other, held = next(iter(part.items()))
        if axes is None:
            taken = dropped.taken
            return taken.numel() > 1 and bool(taken.std() > 0) and is_close(taken, held.taken)
        here, there = self._layout.coordinates(rank), self._layout.coordinates(other)
        return all(here[axis] == there[axis] for axis in axes)

    def _of_shared_elements(self) -> Iterator[WrongMask]:
        """Yield dropouts of the same elements with different masks."""
        for call in self._calls():
            for part in call.parts:
                first = next(iter(part.values()))
                shares = {rank: _share(first.mask, each.mask) for rank, each in part.items()}
                most = max(shares.values())
                # Of numbers that are drawn by hand, each rank may take those of its own shard.
                if most > 0 and (first.taken.numel() or self._are_losses_apart()):
                    what = "another dropout mask" if first.taken.numel() else "other random numbers"
                    cause = (
                        f"{what} on ranks that have the same elements "
                        f"({most:.0%} of them differ): their seeds differ"
                    )
                    ranks = [rank for rank, share in shares.items() if share]
                    values = {rank: int(share > 0) for rank, share in shares.items()}
                    yield WrongMask(call.module, cause, most, ranks, values)

    def _of_shards(self) -> WrongMask | None:
        """Return the first dropout with one mask for two shards of a tensor."""
        pairs: dict[tuple[int, int], list[tuple[_Call, float]]] = defaultdict(list)
        for call in self._calls():
            shards = [next(iter(part.items())) for part in call.parts] if call.axes else []
            for (one, mine), (other, theirs) in combinations(shards, 2):
                if mine.has_own_numbers:
                    is_equal = torch.equal(mine.mask, theirs.mask)
                    chance = _chance_of_equal(mine.mask) if is_equal else math.inf
                    pairs[one, other].append((call, chance))
        count = sum(map(len, pairs.values()))
        for pair, calls in pairs.items():
            together = sum(chance for _, chance in calls)  # Small ones tell together.
            for call, chance in calls:
                if min(chance, together) + math.log10(count) < _CHANCE:
                    part = next(each for each in call.parts if pair[0] in each)
                    return self._one_mask(call, part[pair[0]], pair)
        return None

    def _one_mask(self, call: _Call, dropped: Dropped, pair: tuple[int, int]) -> WrongMask:
        axes, mask = call.axes or (), dropped.mask
        ranks, over = f"ranks {pair[0]} and {pair[1]}", f"their shards over {'/'.join(axes)}"
        count = int((mask != mask.max()).sum())
        cause = f"{ranks} drop the same elements of {over} ({count} of {mask.numel()}): one mask"
        if not dropped.taken.numel():
            cause = f"{ranks} draw the same {mask.numel()} random numbers for {over}: one draw"
        cause += " for both; each shard needs random numbers of its own"
        at = {rank: self._layout.coordinates(rank) for rank in pair}
        values = {rank: tuple(at[rank][axis] for axis in axes) for rank in pair}
        return WrongMask(call.module, cause, 1.0, pair, values)

    def _again(self) -> Iterator[WrongMask]:
        """Yield dropouts whose recomputation has another mask than their forward."""
        for rank, step in enumerate(self._ranks):
            for name, calls in step.dropped.items():
                module = name.removesuffix(AGAIN)
                first = step.dropped.get(module, [])
                if name == module or len(calls) > len(first):
                    continue
                # The backward recomputes in any order: each has to be one of the forward's.
                for each in calls:
                    if not any(_share(each.mask, other.mask) == 0 for other in first):
                        share = _share(each.mask, first[0].mask)
                        cause = (
                            f"recomputation draws another dropout mask ({share:.0%} of elements "
                            "differ): the random state of the forward is not restored"
                        )
                        yield WrongMask(module, cause, share, [rank], is_again=True)


def _chance_of_equal(mask: torch.Tensor) -> float:
    """Return the power of ten of the chance that another mask of the same rate is equal."""
    if not mask.numel():
        return 0.0
    while mask.dim() and bool((mask == mask[..., :1]).all()):
        mask = mask[..., 0]  # Whole features are dropped.
    counts = mask.unique(return_counts=True)[1].double()  # Two in a mask, many in other draws.
    return mask.numel() * math.log10((counts / mask.numel()).square().sum().item())


def _share(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the share of elements that differ."""
    if one.shape != other.shape or not one.numel():
        return 0.0
    return (one != other).double().mean().item()
