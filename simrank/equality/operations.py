"""Operations of a module: the first that gives what the single program does not have.

Each element of a result is looked for among all that the single program has in that module. This
finds slices, halos and rows in any order, and sums over ranks; it does not tell places apart.
Gradients of results are looked for likewise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves

from simrank.engine import user_site
from simrank.equality.record import is_readable, next_number, taped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from simrank.equality.layout import Layout
    from simrank.equality.record import GroupCall

_MAX_ELEMENTS = 1 << 22  # That a rank keeps; assumed.
_CLOSE, _TINY = 1e-8, 1e-12  # Relative, and absolute; rounding is 1e-14.
_WITH_BIAS = 3  # Tensors: input, weight and bias.
_FEW = 2  # Elements that may be equal by chance.
_tensor: Any = torch.Tensor
_GRADIENT_OF = _tensor.grad.__get__
_OWN_ROWS = ", of its own rows alone,"
_UNFILLED = ("empty", "empty_like", "new_empty", "empty_strided", "resize")


@dataclass
class TorchCall:
    """A call of torch in a module.

    Attributes:
        name: Of the function, such as `softmax`.
        place: Line of the program.
        order: Its number among all tensors and calls, in the order of the run.
        taken: The floating tensors that it takes.
        results: Its floating results.
        settings: Its numbers and flags, by name or position.
        gradients: Those of its results, by their place, with their order.
    """

    name: str
    place: str
    order: int
    taken: list[torch.Tensor]
    results: list[torch.Tensor]
    settings: dict[str, object]
    gradients: dict[int, tuple[int, torch.Tensor]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Return `softmax at layers.py:8`."""
        return f"{self.name} at {self.place}"


@dataclass
class Unknown:
    """A result, an input or a gradient that the single program does not have.

    Attributes:
        done: The operation.
        what: Words for it.
        order: Its number among all tensors and calls.
        number: Operations, or gradients, that are right before it.
        is_taken: Whether the operation takes it, and no other gave it.
        times: Of a gradient: how often each micro-batch counts it; 0: that does not explain it.
    """

    done: TorchCall
    what: str
    order: int
    number: int
    is_taken: bool = False
    times: float = 0.0


@dataclass
class Located:
    """The place where a difference begins.

    Attributes:
        text: What is wrong there: `what mul at layers.py:8 gives`.
        place: Line of the program.
        number: Operations, or gradients, that are right before it.
        is_before: Whether the module's first operation takes it: it began before the module.
        times: As of `Unknown`.
    """

    text: str
    place: str
    number: int
    is_before: bool = False
    times: float = 0.0


class MicroBatches(NamedTuple):
    """Micro-batches of a training step.

    Attributes:
        number: The most of a rank.
        scale: What the gradient of each output is multiplied by; None: it is not known.
    """

    number: int = 1
    scale: float | None = None


_ONE = MicroBatches()


