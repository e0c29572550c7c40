"""Programs in double precision: what they cast to narrower types stays in float64.

A difference between a layout and the single program is then far above rounding: a right layout
differs by 1e-14, a fault by 1e-8 and more.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

NARROW = frozenset({torch.float32, torch.bfloat16, torch.float16})
_CASTS = frozenset({torch.Tensor.float, torch.Tensor.bfloat16, torch.Tensor.half})


class Widened(TorchFunctionMode):
    """Every call of torch that names a narrow floating type gets float64 in its place."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],  # noqa: ARG002 - of torch's protocol
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - of any call
        """Call `func` in double precision."""
        if func in _CASTS:
            return torch.Tensor.double(args[0])
        named = {name: _wide(each) for name, each in (kwargs or {}).items()}
        return func(*map(_wide, args), **named)


def _wide(argument: Any) -> Any:  # noqa: ANN401 - any argument
    if isinstance(argument, torch.dtype) and argument in NARROW:
        return torch.float64
    return argument


@contextmanager
def computing_in(dtype: torch.dtype) -> Iterator[None]:
    """Compute a block in a type: in float64, whatever narrower types it casts to."""
    if dtype != torch.float64:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Widened():
            yield
    finally:
        torch.set_default_dtype(before)
