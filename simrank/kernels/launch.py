"""Launches: `kernel[grid](...)` is an operation on the current stream of a simulated device."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from simrank.device import Tensor, current_stream
from simrank.device.races import Accesses
from simrank.kernels import arguments, foreign
from simrank.kernels.compiler.metadata import COMPILER_OPTIONS, resources, warm_kernel
from simrank.kernels.compiler.targets import target_of
from simrank.kernels.cost import launches as costs
from simrank.kernels.grids import GridSize, grid_sizes
from simrank.kernels.machine import Options
from simrank.kernels.operation import TritonOperation
from simrank.kernels.running import threads
from simrank.kernels.source.analyse import loaded_by_jit, written_by_jit
from simrank.kernels.source.bind import bind
from simrank.ranks import current_program, require_program

if TYPE_CHECKING:
    from collections.abc import Callable

    from simrank.hardware.spec import DeviceSpec
    from simrank.kernels.machine.jit import Jit
    from simrank.kernels.source.bind import BoundKernel

MODES = ("auto", "batched", "masked", "one-by-one", "shuffled", "tasks")
PRECISIONS = ("ieee", "hardware")


class Watcher(Protocol):
    """Who looks on as kernels are launched; see `rehearsal`."""

    mode: str

    def note(self, *launched: Any) -> None:
        """Remember a launch: rank, kernel, arguments, options, and tensors that are stored to."""


WATCHERS: list[Watcher] = []


class ContextOfLaunch(Protocol):
    """What a launch needs of its Context."""

    precision: str
    strict: bool


class Launch:
    """A kernel, its grid and its arguments.

    Attributes:
        jit: Triton's object of the kernel.
        name: The kernel's name.
        grid: Programs along each axis.
        mode: One of `MODES`, as it was asked for.
        chosen_mode: How it runs.
        ctas_per_sm: How many programs an SM holds at once.
        is_assumed: Whether that number is assumed.
        options: How its programs run.
        parts: Of which storages its arguments are parts; see `Statistics`.
    """

    def __init__(
        self, kernel: BoundKernel, grid: tuple[int, int, int], bound: dict[str, Any],
        options: dict[str, Any], spec: DeviceSpec,
    ) -> None:  # fmt: skip
        self._kernel = kernel
        self._bound = bound
        self._seen = arguments.as_kernel_sees(kernel.jit, bound)
        self.parts = arguments.parts(bound.values())
        self.jit = kernel.jit
        self.name = kernel.jit.__name__
        self.grid = grid
        self.mode = options.pop("mode", "auto")
        if self.mode not in MODES:
            raise ValueError(f"mode={self.mode!r}; choices: {', '.join(MODES)}")
        given = options.get("num_ctas_per_sm")
        self.is_assumed = given is None
        self.ctas_per_sm = costs.DEFAULT_CTAS_PER_SM if given is None else int(given)
        self._compiler_options = {name: options.get(name) for name in COMPILER_OPTIONS}
        constants = {parameter.name for parameter in kernel.jit.params if parameter.is_constexpr}
        self._constants = {name: bound[name] for name in constants}
        effects = kernel.effects
        if self.mode == "auto":
            self.chosen_mode = "tasks" if effects.waits or effects.publishes else "batched"
        elif effects.waits and self.mode != "tasks":
            raise ValueError(
                f"kernel '{self.name}' waits for other programs, so mode={self.mode!r} could "
                "never end\n  to fix: leave mode out"
            )
        elif effects.threads and self.mode == "batched":
            raise ValueError(
                f"kernel '{self.name}' asks which thread it is, so its programs cannot run in "
                "lockstep\n  to fix: leave mode out"
            )
        else:
            self.chosen_mode = self.mode
        context = cast("ContextOfLaunch", require_program("a launch").context)
        precision = options.get("precision", context.precision)
        if precision not in PRECISIONS:
            raise ValueError(f"precision={precision!r}; choices: {', '.join(PRECISIONS)}")
        num_warps = int(options.get("num_warps") or 4)
        warp_size = target_of(spec).warp_size
        self.options = Options(
            is_checked=bool(options.get("debug")) or context.strict or precision == "hardware",
            num_warps=num_warps,
            precision=precision,
            num_threads=warp_size * num_warps if effects.threads else 0,
            warp_size=warp_size,
            is_cooperative=bool(options.get("launch_cooperative_grid", False)),
            arguments=arguments.tensors_by_address(bound),
        )

    def again(self, grid: Any, *args: Any, stream: object = None) -> TritonOperation:
        """Launch the kernel with other arguments, and the same constants and options.

        Args:
            grid: Programs along each axis.
            *args: By position: all, of which constants are not looked at, or all but those.
            stream: Kept for triton's signature: it is the current one.

        Raises:
            TypeError: There are more or fewer.
        """
        del stream
        names = [parameter.name for parameter in self.jit.params]
        if len(args) != len(names):
            names = [name for name in names if name not in self._constants]
        if len(args) != len(names):
            expected = f"{', '.join(names)}, or these and its constants"
            raise TypeError(f"kernel '{self.name}' again: {len(args)} arguments for {expected}")
        given = dict(zip(names, args, strict=True)) | self._constants
        options = {k: v for k, v in self._compiler_options.items() if v is not None}
        launched: TritonOperation = self.jit.run(grid=grid, warmup=False, **(options | given))
        return launched

    @property
    def may_disturb(self) -> bool:
        """Return whether programs may load from memory that they store to."""
        if self.chosen_mode == "tasks" or self.num_programs == 1:
            return False
        loaded, written = loaded_by_jit(self.jit), written_by_jit(self.jit)
        tensors = {n: v.storage for n, v in self._bound.items() if isinstance(v, Tensor)}
        stored = {storage for name, storage in tensors.items() if name in written}
        return any(storage in stored for name, storage in tensors.items() if name in loaded)

    def lacks_values(self) -> bool:
        """Return whether a tensor that it got has no values: its Context is shape-only."""
        tensors = arguments.tensors_of(self._bound.values())
        return any(not tensor.storage.has_values for tensor in tensors)

    @property
    def num_programs(self) -> int:
        """Return the number of programs."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    def ask_compiler(self, spec: DeviceSpec) -> None:
        """Learn from the compiler how many programs an SM holds, unless the launch said so.

        Only where there are more programs than SMs: else one each has room.
        """
        if not self.is_assumed or self.num_programs <= spec.num_sms:
            return
        result = resources(self._kernel.jit, self._bound, self._compiler_options, spec)
        if result is not None:
            self.ctas_per_sm, self.is_assumed = result.ctas_per_sm, False

    def forget_arguments(self) -> None:
        """Let go of the arguments: it has ended, and memory does not stay for who looks at it."""
        self._bound, self._seen = {}, {}

    def body(self, *, forks: str = "") -> Callable[[], Any]:
        """Return what runs the kernel once for the programs that run now; see `bind`."""
        kernel = bind(self._kernel.jit, forks=forks) if forks else self._kernel
        body = partial(kernel.function, **self._seen)
        return threads.running(body) if self.options.num_threads else body


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
    library = foreign.running()
    if library is not None:
        library.prepare()
        library.launched(partial(launch, jit, grid, args, dict(kwargs)), (*args, *kwargs.values()))
        args, kwargs = foreign.converted(library, args, kwargs)
    names = ("debug", "num_ctas_per_sm", "launch_cooperative_grid", *COMPILER_OPTIONS)
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
    library: foreign.Library,
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
        library = foreign.running()
        if library is not None:
            library.prepare()
            args, kwargs = foreign.converted(library, args, kwargs)
        bound = arguments.by_name(jit, args, kwargs)
        return warm_kernel(jit, bound, kwargs, current_stream().device.spec)
    for hook in jit.pre_run_hooks:
        hook(*args, **kwargs)
    return launch(jit, grid, args, kwargs)