class Operations(TorchFunctionMode):
    """Records the calls of torch while a module runs.

    Args:
        is_in_module: Returns whether it does.
        is_gradient: Returns whether a tensor is that of a parameter: what reduces it is no loss.
        has_integers: Whether results that are integers count, too.

    Attributes:
        done: The calls; none if they have more elements than can be kept.
    """

    def __init__(
        self,
        is_in_module: Callable[[], bool],
        is_gradient: Callable[[torch.Tensor], bool],
        *,
        has_integers: bool = False,
    ) -> None:
        super().__init__()
        self.done: list[TorchCall] = []
        self._is_in_module, self._has_integers = is_in_module, has_integers
        self._is_gradient = is_gradient
        self._num_elements = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Call `func`, and record what it gives."""
        is_left_out = self._num_elements > _MAX_ELEMENTS or not self._is_in_module()
        is_left_out = is_left_out or func == _GRADIENT_OF
        if is_left_out or any(map(self._is_gradient, _floating((args, kwargs)))):
            return func(*args, **(kwargs or {}))
        taken = [taped(each).value for each in _floating((args, kwargs))]
        out = func(*args, **(kwargs or {}))
        results, site = _floating(out, has_integers=self._has_integers), user_site()
        name = _name(func)
        if results and site is not None and name not in _UNFILLED:
            kept = [taped(each).value for each in results]
            self._num_elements += sum(each.numel() for each in (*taken, *kept))
            place, settings = str(site.line()), _settings(args, kwargs or {})
            done = TorchCall(name, place, next_number(), taken, kept, settings)
            self.done.append(done)
            for number, each in enumerate(results):
                if each.requires_grad and torch.is_grad_enabled():
                    each.register_hook(_Kept(done, number))
        if self._num_elements > _MAX_ELEMENTS:
            self.done.clear()
        return out


@dataclass
class _Kept:
    """A hook that keeps a gradient."""

    done: TorchCall
    number: int

    def __call__(self, gradient: torch.Tensor | None) -> None:
        if gradient is not None:
            kept = taped(gradient)
            self.done.gradients[self.number] = kept.order, kept.value


def _name(func: Callable[..., Any]) -> str:
    """Return `mul` of `torch.Tensor.__mul__`, and `T` of `torch.Tensor.T.__get__`."""
    parts = (resolve_name(func) or getattr(func, "__name__", "")).split(".")
    if parts[-1] == "__get__" and len(parts) > 1:
        parts.pop()
    return parts[-1].strip("_")


def _floating(values: object, *, has_integers: bool = False) -> list[torch.Tensor]:
    return [
        each
        for each in tree_leaves(values)
        if isinstance(each, torch.Tensor)
        and (has_integers or each.is_floating_point())
        and is_readable(each)
    ]


def _settings(args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
    named = {f"argument {number}": each for number, each in enumerate(args)} | dict(kwargs)
    return {
        name: each
        for name, each in named.items()
        if isinstance(each, (bool, int, float)) or each is None
    }


def first_unknown(
    single: Sequence[TorchCall], ranks: Sequence[Sequence[TorchCall]], rank: int, layout: Layout
) -> Unknown | None:
    """Return the first result of a rank's operations that the single program does not have.

    Args:
        single: The operations of the single program in the module.
        ranks: Those of each rank.
        rank: The rank that is asked about.
        layout: Where the ranks stand.

    Returns:
        The result, or an input that no operation gave; None if the single program has all.
    """
    own = ranks[rank] if single else []
    pool = _Pool([e for done in single for e in (*done.taken, *done.results, *_without_bias(done))])
    for number, done in enumerate(own):
        for place, result in enumerate(done.results):
            parts = (_result(ranks[peer], number, place, done) for peer in range(len(ranks)))
            if pool.has(result) or pool.has_sum([*parts], rank, layout):
                continue
            if any(_is_new(each, own[:number]) and not pool.has(each) for each in done.taken):
                what = f"what {done.text} takes"
                return Unknown(done, what, done.order, number, is_taken=True)
            statistic = _statistic(done, own[:number], pool)
            if statistic is not None:
                what = f"what {statistic.text} gives{_OWN_ROWS}"
                return Unknown(statistic, what, statistic.order, number)
            what = f"what {done.text} gives{_changed(done, single)}"
            return Unknown(done, what, done.order, number)
    return None


def _statistic(done: TorchCall, before: Sequence[TorchCall], pool: _Pool) -> TorchCall | None:
    """Return the mean or other reduction that an unknown result is, or takes as one number."""
    if _is_reduction(done) and all(map(pool.has, done.taken)):
        return done
    for taken in done.taken:
        for each in before if taken.numel() < _FEW else ():
            is_result = any(torch.equal(taken, result) for result in each.results)
            if is_result and _is_reduction(each) and not pool.has(taken, least=1):
                return each
    return None


def _is_reduction(done: TorchCall) -> bool:
    """Return whether a call gives fewer elements than the one tensor that it takes."""
    count = done.taken[0].numel() if len(done.taken) == 1 else 0
    return all(each.numel() < count for each in done.results)


def first_unknown_gradient(
    single: Sequence[TorchCall],
    ranks: Sequence[Sequence[TorchCall]],
    rank: int,
    layout: Layout,
    parts: MicroBatches = _ONE,
) -> Unknown | None:
    """Return the first gradient of a rank's results that the single program does not have.

    Its loss may be another multiple of that of the rank, by sizes of axes.

    Args:
        single: The operations of the single program in the module.
        ranks: Those of each rank.
        rank: The rank that is asked about.
        layout: Where the ranks stand.
        parts: Micro-batches.

    Returns:
        The gradient; None if the single program has all.
    """
    every = [value for done in single for _, value in done.gradients.values()]
    scales = _scales(layout) if parts.scale is None else [parts.scale]
    pools = [_Pool([each * scale for each in every]) for scale in scales]
    found = [_first_gradient(pool, ranks, rank, layout) for pool in pools]
    if None in found or not every:
        return None
    known = [(pool, each) for pool, each in zip(pools, found, strict=True) if each is not None]
    pool, last = max(known, key=lambda pair: pair[1].order)
    sizes = [] if parts.scale is None else layout.axes.values()
    for times in (e for size in {parts.number, *sizes} - {1} for e in (size, 1 / size)):
        gradients = [each / times for _, each in last.done.gradients.values()]
        if all(pool.has(each, least=1) for each in gradients):
            last.times = times
            return last
    value = first_unknown(single, ranks, rank, layout)
    return value if value is not None and value.what.endswith(_OWN_ROWS) else last


def _first_gradient(
    pool: _Pool, ranks: Sequence[Sequence[TorchCall]], rank: int, layout: Layout
) -> Unknown | None:
    own = [
        (order, number, place)
        for number, done in enumerate(ranks[rank])
        for place, (order, _) in done.gradients.items()
    ]
    for count, (order, number, place) in enumerate(sorted(own)):
        done = ranks[rank][number]
        parts = [_gradient(ranks[peer], number, place, done) for peer in range(len(ranks))]
        if not pool.has(done.gradients[place][1]) and not pool.has_sum(parts, rank, layout):
            return Unknown(done, f"the gradient of what {done.text} gives", order, count)
    return None


def _scales(layout: Layout) -> Iterator[float]:
    """Yield 1, and products of sizes of axes and their inverses."""
    sizes = [size for size in layout.axes.values() if size > 1]
    products = {
        prod(some) for count in range(len(sizes) + 1) for some in combinations(sizes, count)
    }
    for number in sorted(products):
        yield float(number)
        if number > 1:
            yield 1 / number


def _result(every: Sequence[TorchCall], number: int, place: int, like: TorchCall) -> Any:  # noqa: ANN401
    """Return the tensor of another rank at the same place, or None."""
    done = every[number] if number < len(every) else None
    is_same = done is not None and done.name == like.name and place < len(done.results)
    return done.results[place] if done is not None and is_same else None


def _gradient(every: Sequence[TorchCall], number: int, place: int, like: TorchCall) -> Any:  # noqa: ANN401
    done = every[number] if number < len(every) else None
    is_same = done is not None and done.name == like.name and place in done.gradients
    return done.gradients[place][1] if done is not None and is_same else None


def _without_bias(done: TorchCall) -> list[torch.Tensor]:
    """Return the output of a linear layer or a convolution before its bias: ranks add it later."""
    is_biased = len(done.taken) == _WITH_BIAS and done.taken[-1].dim() == 1
    if not is_biased or not done.name.startswith(("linear", "conv")):
        return []
    out, bias = done.results[0], done.taken[-1]
    dim = out.dim() - 1 if done.name == "linear" else 1
    return [out - bias.view([-1 if at == dim else 1 for at in range(out.dim())])]


def _is_new(taken: torch.Tensor, before: Sequence[TorchCall]) -> bool:
    """Return whether a tensor is none that operations have given: a collective has changed it."""
    given = (each for done in before for each in done.results)
    return not any(each.shape == taken.shape and torch.equal(each, taken) for each in given)


def _changed(done: TorchCall, single: Sequence[TorchCall]) -> str:
    """Return ` with scale 0.5, and not 0.25` where the single program's calls differ so."""
    alike = [other.settings for other in single if other.name == done.name]
    if not alike or done.settings in alike:
        return ""
    own = done.settings
    others = [
        {key: each.get(key) for key in own.keys() | each.keys() if each.get(key) != own.get(key)}
        for each in alike
    ]
    nearest = min(others, key=len)
    texts = [
        f"{key} {_short(own.get(key))}, and not {_short(nearest[key])}" for key in sorted(nearest)
    ]
    return f" with {'; '.join(texts)}"


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def located(
    found: Unknown, own: Sequence[TorchCall], calls: Sequence[GroupCall], layout: Layout
) -> Located:
    """Return the place of a difference; it is a collective's if one gave the tensor.

    Args:
        found: What the single program does not have.
        own: The operations of the rank.
        calls: Its collectives and messages.
        layout: Where the ranks stand.
    """
    done = found.done
    if found.is_taken:
        before = max((o.order for o in own if o.order < done.order), default=-1)
        between = [call for call in calls if before < call.order < done.order]
        if between:
            text = f"what {between[-1].text(layout)} gives to {done.name} at {done.place}"
            return Located(text, between[-1].place or done.place, found.number)
    is_before = found.is_taken and not found.number
    return Located(found.what, done.place, found.number, is_before, found.times)


