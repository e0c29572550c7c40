"""Programs in double precision: what they cast to narrower types stays in float64.

A difference between a layout and the single program is then far above rounding: a right layout
differs by 1e-14, a fault by 1e-8 and more.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_WIDE = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}
_RING = "torch.distributed.tensor.experimental._context_parallel._attention"
_CASTS = frozenset({torch.Tensor.float, torch.Tensor.bfloat16, torch.Tensor.half})


class Widened(TorchFunctionMode):
    """Every call of torch that names a narrow floating type gets float64 in its place."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - of any call
        """Call `func` in double precision."""
        if func in _CASTS:
            return torch.Tensor.double(args[0])
        named = {name: _wide(each) for name, each in (kwargs or {}).items()}
        return func(*map(_wide, args), **named)


def _wide(argument: Any) -> Any:  # noqa: ANN401 - any argument
    return _WIDE.get(argument, argument) if isinstance(argument, torch.dtype) else argument


def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a floating tensor in another type, and others as they are.

    A complex one keeps its imaginary part, which `Module.to` would drop.
    """
    if tensor.is_complex():
        return tensor.to(torch.complex128) if dtype == torch.float64 else tensor
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


@contextmanager
def computing_in(dtype: torch.dtype) -> Iterator[list[TorchFunctionMode]]:
    """Compute a block in a type; in float64 casts to narrower types stay in it.

    Yields:
        The modes that do it.
    """
    if dtype != torch.float64:
        yield []
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Widened() as mode:
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

    autograd._engine_run_backward = run  # noqa: SLF001 - as above
    try:
        yield
    finally:
        autograd._engine_run_backward = original  # noqa: SLF001 - as above


@contextmanager
def ring_in(dtype: torch.dtype) -> Iterator[None]:
    """Let attention that is split over ranks add up in float64, if that is computed in."""
    ring: Any = import_module(_RING)._cp_options  # noqa: SLF001 - torch has no other name
    before = ring.convert_to_f32
    ring.convert_to_f32 = before and dtype != torch.float64
    try:
        yield
    finally:
        ring.convert_to_f32 = before
        let_flash_take(torch.float32)


def let_flash_take(dtype: torch.dtype) -> None:
    """Let flash attention compute in float64, if that is computed in, on all ranks from now on."""
    if hasattr(torch.ops.simrank_cuda, "let_flash_take_double"):
        torch.ops.simrank_cuda.let_flash_take_double(dtype == torch.float64)


@contextmanager
def eager() -> Iterator[None]:
    """Run compiled functions as they are written: their kernels do not compute in float64."""
    flex: Any = import_module("torch.nn.attention.flex_attention")
    name = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"  # It compiles itself where nobody else does.
    before = getattr(flex, name)
    setattr(flex, name, True)
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        setattr(flex, name, before)
