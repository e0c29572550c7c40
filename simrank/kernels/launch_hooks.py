"""Triton's hooks around launches: profilers and programs that count what they launch set them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import triton
from triton.compiler.compiler import LazyDict

from simrank.kernels import arguments
from simrank.kernels.grids import grid_sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.grids import GridSize
    from simrank.kernels.machine.jit import Jit


def hooked(
    launch: Callable[..., Any],
    jit: Jit,
    grid: GridSize,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:  # noqa: ANN401 - an operation, or nothing
    """Return what a launch returns, with the hooks that are set called before and after it.

    They get the kernel's name, the stream, and what its `launch_metadata` says of this launch;
    that sees the kernel's name and options, as the simulator compiles nothing for it.
    """
    enter, leave = triton.knobs.runtime.launch_enter_hook, triton.knobs.runtime.launch_exit_hook
    if not (_is_set(enter) or _is_set(leave)):
        return launch(jit, grid, args, kwargs)
    metadata = _metadata(jit, grid, args, kwargs)
    if _is_set(enter):
        enter(metadata)
    launched = launch(jit, grid, args, kwargs)
    if _is_set(leave):
        leave(metadata)
    return launched


def _is_set(hook: object) -> bool:
    """Return whether anybody is called: a chain of hooks may be empty."""
    return hook is not None and bool(getattr(hook, "calls", True))


def _metadata(jit: Jit, grid: GridSize, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LazyDict:
    driver = triton.runtime.driver.active
    stream = driver.get_current_stream(driver.get_current_device())
    metadata = LazyDict({"name": jit.__name__, "function": None, "stream": stream})
    described = getattr(jit, "launch_metadata", None)
    if described is not None:
        own = {k: v for k, v in kwargs.items() if k not in ("mode", "precision")}
        bound = arguments.by_name(jit, args, own)
        chosen = {"num_warps": 4, "num_stages": 3, "num_ctas": 1}
        options = {name: kwargs.get(name) or usual for name, usual in chosen.items()}
        kernel = SimpleNamespace(name=jit.__name__, **options)
        size = grid_sizes(grid, {**bound, **kwargs})
        metadata.add(described, (size, kernel, bound))
    return metadata