class _Pool:
    """Elements that are known.

    Args:
        tensors: Tensors of them.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        every = [each.flatten().double() for each in tensors]
        self._known = torch.cat(every).sort().values if every else torch.zeros(0)

    def has(self, tensor: torch.Tensor, least: int = _FEW) -> bool:
        """Return whether all elements are known; whole numbers always are, and few may be."""
        known, flat = self._known, tensor.flatten().double()
        flat = flat[flat.isfinite() & (flat != flat.round())]
        if len(flat) < least or not len(known):
            return True
        after = torch.searchsorted(known, flat).clamp(max=len(known) - 1)
        near = torch.stack([known[after], known[(after - 1).clamp(min=0)]])
        apart = (near - flat).abs().min(0).values
        return bool((apart <= _CLOSE * flat.abs() + _TINY).all())

    def has_sum(self, parts: Sequence[torch.Tensor | None], rank: int, layout: Layout) -> bool:
        """Return whether the sum of ranks' tensors over one axis, or two, is known."""
        free = [axis for axis, size in layout.axes.items() if size > 1]
        for axes in (*combinations(free, 1), *combinations(free, 2)):
            some = [parts[peer] for peer in layout.peers(rank, axes)]
            every = [each for each in some if each is not None]
            is_whole = len(every) == len(some) and len({each.shape for each in every}) == 1
            if is_whole and self.has(torch.stack(every).sum(0)):
                return True
        return False
