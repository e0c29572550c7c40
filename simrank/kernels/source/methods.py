"""Blocks get the functions that Triton's tensors have as methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton.language as tl
from triton.language import core

from simrank.kernels import machine
from simrank.kernels.running import threads
from simrank.kernels.source.substitute import substitute
from simrank.kernels.values.block import Block

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.source.substitute import Binder


def attach(binder: Binder) -> None:
    """Give blocks the methods that they lack; once."""
    for name, value in vars(core.tensor).items():
        if name.startswith("_") or hasattr(Block, name):
            continue
        function = getattr(tl, name, None) or getattr(core, name, None)
        if callable(value) and function is not None:
            setattr(Block, name, _method(name, function, binder))


def _method(name: str, function: Any, binder: Binder) -> Callable[..., Any]:
    """Return a method that is bound when it is first called."""
    by_forks: dict[str, Callable[..., Any]] = {}

    def method(self: Block, *args: Any, **kwargs: Any) -> Any:
        forks = ""
        if threads.num_threads():
            forks = "threads" if name in threads.OF_MEMORY else ""
        elif machine.now().active is not None:
            forks = "programs"
        if forks not in by_forks:
            by_forks[forks] = substitute(function, binder, forks=forks)
        return by_forks[forks](self, *args, **kwargs)

    return method
