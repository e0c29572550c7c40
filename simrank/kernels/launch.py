"""Launches: `kernel[grid](...)` is an operation on the current stream of a simulated device."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import triton
from triton.compiler.compiler import LazyDict

from simrank.device import Tensor, current_stream
from simrank.device.memory import Accesses
from simrank.kernels import arguments, library_tensors
from simrank.kernels.compiler.metadata import COMPILER_OPTIONS, check_constants, warm_kernel
from simrank.kernels.operation import Launch, TritonOperation
from simrank.kernels.other_languages import not_emulated
from simrank.kernels.source.analyse import effects_with, written_by_jit
from simrank.kernels.source.bind import bind
from simrank.ranks import current_program, require_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simrank.device.stream import Stream
    from simrank.kernels.machine.protocols import Jit


# ---- Grids ----

GridSize = int | Sequence[int] | Callable[[dict[str, Any]], int | Sequence[int]]
# Source: CUDA C++ Programming Guide, technical specifications per compute capability.
_MAX_GRID = (2**31 - 1, 65535, 65535)


def grid_sizes(grid: GridSize, meta: dict[str, Any]) -> tuple[int, int, int]:
    """Return the number of programs along each of three axes.

    Raises:
        TypeError: A size is not an integer.
        ValueError: The grid has more than three axes, or a size that no device takes.
    """
    size = grid(meta) if callable(grid) else grid
    sizes = tuple(size) if isinstance(size, tuple | list) else (size,)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"a grid has one to three axes, got {size!r}")
    try:
        numbers = [operator.index(number) for number in sizes] + [1] * (3 - len(sizes))
    except TypeError:
        raise TypeError(
            f"a grid has whole numbers, got {size!r}\n  to fix: divide with triton.cdiv"
        ) from None
    if min(numbers) < 0:
        raise ValueError(f"a grid has no negative size, got {size!r}")
    if any(number > most for number, most in zip(numbers, _MAX_GRID, strict=True)):
        raise ValueError(
            f"a grid has at most {', '.join(map(str, _MAX_GRID))} programs along its axes, "
            f"got {size!r}\n  to fix: use the first axis for what is long"
        )
    return numbers[0], numbers[1], numbers[2]


# ---- Recorded launches, for `simrank kernels check` ----


class RecordedLaunch(NamedTuple):
    """One launch.

    Attributes:
        rank: The rank that launched the kernel; None for the main program.
        jit: The kernel.
        bound: The arguments by name.
        options: The launch's options for the compiler.
        written: The tensors among the arguments that the kernel's source stores to, by name.
    """

    rank: int | None
    jit: Jit
    bound: dict[str, Any]
    options: dict[str, Any]
    written: dict[str, Tensor]


class LaunchRecorder:
    """Launches within a block.

    Attributes:
        mode: The mode of launches that name none.
        launches: The launches in their order; their arguments live as long as the recorder.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.launches: list[RecordedLaunch] = []


_recorders: list[LaunchRecorder] = []


@contextmanager
def recorded_launches(mode: str = "auto") -> Iterator[LaunchRecorder]:
    """Record the launches within a block, and run those that name no mode in one.

    Args:
        mode: "auto" or "tasks", in which every kernel can run, or "shuffled", in which kernels
            whose programs wait, publish or read clocks run as in "auto".
    """
    recorder = LaunchRecorder(mode)
    _recorders.append(recorder)
    try:
        yield recorder
    finally:
        _recorders.remove(recorder)


# ---- Launches ----


def _pass_over(stream: Stream, launched: Launch) -> None:
    """Note a kernel whose results timing may decide, in a search of every timing."""
    choices = stream.device.engine.choices
    if choices is not None and launched.effects.is_of_timing:
        choices.pass_over("a kernel with atomics, flags or clocks")


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
    library = library_tensors.running((*args, *kwargs.values()))
    if library is not None:
        library.prepare()
        library.launched(partial(launch, jit, grid), args, dict(kwargs))
        args, kwargs = library_tensors.converted(library, args, kwargs)
    names = ("debug", "num_ctas_per_sm", "launch_cooperative_grid", "launch_pdl", *COMPILER_OPTIONS)
    options: dict[str, Any] = {name: kwargs[name] for name in names if name in kwargs}
    options |= {name: kwargs.pop(name) for name in ("mode", "precision") if name in kwargs}
    bound = arguments.by_name(jit, args, kwargs)
    if _recorders:
        options = _modes(jit, bound) | options
    given = dict(options)
    stream = current_stream()
    launched = Launch(
        bind(jit), grid_sizes(grid, {**bound, **kwargs}), bound, options, stream.device.spec
    )
    _pass_over(stream, launched)
    written = written_by_jit(jit)
    check_constants(jit, bound, kwargs, stream.device.spec, written)
    reads = arguments.on_device(bound.values())
    writes = arguments.on_device(value for name, value in bound.items() if name in written)
    waits = launched.chosen_mode == "tasks" and launched.effects.waits
    operation = TritonOperation(stream, launched, Accesses(reads, writes, waits))
    if library is not None:
        operation.phase = library.phase()
    if _recorders:
        _record(jit, bound, given)
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


def _modes(jit: Jit, bound: dict[str, Any]) -> dict[str, Any]:
    """Return the mode that a recorder gives a launch without one, as an option."""
    needs_tasks = effects_with(bind(jit).effects, bound.values()).needs_tasks
    for recorder in _recorders:
        if recorder.mode != "shuffled" or not needs_tasks:
            return {"mode": recorder.mode}
    return {}


def _record(jit: Jit, bound: dict[str, Any], options: dict[str, Any]) -> None:
    for recorder in _recorders:
        written = written_by_jit(jit)
        stored = {name: bound[name] for name in written if isinstance(bound.get(name), Tensor)}
        rank = require_program("a launch").rank
        recorder.launches.append(RecordedLaunch(rank, jit, bound, options, stored))


def _computed(
    library: library_tensors.Library,
    operation: TritonOperation,
    bound: dict[str, Any],
    touched: tuple[list[Tensor], list[Tensor]],
) -> bool:
    """Run a kernel at its launch, as an eager library does; return False if its turn must come.

    Memory that arguments name by address only counts as written.
    """
    if operation.has_its_turn:
        return False
    reads, writes = ([tensor.storage for tensor in tensors] for tensors in touched)
    reached = arguments.reached(bound.values(), None, operation.stream.device.memory.space)
    library.settle([*reads, *reached], [*writes, *reached])
    return operation.compute_now()


def run_jit(jit: Jit, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Launch a kernel of a simulated program; call `original` in any other program."""
    if current_program() is None:
        return original(jit, *args, **kwargs)
    if getattr(jit, "is_gluon", bool)():
        raise not_emulated("Gluon", jit.__name__)
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
    """Call the launch hooks that are set before and after a launch, and return its operation.

    Hooks get the kernel's name, the stream and the result of the kernel's `launch_metadata`, which
    sees the name and options alone: the simulator compiles nothing for it.
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
    """Return whether a hook calls anything: a chain of hooks may be empty."""
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
