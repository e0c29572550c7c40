"""Programs in double precision: what they cast to narrower types stays in float64.

A difference between a layout and the single program is then far above rounding: a right layout
differs by 1e-14, a fault by 1e-8 and more.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from simrank.isolation.ledger import Ledger, replaced
from simrank.isolation.libraries import ImportWatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    Patches = list[tuple[Any, str, Any]]

_NARROW = (torch.bfloat16, torch.float16)
_WIDE = {
    torch.float64: {
        **dict.fromkeys((torch.float32, *_NARROW), torch.float64),
        torch.complex64: torch.complex128,
    },
    torch.float32: dict.fromkeys(_NARROW, torch.float32),
}
_RING = "torch.distributed.tensor.experimental._context_parallel._attention"
_FLEX = "torch.nn.attention.flex_attention"
_FLEX_IS_EAGER = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
_FSDP = "torch.distributed.fsdp._fully_shard._fsdp_collectives"
_CASTS = {
    torch.Tensor.float: torch.float32,
    torch.Tensor.bfloat16: torch.bfloat16,
    torch.Tensor.half: torch.float16,
}
_GROUPED = (torch._grouped_mm, functional.grouped_mm)  # noqa: SLF001 - the older name


class Widened(TorchFunctionMode):
    """Every call of torch that names a narrower floating type gets another in its place.

    Args:
        dtype: That one, float64 or float32.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._wide = _WIDE[dtype]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Call `func` in the wider type."""
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            name: str = func(*args)  # Code looks for the name of what it knows.
            return name.replace("Double", "Float") if torch.float32 in self._wide else name
        if func in _CASTS:
            named = _CASTS[func]
            return torch.Tensor.to(args[0], self._wide.get(named, named))
        given = {name: self._widened(each) for name, each in (kwargs or {}).items()}
        if func in _GROUPED and args[0].dtype == torch.float64:
            return grouped_mm(*args, **given)
        return func(*map(self._widened, args), **given)

    def _widened(self, argument: Any) -> Any:  # noqa: ANN401 - any argument
        return self._wide.get(argument, argument) if isinstance(argument, torch.dtype) else argument


def grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Compute a grouped product in any type; `torch.nn.functional.grouped_mm` refuses float64.

    Args:
        a: [rows, k], [groups, rows, k] or, with groups along k, [rows, k].
        b: [groups, k, columns], or [k, columns].
        offs: Where each group ends along the dimension that has no groups.
        bias: Not supported, as in torch.
        out_dtype: Of the result.
    """
    assert bias is None, "torch refuses it, too"
    if offs is None:
        return torch.bmm(a, b).to(out_dtype or a.dtype)
    ends = offs.tolist()
    spans = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    if a.dim() == 2 and b.dim() == 2:
        out = torch.stack([a[:, span] @ b[span] for span in spans])
    elif a.dim() == 2:
        parts = [a[span] @ each for span, each in zip(spans, b, strict=True)]
        # Rows behind the last group belong to none.
        out = torch.cat([*parts, a.new_zeros(len(a) - ends[-1], b.shape[-1])])
    else:
        parts = [each @ b[:, span] for span, each in zip(spans, a, strict=True)]
        out = torch.cat([*parts, a.new_zeros(a.shape[1], b.shape[1] - ends[-1])], 1)
    return out.to(out_dtype or a.dtype)


def cast(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Return a floating tensor in another type, if one is given, and others as they are.

    A complex one keeps its imaginary part, which `Module.to` would drop.
    """
    if dtype is None:
        return tensor
    if tensor.is_complex():
        return tensor.to(torch.complex128) if dtype == torch.float64 else tensor
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


@contextmanager
def computing_in(dtype: torch.dtype | None) -> Iterator[list[TorchFunctionMode]]:
    """Compute a block in a type; casts to types narrower than float32 or float64 stay in it.

    Yields:
        The modes that do it.
    """
    if dtype is None or dtype not in _WIDE:
        yield []
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with Widened(dtype) as mode:
            yield [mode]
    finally:
        torch.set_default_dtype(before)


@contextmanager
def backwards_under(
    modes: Callable[[Sequence[torch.Tensor]], Sequence[TorchFunctionMode]],
) -> Iterator[None]:
    """Run the hooks and recomputations of backwards under a rank's modes, too.

    `backward` is a call of torch, in which its caller's modes are off.

    Args:
        modes: Returns those of the running rank, given what its backward begins with.
    """
    autograd: Any = torch.autograd
    original = autograd._engine_run_backward  # noqa: SLF001 - what `backward` and `grad` call

    def run(roots: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's own
        with ExitStack() as stack:
            for mode in modes(roots):
                stack.enter_context(mode)
            return original(roots, *args, **kwargs)

    with replaced(autograd, "_engine_run_backward", run):
        yield


@contextmanager
def once_imported(name: str, patches: Callable[[Any], Patches]) -> Iterator[None]:
    """Replace names of a module of torch, as soon as the program has imported it.

    Args:
        name: Of the module.
        patches: Returns owners, names and values for the module.
    """
    ledger = Ledger(__name__)

    def install(module: ModuleType, is_late: bool) -> None:
        del is_late
        for owner, attribute, value in patches(module):
            ledger.replace(owner, attribute, value)

    watcher = ImportWatcher({name: None}, install)
    try:
        watcher.watch()
        yield
    finally:
        watcher.stop()
        ledger.restore()


@contextmanager
def ring_in(dtype: torch.dtype | None) -> Iterator[None]:
    """Make ring attention accumulate in float64, if that is computed in."""

    def patches(ring: Any) -> Patches:  # noqa: ANN401 - a module of torch
        options = ring._cp_options  # noqa: SLF001 - torch has no other name
        return [(options, "convert_to_f32", options.convert_to_f32 and dtype != torch.float64)]

    try:
        with once_imported(_RING, patches):
            yield
    finally:
        let_flash_take(torch.bfloat16)  # Its own types only.


def fsdp_in(dtype: torch.dtype | None) -> AbstractContextManager[None]:
    """Make FSDP scale gradients in float64 as it does those that float64 stands for.

    It divides gradients of types that it does not know before and after they are summed.
    """
    name = "_get_gradient_divide_factors"

    def patches(fsdp: Any) -> Patches:  # noqa: ANN401 - a module of torch
        original = getattr(fsdp, name)

        @wraps(original)
        def known(*args: Any, **keys: Any) -> Any:  # noqa: ANN401 - torch's own
            def named(each: Any) -> Any:  # noqa: ANN401 - any argument
                return torch.float32 if each is torch.float64 else each

            return original(*map(named, args), **{key: named(each) for key, each in keys.items()})

        return [(fsdp, name, known)] if dtype == torch.float64 else []

    return once_imported(_FSDP, patches)


def let_flash_take(dtype: torch.dtype | None) -> None:
    """Allow float32 and float64 in flash attention, if the programs compute in one of them."""
    if hasattr(torch.ops.simrank_cuda, "let_flash_take_wide"):
        torch.ops.simrank_cuda.let_flash_take_wide(dtype in _WIDE)


def eager() -> AbstractContextManager[None]:
    """Make flex attention, which compiles itself if its caller does not, run as it is written."""
    return once_imported(_FLEX, lambda flex: [(flex, _FLEX_IS_EAGER, True)])
