"""Dropout: a rank drops what the single program drops, so that the rest can be compared.

A rank draws its own random numbers as ever. Its mask is recorded, and compared with those of the
ranks that work on the same elements; then the single program's mask takes its place.

What a rank has drawn is compared here; the rest of the comparison uses the single program's masks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's custom
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from simrank.equality.alignment import bases, cut_of, cuts, is_close
from simrank.equality.record import AGAIN, OUTPUT, Dropped, Spot

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from simrank.equality.alignment import Cut, Rows
    from simrank.equality.comparison import Comparison
    from simrank.equality.layout import Layout

_DROPOUTS = {
    F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout,
    torch.dropout, torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout,
}  # fmt: skip
_ALPHA_DROPOUTS = {
    F.alpha_dropout, F.feature_alpha_dropout, torch.alpha_dropout, torch.feature_alpha_dropout,
}  # fmt: skip
_ALPHA = 1.7580993408473766  # Minus the value of a dropped element, as in torch.
# Others that draw random numbers -> the constants in their place where nothing is drawn.
_RANDOM = {
    torch.rand: 0.5, torch.rand_like: 0.5, torch.Tensor.uniform_: 0.5, torch.randn: 0.5,
    torch.randn_like: 0.5, torch.normal: 0.5, torch.Tensor.normal_: 0.5, torch.bernoulli: 1.0,
    torch.Tensor.bernoulli_: 1.0, torch.Tensor.exponential_: 0.5,
}  # fmt: skip
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
# Which have no mask that could be replaced: they drop nothing.
_SWITCHED_OFF = {
    F.scaled_dot_product_attention: "dropout_p",
    F.multi_head_attention_forward: "dropout_p",
}


class Dropouts(TorchFunctionMode):
    """Records dropouts, and on a rank replaces their masks.

    Args:
        find: Returns where a dropout is recorded, the single program's, and a rank's rows.
        is_in_step: Returns whether a training step is running.
        switched_off: Gets the names of functions whose dropout is left out.
        place: Where the rank stands; None in the single program.
        is_off: Whether nothing is dropped.
        records: Whether dropouts are recorded; otherwise torch does those that are on.
    """

    def __init__(
        self,
        find: Callable[[], tuple[list[Dropped], Dropped | None, Rows | None]],
        is_in_step: Callable[[], bool],
        switched_off: set[str],
        place: tuple[Layout, Mapping[str, int]] | None = None,
        *,
        is_off: bool = False,
        records: bool = True,
    ) -> None:
        super().__init__()
        self._is_off, self._is_in_step = is_off, is_in_step
        self._is_plain = not (records or is_off)
        self._find, self._place = find, place
        self._switched_off = switched_off

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Call `func`, with a mask that is known if it is a dropout."""
        named = dict(kwargs or {})
        if func in _DROPOUTS and not self._is_plain:
            if self._is_off:
                return args[0] if args else named["input"]
            return self._drop(func, args, named)
        if func in _SWITCHED_OFF:
            args, named = self._without_dropout(func, args, named)
        if self._is_plain:
            return func(*args, **named)
        if getattr(func, "__name__", "") in _RECURRENT:
            args = self._recurrent(args)
        # Numbers of a generator that is handed over are data, or initial values.
        if func in _RANDOM and self._is_in_step() and named.get("generator") is None:
            return self._random(func, func(*args, **named))
        return func(*args, **named)

    def _random(self, func: Callable[..., Any], drawn: Any) -> Any:  # noqa: ANN401 - a tensor
        """Return random numbers of a module; constants where nothing is to be drawn."""
        if self._is_off:
            return drawn.fill_(_RANDOM[func])
        self._note_unaligned()
        return drawn

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
        found, *_ = self._find()
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
        local = drawn._local_tensor if isinstance(drawn, DTensor) else drawn  # noqa: SLF001
        if bool((torch.ones_like(local) == local).all()):
            return tensor  # It drops nothing: p is 0, or the model is evaluated.
        found, single, rows = self._find()
        taken = tensor._local_tensor if isinstance(tensor, DTensor) else tensor  # noqa: SLF001
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
        if isinstance(tensor, DTensor):
            mask = DTensor.from_local(mask, tensor.device_mesh, tensor.placements, run_check=False)
        return _applied(func, args, named, mask)

    def _replaced(
        self, dropped: Dropped, single: Dropped, rows: Rows | None
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
        cuts = (tuple(axis for axes in how.values() for axis in axes) for _, how in fitting)
        dropped.cuts = tuple(dict.fromkeys(cuts))
        return fitting[0][0]

    def _parts(
        self, single: Dropped, rows: Rows | None, shape: torch.Size
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, Cut]]:
        assert self._place is not None
        layout, at = self._place
        pairs = zip(bases(single.mask, rows), bases(single.taken, rows), strict=True)
        axes = [axis for axis, size in layout.axes.items() if size > 1][::-1]
        for mask, taken in pairs:
            for how in cuts(shape, mask.shape, layout, axes):
                part = cut_of(mask, how, layout, at)
                if part.shape == shape:
                    yield part, cut_of(taken, how, layout, at), how


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
    """

    def __init__(self, comparison: Comparison) -> None:
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
                if has_run and single[0].mask.numel() and not step.dropped.get(module):
                    cause = "it drops nothing, though the single program does"
                    yield WrongMask(module, cause, 1.0, [rank])
            for module, calls in step.dropped.items():
                single = self._single.dropped.get(module, [])
                for each, other in zip(calls, single, strict=False):
                    if not each.mask.numel() or not other.mask.numel():
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
                if most > 0:
                    cause = (
                        "another dropout mask on ranks that have the same elements "
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
                    mask = self._ranks[pair[0]].dropped[call.module][0].mask
                    return self._one_mask(call, mask, pair)
        return None

    def _one_mask(self, call: _Call, mask: torch.Tensor, pair: tuple[int, int]) -> WrongMask:
        axes = call.axes or ()
        cause = (
            f"ranks {pair[0]} and {pair[1]} drop the same elements of their shards over "
            f"{'/'.join(axes)} ({int((mask != mask.max()).sum())} of {mask.numel()}): one mask for "
            "both; each shard needs random numbers of its own"
        )
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
    while mask.dim() and bool((mask == mask[..., :1]).all()):
        mask = mask[..., 0]  # Whole features are dropped.
    kept = (mask == mask.max()).double().mean().item()
    return mask.numel() * math.log10(kept**2 + (1 - kept) ** 2)


def _share(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the share of elements that differ."""
    if one.shape != other.shape:
        return 0.0
    return (one != other).double().mean().item()
