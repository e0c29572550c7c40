"""A launched kernel as an operation of a stream, whose cost its programs decide."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from simrank.device import Operation, Tensor
from simrank.device.races import checker_of
from simrank.engine import Activity
from simrank.kernels import arguments, machine
from simrank.kernels import cost as costs
from simrank.kernels.compiler.barriers import are_apart
from simrank.kernels.compiler.compilation_errors import raising
from simrank.kernels.compiler.driver import target_of
from simrank.kernels.compiler.metadata import (
    COMPILER_OPTIONS,
    PointerSignature,
    assembly_of,
    may_not_fit,
    pointer_of,
    resources,
    warm_kernel,
)
from simrank.kernels.machine import LaunchOptions, PublishedError, RunningLaunch, Statistics
from simrank.kernels.machine.statistics import profile_of
from simrank.kernels.races.lanes import lanes_of
from simrank.kernels.races.launch_log import LaunchAccesses, dependence_of
from simrank.kernels.races.operations import look_before, look_within
from simrank.kernels.running import threads
from simrank.kernels.running.batches import Grid
from simrank.kernels.running.programs import Occupancy, ProgramRun
from simrank.kernels.running.sample import Forms, SampleKey, sampled
from simrank.kernels.source.analyse import effects_with, loaded_by_jit, written_by_jit
from simrank.kernels.source.bind import bind
from simrank.kernels.source.scopes import first_line
from simrank.ranks import current_program, require_program, running_as

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from triton.compiler import CompiledKernel

    from simrank.device import Stream
    from simrank.device.memory import Accesses, Storage
    from simrank.hardware.spec import DeviceSpec
    from simrank.kernels.compiler.barriers import Place
    from simrank.kernels.source.bind import BoundKernel
    from simrank.ranks import Program

MODES = ("auto", "batched", "masked", "one-by-one", "shuffled", "tasks")
PRECISIONS = ("ieee", "hardware")
_DEFAULT_STAGES = 3  # Triton's, for NVIDIA's devices.
_MOST_DOT_OUTPUTS = 1 << 16  # An SM's registers; of more the real compiler takes minutes.
_NOTHING = object()  # An argument of which nothing is known any more.
_NUM_SAMPLED = 4  # launches of a kernel that are looked at for a hint of a race


class TritonOperation(Operation):
    """A launched kernel on a stream.

    It computes when its turn comes: what it costs depends on what it did. Its results are in memory
    from its start on; a read before its end is a race.

    Attributes:
        grid: Programs along each axis.
        statistics: What its programs did.
        mode: "batched", "masked", "one-by-one", "shuffled" or "tasks".
        num_splits: How often programs in lockstep went different ways.
        reaches: Memory that it gets as numbers only; it is kept until the operation ends.
    """

    __slots__ = (
        "_activity", "_cost", "_left", "_log", "_program", "_run", "grid", "launch", "mode",
        "num_splits", "reaches", "statistics",
    )  # fmt: skip
    kind = "kernel"
    tells_accesses = True

    def __init__(self, stream: Stream, launch: Launch, touched: Accesses) -> None:
        super().__init__(stream, launch.name, None, touched)
        self.launch = launch
        self.grid = launch.grid
        self.statistics = Statistics()
        self.statistics.profile = profile_of(launch.jit)
        self.statistics.parts = launch.parts
        self._cost: costs.KernelCost | None = None
        self.mode = launch.chosen_mode
        self.num_splits = 0
        self.reaches: list[Storage] = []
        self._log: LaunchAccesses | None = None
        self._activity: Activity | None = None
        self._run: ProgramRun | None = None
        self._left: Grid | None = None
        self._program: Program | None = current_program()
        checker = checker_of(stream.device)
        if checker is not None and checker.is_limited:
            checker.stop()  # Each access of each program would be compared.

    @property
    def cost(self) -> costs.KernelCost:
        """Return the simulated cost of the launch.

        Raises:
            RuntimeError: It has not run.
        """
        if self._cost is None:
            raise RuntimeError(f"the cost of {self.name} is known when it has run: synchronize")
        return self._cost

    @property
    def flops(self) -> float:  # type: ignore[override]
        """Return the floating-point operations of its products, once it has run."""
        return float(sum(self.statistics.flops.values()))

    @property
    def module(self) -> str | None:
        """Return the kernel's name: its code."""
        return str(self.launch.name)

    @property
    def has_its_turn(self) -> bool:
        """Whether programs must run at their turn: they wait or publish, or races are checked."""
        return self.mode == "tasks" or self.stream.device.races is not None

    def __getitem__(self, grid: object) -> Callable[..., TritonOperation]:
        """Return a function that launches the same kernel again, as triton's compiled kernels."""
        return partial(self.launch.again, grid)

    @property
    def asm(self) -> Mapping[str, Any]:
        """Return the compiled kernel by stage: "ttir" to "cubin"."""
        asm: Mapping[str, Any] = self.launch.compiled(self.stream.device.spec).asm
        return asm

    @property
    def metadata(self) -> Any:  # noqa: ANN401 - a tuple of the compiler's own type
        """Return the compiler's metadata of the kernel, with `shared` and `num_warps`."""
        return self.launch.compiled(self.stream.device.spec).metadata

    @property
    def hash(self) -> str:
        """Return the hash of the compiled kernel."""
        return str(self.launch.compiled(self.stream.device.spec).hash)

    @property
    def n_regs(self) -> int:
        """Return the number of registers per thread."""
        return int(self.launch.loaded(self.stream.device.spec).n_regs)

    @property
    def n_spills(self) -> int:
        """Return the number of spilled registers per thread."""
        return int(self.launch.loaded(self.stream.device.spec).n_spills)

    def compute_now(self) -> bool:
        """Run the programs before the operation is issued; return False if its turn must come.

        For tensors of a library that computes at once: nothing that they depend on is in flight.
        What is left of a launch when one of its programs turns out to publish runs at its turn.
        """
        self._left = self._new_grid()
        try:
            self._compute(self._left)
        except PublishedError:
            self.mode = "tasks"
            return False
        self._forget()  # Arguments are not read any more: memory does not stay for them.
        self.touched = None
        return True

    def begin(self) -> None:
        """Run the programs unless they have run, and occupy the device for their cost."""
        device = self.stream.device
        if self._cost is None:
            grid = self._left or self._new_grid()
            if self.mode == "tasks":
                self._start_tasks(grid)
                return
            try:
                self._compute(grid)
            except PublishedError:
                self.mode = "tasks"
                self._start_tasks(grid)
                return
            except Exception as error:  # noqa: BLE001 - raised in the rank that issued it
                self.raise_in_rank(error, first=self.end)
                return
        demands = [(device.sms, float(self.cost.num_sms))]
        if self.cost.hbm_bytes:
            share = self.cost.hbm_bytes / self.cost.duration_ps
            demands.append((device.hbm, min(share, device.hbm.capacity)))
        work_ps = self.cost.duration_ps * device.slowdown
        self._activity = Activity(work_ps, demands, self.end, max_rate=1.0)
        device.pool.start(self._activity)

    def _new_grid(self) -> Grid:
        device = self.stream.device
        rank = None if self._program is None else self._program.rank
        self._log = None
        checker = checker_of(device)
        if checker is not None or self._is_sampled():
            written = () if self.touched is None else (b.storage for b in self.touched.writes)
            watched, begins = [*written, *self.reaches], self.launch.dependence
            shared = () if checker is None else checker.order.shared
            self._log = LaunchAccesses(self.launch.name, rank, watched, shared, begins)
        return Grid(self._setting(), self._log, is_sample=checker is None)

    def _setting(self) -> RunningLaunch:
        launch, device = self.launch, self.stream.device
        are_apart = partial(launch.are_apart, device.spec)
        num_warps = launch.options.num_warps
        lanes = lanes_of(launch.jit, device.memory.space, are_apart, num_warps)
        shared = device, self.statistics, launch.options, lanes
        return RunningLaunch(launch.name, launch.grid, *shared)

    def _compute(self, grid: Grid) -> None:
        launch, device = self.launch, self.stream.device
        forms = Forms(launch.name, launch.body(), lambda: launch.body(forks="programs"))
        with running_as(self._program):  # Whose rank its programs may ask for.
            if launch.lacks_values():
                is_plain = self._log is None and not self.reaches
                form = launch.form(device.spec) if is_plain else None
                self.num_splits = sampled(self._setting(), forms, self.mode, self.touched, form)
            else:
                try:
                    grid.run(forms.body, self.mode, masked=forms.masked)
                except PublishedError:
                    if device.races is not None and self._log is not None:
                        look_before(self, self._log, launch.num_programs - len(grid.left))
                    raise
                self.num_splits = grid.num_splits
        if self._log is not None:
            look_within(self, self._log, has_values=not launch.lacks_values())
        if self.statistics.flops:
            counted = self.statistics
            is_usual = counted.dot_outputs <= _MOST_DOT_OUTPUTS
            launch.ask_compiler(device.spec, counted.dot_inputs_bytes if is_usual else 0)
        self._cost = self._counted_cost()
        self._describe()

    def _counted_cost(self) -> costs.KernelCost:
        return costs.kernel_cost(self.statistics, self.stream.device, self.launch.launched)

    def _is_sampled(self) -> bool:
        """Return whether the launch is sampled for a hint of a race."""
        launch, sampled = self.launch, self.stream.device.memory.space.sampled
        _, number = sampled.get(id(launch.jit), (None, 0))
        if number == _NUM_SAMPLED or not launch.may_disturb:
            return False
        sampled[id(launch.jit)] = launch.jit, number + 1  # Held, so that no other gets its id.
        return True

    def _describe(self) -> None:
        """Set the operation's details for timelines."""
        launch, profile = self.launch, self.statistics.profile
        if profile is not None:
            roof = costs.roof_of(self.stream.device, self.statistics)
            profile.ended(launch.num_programs, self.cost, roof, self.rank)
        self.details = {
            "grid": list(launch.grid),
            "mode": self.mode,
            "splits": self.num_splits,
            "limiter": self.cost.limiter,
            "hbm_bytes": self.cost.hbm_bytes,
            "flops": sum(self.statistics.flops.values()),
            "waves": round(self.cost.waves, 3),
        }

    def _start_tasks(self, grid: Grid) -> None:
        """Start the programs as tasks; the operation ends when they have."""
        launch, device = self.launch, self.stream.device
        launch.ask_compiler(device.spec)
        slots = max(device.spec.num_sms * launch.ctas_per_sm, 1)
        done = self.statistics.snapshot()
        self.statistics = costs.TimedStatistics(device, min(slots, max(launch.num_programs, 1)))
        self.statistics.profile = profile_of(launch.jit)
        self.statistics.parts = launch.parts
        self.statistics.restore(done)
        try:
            body = launch.body()
        except Exception as error:  # noqa: BLE001 - raised in the rank that issued it
            self.raise_in_rank(error, first=self.end)
            return
        occupancy = Occupancy(slots, launch.is_assumed)
        self._run = run = ProgramRun(
            self._setting(), grid.left, self, occupancy, body, owner=self._program
        )
        self._program = None
        device.hold(device.sms, self._held_sms())
        run.group.on_complete(self._tasks_ended)
        run.start()

    def _held_sms(self) -> int:
        """Return the number of SMs that concurrent programs occupy."""
        spec = self.stream.device.spec
        return min(-(-self.launch.num_programs // self.launch.ctas_per_sm), spec.num_sms)

    def _tasks_ended(self) -> None:
        """Continue from the hub: the last program has not left its stack yet."""
        self.stream.device.engine.call_at(self.stream.device.engine.now_ps, self._tasks_over)

    def _tasks_over(self) -> None:
        """Complete, at the earliest after the cost of the same work in lockstep."""
        run, device = self._run, self.stream.device
        if run is None:
            return  # Dropped meanwhile.
        if run.group.failed:
            error = run.group.failed[0].error
            assert error is not None, "it failed"
            self.raise_in_rank(error)
        engine, cost = device.engine, self._counted_cost()
        least_ps = self.start_ps + cost.duration_ps  # Together they get no more than there is.
        engine.call_at(max(engine.now_ps, least_ps), lambda: self._tasks_end(cost))

    def _tasks_end(self, cost: costs.KernelCost) -> None:
        device = self.stream.device
        if self._run is None:
            return  # Dropped meanwhile.
        self._run = None
        device.hold(device.sms, -self._held_sms())
        taken_ps = device.engine.now_ps - self.start_ps
        self._cost = cost._replace(duration_ps=taken_ps, limiter="programs")
        self._describe()
        self.end()

    def end(self) -> None:
        """Release memory and the activity, which refers back, and complete."""
        self._activity = None
        self._forget()
        super().end()

    def _forget(self) -> None:
        self._log = self._left = None
        self.reaches = []
        self.statistics.views.clear()
        self.launch.forget_arguments()

    def drop(self) -> None:
        """Stop using the device: the rank was aborted."""
        if self._activity is not None:
            self.stream.device.pool.drop(self._activity)
        if self._run is not None:
            run, self._run = self._run, None
            self.stream.device.hold(self.stream.device.sms, -self._held_sms())
            run.stop()


class ContextOfLaunch(Protocol):
    """The interface of a Context to launches."""

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
        effects: What other programs see of its programs.
        dependence: Whether it, or the launch behind it, may begin before the one in front ends.
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
        self._num_stages = int(options.get("num_stages") or _DEFAULT_STAGES)
        self._num_spilled, self._operand_bytes_per_flop = 0, 0.0  # As far as is known.
        constants = {parameter.name for parameter in kernel.jit.params if parameter.is_constexpr}
        self._constants = {name: bound[name] for name in constants}
        self.effects = effects = effects_with(kernel.effects, self._constants.values())
        if self.mode == "auto":
            self.chosen_mode = "tasks" if effects.needs_tasks else "batched"
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
        self.dependence = dependence_of(kernel.jit.src, options)
        num_warps = int(options.get("num_warps") or 4)
        warp_size = target_of(spec).warp_size
        self.options = LaunchOptions(
            is_checked=bool(options.get("debug")) or context.strict or precision == "hardware",
            num_warps=num_warps,
            precision=precision,
            num_threads=warp_size * num_warps if effects.threads else 0,
            warp_size=warp_size,
            is_cooperative=bool(options.get("launch_cooperative_grid", False)),
            arguments=arguments.tensors_by_address(bound),
        )

    def again(self, grid: object, *args: object, stream: object = None) -> TritonOperation:
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
        """Return whether a tensor argument has no values: its Context is shape-only."""
        tensors = arguments.tensors_of(self._bound.values())
        return any(not tensor.storage.has_values for tensor in tensors)

    @property
    def num_programs(self) -> int:
        """Return the number of programs."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def launched(self) -> costs.LaunchParameters:
        """Return the properties of the launch that its cost depends on."""
        return costs.LaunchParameters(
            self.grid, self.ctas_per_sm, self.options.num_warps, self._num_stages,
            self._num_spilled, self._operand_bytes_per_flop,
        )  # fmt: skip

    def form(self, spec: DeviceSpec) -> SampleKey | None:
        """Return all that decides the counts of a launch on memory without values.

        None where more may: an argument has values, or is no tensor and no number.
        """
        storages: list[Storage] = []
        words: list[object] = [spec, self.grid, self.chosen_mode, self.options[:-1]]
        for name, value in self._bound.items():
            words.append(name)
            if isinstance(value, Tensor):
                storage = value.storage
                if storage.has_values:
                    return None
                if storage not in storages:
                    storages.append(storage)
                bounds = storage.bounds(value.array) if value.numel() else None
                words += [storages.index(storage), bounds, storage.size_bytes, value.dtype.name]
            elif value is None or isinstance(value, bool | int | float | str):
                words += [type(value), value]
            else:
                return None
        return SampleKey(self.jit, tuple(words), storages)

    def ask_compiler(self, spec: DeviceSpec, dot_inputs_bytes: int = 0) -> None:
        """Read the number of programs per SM from the compiler, unless the launch gave it.

        Only where there are more programs than SMs, else one each has room; and where a program's
        dots may want more shared memory than it can have.

        Raises:
            OutOfResources: Triton's own: they do.
        """
        is_crowded = self.num_programs > spec.num_sms
        if not self.is_assumed or not (
            is_crowded or may_not_fit(dot_inputs_bytes * self._num_stages, target_of(spec))
        ):
            return
        result = resources(self._kernel.jit, self._bound, self._compiler_options, spec)
        if result is not None:
            self.ctas_per_sm, self.is_assumed = result.ctas_per_sm, False
            self._num_spilled = result.spilled
            self._operand_bytes_per_flop = result.operand_bytes_per_flop

    def forget_arguments(self) -> None:
        """Release the arguments of an ended launch, and so their memory."""
        left = {name: pointer_of(value) or value for name, value in self._bound.items()}
        kept = (PointerSignature, bool, int, float, type(None))
        self._bound = {name: value for name, value in left.items() if isinstance(value, kept)}
        self._seen = {}

    def compiled(self, spec: DeviceSpec) -> CompiledKernel:
        """Compile the kernel for a device with triton.

        Raises:
            UnsupportedError: The device is not NVIDIA's, or an argument has no plain type.
        """
        bound = {parameter.name: _NOTHING for parameter in self.jit.params} | self._bound
        return warm_kernel(self.jit, bound | self._constants, self._compiler_options, spec)

    def are_apart(self, spec: DeviceSpec, first: Place, second: Place, *, in_a_warp: bool) -> bool:
        """Return whether the compiled kernel has no barrier between two accesses.

        If it cannot be compiled, only a load behind a store is suspected.
        """
        bound = self._bound | self._constants
        before = machine.set_running(None)  # The compiler reads files, so other programs may go on.
        try:
            text = assembly_of(self.jit, bound, self._compiler_options, target_of(spec))
        finally:
            machine.set_running(before)
        if text is None:
            return (first[1], second[1]) == ("writes", "loads")
        return are_apart(text, first, second, in_a_warp=in_a_warp)

    def loaded(self, spec: DeviceSpec) -> CompiledKernel:
        """Compile the kernel, and load its register counts."""
        compiled = self.compiled(spec)
        compiled._init_handles()  # noqa: SLF001 - as programs do that ask for `n_regs`
        return compiled

    def body(self, *, forks: str = "") -> Callable[[], Any]:
        """Return the kernel's body for the running programs; see `bind`."""
        kernel = bind(self._kernel.jit, forks=forks) if forks else self._kernel
        body: Callable[[], Any] = partial(kernel.function, **self._seen)
        body = raising(body, kernel.jit, first_line(kernel.jit))
        return threads.running(body) if self.options.num_threads else body
