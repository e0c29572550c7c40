"""Dropout: a rank drops what the single program drops, so that the rest can be compared.

A rank draws its own random numbers as ever. Its mask is recorded, and compared with those of the
ranks that work on the same elements; then the single program's mask takes its place.

What a rank has drawn is compared here; the rest of the comparison uses the single program's masks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's custom
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from simrank.equality.alignment import bases, cut_of, cuts, is_close
from simrank.equality.record import AGAIN, OUTPUT, Dropped, Spot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from simrank.equality.alignment import Rows
    from simrank.equality.comparison import Comparison
    from simrank.equality.layout import Layout

_DROPOUTS = {
    F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout,
    torch.dropout,
}  # fmt: skip
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
    """

    def __init__(
        self,
        find: Callable[[], tuple[list[Dropped], Dropped | None, Rows | None]],
        is_in_step: Callable[[], bool],
        switched_off: set[str],
        place: tuple[Layout, Mapping[str, int]] | None = None,
        *,
        is_off: bool = False,
    ) -> None:
        super().__init__()
        self._is_off, self._is_in_step = is_off, is_in_step
        self._find, self._place = find, place
        self._switched_off = switched_off

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Call `func`, with a mask that is known if it is a dropout."""
        named = dict(kwargs or {})
        if func in _DROPOUTS:
            if self._is_off:
                return args[0] if args else named["input"]
            return self._drop(func, args, named)
        if func in _SWITCHED_OFF:
            args, named = self._without_dropout(func, args, named)
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
        found.append(Dropped(none, none, is_aligned=self._place is None, is_cut=True))

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
            drawn = func(
                ones, *args[1:], **{n: e for n, e in named.items() if n not in ("input", "inplace")}
            )
        local = drawn._local_tensor if isinstance(drawn, DTensor) else drawn  # noqa: SLF001
        if bool((torch.ones_like(local) == local).all()):
            return tensor  # It drops nothing: p is 0, or the model is evaluated.
        found, single, rows = self._find()
        taken = tensor._local_tensor if isinstance(tensor, DTensor) else tensor  # noqa: SLF001
        dropped = Dropped(local.detach().clone(), taken.detach().clone())
        found.append(dropped)
        if self._place is None or single is None:
            dropped.is_aligned = self._place is None
            return tensor * drawn
        mask = self._replaced(dropped, single, rows)
        if mask is None:
            return tensor * drawn
        mask = mask.to(local.device, local.dtype)
        if isinstance(tensor, DTensor):
            mask = DTensor.from_local(mask, tensor.device_mesh, tensor.placements, run_check=False)
        return tensor * mask

    def _replaced(
        self, dropped: Dropped, single: Dropped, rows: Rows | None
    ) -> torch.Tensor | None:
        """Return the part of the single program's mask that a rank has."""
        assert self._place is not None
        first = None
        dropped.is_aligned = False
        if rows is not None and not rows.is_unique:
            return None
        taken = dropped.taken.cpu()
        for mask, wanted, is_cut in self._parts(single, rows, taken.shape):
            if is_close(taken, wanted):
                dropped.is_cut, dropped.is_aligned = is_cut, True
                return mask
            if first is None:
                first, dropped.is_cut = mask, is_cut
        return first

    def _parts(
        self, single: Dropped, rows: Rows | None, shape: torch.Size
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, bool]]:
        assert self._place is not None
        layout, at = self._place
        pairs = zip(bases(single.mask, rows), bases(single.taken, rows), strict=True)
        for mask, taken in pairs:
            for how in cuts(shape, mask.shape, layout, [*layout.axes][::-1]):
                part = cut_of(mask, how, layout, at)
                if part.shape == shape:
                    yield part, cut_of(taken, how, layout, at), bool(how)


# ---- masks of dropout: ranks that work on the same elements must drop the same ones ----


@dataclass
class WrongMask:
    """The first dropout whose masks differ where they must not.

    Attributes:
        module: Its module.
        cause: What differs.
        share: Of the elements.
        ranks: Those that differ.
        values: By rank which mask it has, where ranks differ from each other.
        is_again: Whether a recomputation differs from its forward.
    """

    module: str
    cause: str
    share: float
    ranks: Sequence[int]
    values: Mapping[int, int] = field(default_factory=dict)
    is_again: bool = False


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
        found = next(self._rates(), None) or next(self._between_ranks(), None)
        return found or next(self._again(), None)

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

    def _between_ranks(self) -> Iterator[WrongMask]:
        """Yield dropouts of the same elements with different masks."""
        modules = dict.fromkeys(n for step in self._ranks for n in step.dropped if AGAIN not in n)
        for module in modules:
            for group in self._layout.groups(self._axes):
                drawn = {
                    r: self._ranks[r].dropped[module]
                    for r in group
                    if module in self._ranks[r].dropped
                }
                if len(drawn) < 2:
                    continue
                for calls in zip(*drawn.values(), strict=False):
                    if any(each.is_cut for each in calls):
                        continue  # Each rank has elements of its own.
                    shares = [_share(calls[0].mask, each.mask) for each in calls]
                    if max(shares) > 0:
                        ranks = [r for r, share in zip(drawn, shares, strict=True) if share]
                        cause = (
                            "another dropout mask on ranks that have the same elements "
                            f"({max(shares):.0%} of them differ): their seeds differ"
                        )
                        values = {r: int(share > 0) for r, share in zip(drawn, shares, strict=True)}
                        yield WrongMask(module, cause, max(shares), ranks, values)

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


def _share(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the share of elements that differ."""
    if one.shape != other.shape:
        return 0.0
    return (one != other).double().mean().item()
