"""Launches: `kernel[grid](...)` is an operation on the current stream of a simulated device."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import triton
from triton.compiler.compiler import LazyDict

from simrank.device import Tensor, current_stream
from simrank.device.memory import Accesses
from simrank.kernels import arguments, library_tensors
from simrank.kernels.compiler.metadata import COMPILER_OPTIONS, warm_kernel
from simrank.kernels.grids import GridSize, grid_sizes
from simrank.kernels.operation import Launch, TritonOperation
from simrank.kernels.source.analyse import written_by_jit
from simrank.kernels.source.bind import bind
from simrank.ranks import current_program, require_program

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.kernels.grids import GridSize
    from simrank.kernels.machine.jit import Jit


class Watcher(Protocol):
    """Who looks on as kernels are launched; see `rehearsal`."""

    mode: str

    def note(self, *launched: Any) -> None:
        """Remember a launch: rank, kernel, arguments, options, and tensors that are stored to."""


WATCHERS: list[Watcher] = []


def launch(
    jit: Jit, grid: GridSize, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> TritonOperation:
    """Issue a kernel on the running program's current stream.

    Args:
        jit: A `@triton.jit` function, or what autotune or heuristics made of one.
        grid: Programs along up to three axes, or a function of the arguments that returns them.
        args: Arguments by position.
        kwargs: Arguments by name, and options: Triton's, `mode` (one of `MODES`; all but "auto" are
            for tests: results are the same in each), `precision` (one of `PRECISIONS`, the
            Context's unless given: "hardware" rounds fp32 inputs of dots to tf32, as NVIDIA GPUs
            do unless the kernel asks for ieee) and `num_ctas_per_sm`.

    Returns:
        The operation; its `statistics` and `cost` are there once it has begun.

    Raises:
        TypeError, ValueError: An argument is not what the kernel takes.
        UnsupportedError: The kernel uses what is not emulated.
    """
    library = library_tensors.running()
    if library is not None:
        library.prepare()
        library.launched(partial(launch, jit, grid), args, dict(kwargs))
        args, kwargs = library_tensors.converted(library, args, kwargs)
    names = ("debug", "num_ctas_per_sm", "launch_cooperative_grid", "launch_pdl", *COMPILER_OPTIONS)
    options: dict[str, Any] = {name: kwargs[name] for name in names if name in kwargs}
    options |= {name: kwargs.pop(name) for name in ("mode", "precision") if name in kwargs}
    for watcher in WATCHERS:
        options.setdefault("mode", watcher.mode)
    given = dict(options)
    bound = arguments.by_name(jit, args, kwargs)
    stream = current_stream()
    size = grid_sizes(grid, {**bound, **kwargs})
    launched = Launch(bind(jit), size, bound, options, stream.device.spec)
    written = written_by_jit(jit)
    reads = arguments.on_device(bound.values())
    writes = arguments.on_device(value for name, value in bound.items() if name in written)
    waits = launched.chosen_mode == "tasks" and bind(jit).effects.waits
    operation = TritonOperation(stream, launched, Accesses(reads, writes, waits))
    for watcher in WATCHERS:
        stored = {n: bound[n] for n in written if isinstance(bound.get(n), Tensor)}
        watcher.note(require_program("a launch").rank, jit, bound, given, stored)
    if launched.chosen_mode == "tasks":  # Peers may write here what its programs only read.
        writes = [*writes, *(t for t in reads if t.storage.device is stream.device)]
    if library is not None and _computed(library, operation, bound, (reads, writes)):
        stream.submit(operation)
        return operation
    for tensor in writes:
        tensor.storage.note_write(operation, tensor.storage.array(np.dtype(np.uint8)))
    operation.reaches = arguments.reached(bound.values(), stream.device)
    for storage in operation.reaches:
        storage.note_write(operation, storage.array(np.dtype(np.uint8)))
    stream.submit(operation)
    if library is not None:
        used = dict.fromkeys([*(tensor.storage for tensor in reads), *operation.reaches])
        filled = dict.fromkeys([*(tensor.storage for tensor in writes), *operation.reaches])
        library.in_flight(operation, list(used), list(filled))
    return operation


def _computed(
    library: library_tensors.Library,
    operation: TritonOperation,
    bound: dict[str, Any],
    touched: tuple[list[Tensor], list[Tensor]],
) -> bool:
    """Run a kernel at its launch, as a library that computes at once does; return whether it ran.

    What it names by address only may be written too.
    """
    if operation.has_its_turn:
        return False
    reads, writes = ([tensor.storage for tensor in tensors] for tensors in touched)
    reached = arguments.reached(bound.values(), None, operation.stream.device.memory.space)
    library.settle([*reads, *reached], [*writes, *reached])
    return operation.compute_now()


def run_jit(jit: Jit, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Stand for `JITFunction.run`: a simulated launch in a program of a Context, else Triton's."""
    if current_program() is None:
        return original(jit, *args, **kwargs)
    grid = kwargs.pop("grid")
    if kwargs.pop("warmup", False):
        library = library_tensors.running()
        if library is not None:
            library.prepare()
            args, kwargs = library_tensors.converted(library, args, kwargs)
        bound = arguments.by_name(jit, args, kwargs)
        return warm_kernel(jit, bound, kwargs, current_stream().device.spec)
    for hook in jit.pre_run_hooks:
        hook(*args, **kwargs)
    return hooked(launch, jit, grid, args, kwargs)


# ---- Triton's hooks around launches ----


def hooked(
    launch: Callable[..., Any],
    jit: Jit,
    grid: GridSize,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
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
