"""Context: one cluster and engine with devices and ranks, separate from other Contexts."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from simrank import distributed as distributed_module
from simrank import multiprocessing as multiprocessing_module
from simrank.collectives.choice import chooser_of
from simrank.config.checks import MAX_OPERATIONS_BY_DEFAULT, checks_of
from simrank.config.project import checked_choice, project_settings
from simrank.device import AddressSpace, Device, Network, Operation
from simrank.device import Event as EventType  # The plain names are torch's, on the Context.
from simrank.device import Stream as StreamType
from simrank.device.device import Devices, preload
from simrank.device.stated_values import StatedValues, as_stated
from simrank.device.tensors.memory_leaks import held_memory
from simrank.device.tensors.namespace import TorchNames
from simrank.distributed import Work
from simrank.distributed.findings import explain_hang
from simrank.distributed.library import CollectiveLibrary
from simrank.distributed.request import COLLECTIVES
from simrank.engine import Engine, Handle, Task
from simrank.engine.report import report_unreceived, run_out
from simrank.engine.task import check_carrier
from simrank.errors import SimrankError
from simrank.hardware.cluster import Cluster
from simrank.hardware.load import load_cluster
from simrank.multiprocessing.spawn import check_method, end_daemons, spawn_on, warn_of_method
from simrank.ranks import Program, current_program, lifecycle, set_program
from simrank.ranks.extensions import extensions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from os import PathLike
    from types import TracebackType

    from simrank.config.faults import FaultsRef
    from simrank.device.races import RaceChecker
    from simrank.distributed.flight_recorder import FlightRecorder
    from simrank.distributed.replicas import Replicas
    from simrank.engine import Observer
    from simrank.engine.delays import Delays
    from simrank.engine.interface import Choices
    from simrank.engine.watchdog import Watchdog
    from simrank.errors import RaceError, RankState
    from simrank.faults import Faults
    from simrank.kernels.operation import TritonOperation
    from simrank.multiprocessing import ProcessContext
    from simrank.ranks.comparisons import Comparisons
    from simrank.ranks.current import SeesSteps
    from simrank.ranks.folding import Folding
    from simrank.trace.divergence import Divergence

_DEVICES_PER_NODE = 8


class Context(TorchNames):
    """A simulated cluster and everything that runs on it.

    It also has torch's names (`zeros`, `cat`, `float32`, `cuda`, ...), so that a program that takes
    `torch` as a parameter can be handed a Context; see `device/tensors/namespace.py`.

    Args:
        cluster: Name of a built-in cluster, path of a YAML file, mapping such as
            `{"name": "h100_ib", "nodes": 4}`, or a Cluster.
        seed: Decides all random choices; other seeds than 0 also permute events at the same
            simulated time.
        data: False runs shape-only: device tensors above 64 KiB have no values.
        unknown: What a torch program without data reads where a tensor has no value (`.item()`, a
            copy to the host, a mask); each such line is counted in the summary. None: it raises
            UnknownValueError. `StatedValues` states a value per line, and the routing of experts.
        checks: The mistakes that fail a run. "default": races among the first 5,000 operations of
            a program without Triton kernels, and messages that are never received, at the end of
            the block; Works that were not waited for are findings. "all": all of `races="error"`,
            `strict`, `divergence` and `replicas`. "off": for speed; lost messages are findings.
        races: By default as `checks` says; "report" collects races in `ctx.races`, "error" raises
            at the second access; races are accesses to the same bytes that are unordered on
            hardware.
        strict: Findings become errors: at the end of the block, a Work that was not waited for and
            a message that was not received; at a spawn, a function or arguments that cannot be
            sent to real processes. Every nccl send waits for its receiver, so that an exchange that
            works only because small messages are buffered is a deadlock. Every rank starts on
            device 0, as in torch. Kernels load poison where loads are masked off without an
            `other`.
        default_device: The current device of every rank before it calls `set_device`; in torch 0.
            None: each rank starts on its own, unless `strict` is set.
        precision: Arithmetic of kernels. "ieee": as exact as their types allow. "hardware": as on
            GPUs: fp32 inputs of `tl.dot` become tf32 unless the kernel asks otherwise, sums of
            halves are rounded on their way, and masked-off loads without an `other` are poison.
        algorithms: Per collective a forced algorithm: `{"all_reduce": "ring"}`, or with options
            `("ring", {"num_channels": 2})`, a file of MSCCL's XML, or a Triton kernel with options
            `{"kernel": "mine.py", "num_channels": 8}`; default: chosen.
        faults: Injected faults: the path of a YAML file or a list such as
            `[{"kill": 3, "at": "2 ms"}]`; see `simrank.config.faults`.
        delays: Injected delays, to find bugs of order: a seed from 1, the text that a failure
            printed, or `Delays`. See `simrank.explore`.
        timing: The decisions of one run of a search over every timing, in place of simulated time;
            see `simrank.timings.search`.
        watchdog_s: Wall-clock seconds that a rank may compute without a wait before the log
            `simrank` shows its position; None: no limit.
        time_limit_s: Wall-clock seconds of the whole simulation before `TimeLimitError` shows the
            positions of all ranks; time in a debugger does not count. None: no limit.
        on_failure: The effect of a rank's exception on the other ranks of its spawn. "abort" ends
            them all. "continue" lets them run on: waits for the dead rank raise PeerDiedError, and
            `spawn` raises at the end, with all root causes.
        carrier: The stack of each spawned rank. "greenlet" is cheap. "thread" is an OS thread,
            driven in lockstep: results, times and reports are the same, a switch costs about five
            times as much. It is for libraries with state per native thread, and for programs that
            start threads. "auto" takes threads if the program uses such a library (torch), else
            greenlets.
        private: Packages and modules, by their first names, that each rank on a thread executes for
            itself, so that their globals are its own; their importers become private, too. None:
            `private` of `[tool.simrank]` in `pyproject.toml`.
        compute_time: Costs of torch's operations. "roofline": the longest of arithmetic, bytes and
            the device's floor, matrix products as measured. "none": zero, so that only
            communication takes time.
        cuda_devices: The meaning of "cuda" for torch in ranks: "simulated" devices, or torch's own,
            "real". None: `devices` of `[tool.simrank]`, else "real" where torch sees a GPU, and
            "simulated" where it sees none, whichever build it is.
        flight_recorder: A folder for each rank's last calls, written as by torch's flight recorder
            after a failure or at the end; or a `FlightRecorder`.
        divergence: Whether the lines of every rank are recorded, so that a report names the line
            at which ranks diverged, with the values of its condition.
        replicas: Whether the parameters of models in torch's DistributedDataParallel are hashed
            after each optimizer step, so that different replicas are a finding.
        folding: The ranks of a spawn that run and represent others that do the same, see
            `simrank.ranks.folding`; None: all run. Only without data.

    Attributes:
        cluster: The hardware.
        engine: The event loop.
        devices: The simulated devices.
        network: The links of this run.
        program: The main program, on the hub.
        multiprocessing: The names of torch.multiprocessing; `spawn` is on this Context.
        distributed: The functions of torch.distributed.
        faults: The injected faults, or None.
        default_device: The current device of every rank at first; None: each has its own.
        strict, on_failure, carrier, compute_time: As given.
        cuda_devices: As given, else the project's setting, or None.
        private: Packages that each rank executes for itself.
        divergence: The recorder of the ranks' lines, or None.
        replicas: The comparison of replicas of models, or None.
        recorder: The recorder of each rank's last calls, or None.
        unjoined: Spawns with join=False that were not joined yet.
        folding: As given.
        comparisons: Of ranks' numbers, in a folded run; see `simrank.ranks.comparisons`.
        probe: Observes the ranks that run alone, or None; see `simrank.probing`.
        fills_memory: Whether fresh memory of torch's devices holds NaN, as simrank's own does.

    Raises:
        ConfigError: The cluster is unknown or its description is invalid.
    """

    probe: SeesSteps | None = None
    fills_memory: bool = False

    def __init__(  # noqa: PLR0913 - each a keyword of its own
        self,
        cluster: str | Mapping[str, Any] | Cluster = "hgx_h100",
        *,
        seed: int = 0,
        data: bool = True,
        unknown: float | StatedValues | None = None,
        checks: str = "default",
        races: str | None = None,
        strict: bool | None = None,
        default_device: int | None = None,
        precision: str = "ieee",
        algorithms: Mapping[str, Any] | None = None,
        faults: FaultsRef = (),
        delays: Delays | str | int | None = None,
        timing: Choices | None = None,
        watchdog_s: float | None = None,
        time_limit_s: float | None = None,
        on_failure: str = "abort",
        carrier: str = "auto",
        private: Sequence[str] | None = None,
        compute_time: str = "roofline",
        cuda_devices: str | None = None,
        flight_recorder: str | PathLike[str] | FlightRecorder | None = None,
        divergence: bool | None = None,
        replicas: bool | None = None,
        folding: Folding | None = None,
    ) -> None:
        level = checks_of(checks, races, strict, divergence, replicas)
        self.checks = level = level if data else level.without_values()
        self.cluster = _load(cluster)
        self.engine = Engine(seed=seed, delays=_delays(delays), choices=timing)
        self.network = Network(self.engine, self.cluster)
        self.comm_library = _library(self.cluster, algorithms or {})
        report_unreceived(self.engine, self.comm_library.leaks.unreceived)
        self.engine.explain_hang = partial(explain_hang, self.engine, self.comm_library)
        self._space = AddressSpace()
        self.has_values, self.unknown = data, as_stated(unknown)
        self._checker = self.comm_library.races = _race_checker(
            self.engine, level.races, self.stop_race_checks
        )
        self.strict = level.strict
        self.comm_library.buffers_sends = self.comm_library.makes_early = not level.strict
        self.default_device = 0 if level.strict and default_device is None else default_device
        self.precision = checked_choice("precision", precision)
        self.on_failure = checked_choice("on_failure", on_failure)
        check_carrier(carrier)
        self.carrier = carrier
        self.folding, self.comparisons = _checked_folding(folding, has_values=data)
        self.compute_time = checked_choice("compute_time", compute_time)
        project = project_settings()
        asked = cuda_devices or project.devices
        self.cuda_devices = asked and checked_choice("cuda_devices", asked)
        self.private = project.private if private is None else tuple(private)
        self.devices = Devices(self._make_device, self.cluster.num_devices)
        self.program = Program(self, self.engine)
        self.multiprocessing = _Multiprocessing(self)
        self.distributed = distributed_module
        self.unjoined: list[ProcessContext] = []
        self._outer: list[Program | None] = []
        self.faults = _faults(self, faults) if faults else None
        self._watchdog = _watchdog(self.engine, watchdog_s, time_limit_s)
        self.recorder: FlightRecorder | None = None
        self.divergence: Divergence | None = None
        self.replicas: Replicas | None = None
        if level.replicas:
            self.replicas = _new("simrank.distributed.replicas", "Replicas")()
        self._record(flight_recorder, divergence=level.divergence)
        for extension in extensions("make_context"):
            extension.make_context(self)

    def _record(
        self, flight_recorder: str | PathLike[str] | FlightRecorder | None, *, divergence: bool
    ) -> None:
        """Attach the requested recorders, and call them on failures."""
        library, on_failure = self.comm_library, self.engine.on_failure
        if flight_recorder is not None:
            kind = _new("simrank.distributed.flight_recorder", "FlightRecorder")
            recorder: FlightRecorder = kind.of(flight_recorder)
            self.recorder = library.recorder = recorder
            on_failure.append(recorder.failed)
        if divergence:
            divergence_: Divergence = _new("simrank.trace.divergence", "Divergence")(self.engine)
            self.divergence = library.follower = divergence_
            on_failure.append(divergence_.failed)
        if (timing := self.engine.choices) is not None:
            self.observe(cast("Observer", timing))
            on_failure.append(timing.failed)

    def _make_device(self, index: int) -> Device:
        return Device(
            index,
            self.engine,
            self.cluster.device,
            self._space,
            self.network,
            has_values=self.has_values,
            races=self.comm_library.races,
        )

    def stop_race_checks(self) -> None:
        """Look for no further races: those that were found stay."""
        self.comm_library.races = None
        for device in self.devices:
            device.races = None

    @classmethod
    def for_ranks(cls, num_ranks: int, **settings: Any) -> Context:  # noqa: ANN401 - __init__'s
        """Return a Context of HGX H100 nodes, as many as `num_ranks` needs."""
        nodes = max(-(-num_ranks // _DEVICES_PER_NODE), 1)
        cluster = "hgx_h100" if nodes == 1 else {"name": "h100_ib", "nodes": nodes}
        return cls(cluster, **settings)

    # ---- running ----

    def __enter__(self) -> Context:
        """Make this the current Context of the main program."""
        lifecycle.enter(self.engine)
        self._outer.append(current_program())
        self.program.outer = self._outer[0]  # An entry within the Context is no outer one.
        try:
            if self._watchdog is not None and len(self._outer) == 1:
                self._watchdog.start()
            set_program(self.program)
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Run the remaining operations to their ends; after an error, drop them."""
        try:
            if error is None:
                end_daemons(self.program)
                run_out(self.engine)
                for processes in list(self.unjoined):
                    live = [task for task in processes.group.tasks if not task.finished]
                    if processes.was_stopped:
                        continue  # By the caller, without a wait.
                    if not live or not self.engine.reported.issuperset(live):
                        processes.join()  # A failure without a join is not lost.
                self._raise_findings()
            for extension in extensions("check_end"):
                extension.check_end(self, error)
        finally:
            try:
                if self.recorder is not None:
                    self.recorder.finish()
                for processes in list(self.unjoined):  # So that their `finally` blocks run, now.
                    processes.group.abort()
            finally:
                self._leave()

    def _leave(self) -> None:
        """Undo `__enter__`."""
        outer = self._outer.pop()
        try:
            set_program(outer)
            if self._watchdog is not None and not self._outer:
                self._watchdog.stop()
        finally:
            lifecycle.leave(self.engine)

    @property
    def now_ps(self) -> int:
        """Simulated time in picoseconds."""
        return self.engine.now_ps

    @property
    def seed(self) -> int:
        """The seed that replays this run."""
        return self.engine.seed

    @property
    def pending_waits(self) -> list[Task]:
        """Tasks that wait for something now, in the order they were started."""
        return [task for task in self.engine.tasks if task.waiting is not None]

    def wait(self, handle: Handle | Work | EventType | StreamType) -> None:
        """Return when `handle` is complete.

        In a rank (or any greenlet) it goes back to the hub and is resumed at that simulated time;
        on the hub it drives the engine. On something complete it returns at once.

        Raises:
            DeadlockError: On the hub: nothing can complete it.
        """
        if isinstance(handle, Work):
            self.engine.wait(handle.handle)
            _note_seen(handle.handle)
        elif isinstance(handle, Handle):
            self.engine.wait(handle)
            _note_seen(handle)
        elif isinstance(handle, EventType | StreamType):
            handle.synchronize()
        else:
            raise TypeError(
                f"ctx.wait takes a Handle, Work, Event or Stream, not {type(handle).__name__}"
            )

    def drain(self) -> None:
        """Run until nothing is left to happen.

        Raises:
            DeadlockError: Something unfinished can never complete.
        """
        self.engine.run()

    def start(self, body: Callable[[], Any], name: str = "task") -> Task:
        """Start a task of its own at this time, under the program that asks for it."""
        program = current_program() or self.program

        def run() -> None:
            set_program(program)
            body()

        return self.engine.start_task(run, name, program.rank)

    def launch(self, kernel: Any, grid: object, *args: object, **kwargs: object) -> TritonOperation:  # noqa: ANN401
        """Launch a Triton kernel on the running program's current stream: `kernel[grid](...)`.

        Args:
            kernel: A `@triton.jit` function, or what autotune or heuristics made of one.
            grid: Programs along up to three axes, or a function of the arguments.
            *args: Its arguments.
            **kwargs: Its arguments by name, and options; see `simrank.kernels.launch.launch`.

        Returns:
            The operation: a Handle, with `statistics`, `cost`, `mode` and `num_splits`.
        """
        bound: Callable[..., TritonOperation] = self.bind(kernel.run)
        return bound(*args, grid=grid, warmup=False, **kwargs)

    def preload(self, kernels: Iterable[Any] = COLLECTIVES) -> None:
        """Load kernels onto every device now, where devices load them at their first launch.

        Args:
            kernels: Triton kernels, names ("mul"); default: collectives, but none for float16.
        """
        preload((self.devices[index] for index in range(len(self.devices))), kernels)

    def timer(self, delay_ps: int) -> Handle:
        """Return a handle that completes `delay_ps` of simulated time from now."""
        return self.engine.timer(delay_ps)

    @property
    def race_checker(self) -> RaceChecker | None:
        """Return the race checker; None if races are not looked for, or no longer."""
        return self.comm_library.races

    @property
    def races(self) -> list[RaceError]:
        """The races found so far; each pair of accesses once."""
        return [] if self._checker is None else self._checker.races

    @property
    def findings(self) -> list[str]:
        """Findings for the end of a run: leaks, races, and dependence on order."""
        leaks = self.comm_library.leaks
        lines = [f"  {state}" for state in self._untidy()]
        running = {task.rank for task in self.engine.tasks}
        lines += [f"  {state}" for state in held_memory(self.devices, running)]
        lines += ["  " + str(race).replace("\n", "\n  ") for race in self.races]
        lines += [
            f"  recv from any source at {line}: another seed may give other numbers"
            for line in leaks.message_races()
        ]
        lines += [f"  {text}" for text in self.suspicions]
        hints = [hint for each in extensions("findings") for hint in each.findings(self)]
        lines += [f"  {hint}" for hint in [*self._space.hints, *hints]]
        if self.faults is not None:
            lines += [f"  {fault}" for fault in self.faults.unseen()]
        return lines

    @property
    def suspicions(self) -> list[str]:
        """Findings that may explain a failure: threads in disorder, swapped calls, replicas."""
        threads = [str(state) for state in self.comm_library.leaks.threads()]
        swapped = [] if self.divergence is None else self.divergence.findings
        return [*threads, *swapped, *([] if self.replicas is None else self.replicas.findings)]

    def _raise_findings(self) -> None:
        """Raise for what the level of checks does not let pass at the end of a run.

        Raises:
            RaceError: A race was found, and not raised where it was found.
            SimrankError: A message was never received; under `strict` also for other leaks.
        """
        if self.strict and self._untidy():
            raise SimrankError("\n".join(["leaks (proved):", *self.findings]))
        lost = self.comm_library.leaks.lost_messages() if self.checks.fails else []
        if lost:
            lines = ["lost message (proved): sent, and never received", *map(_indented, lost)]
            cure = "receive it; checks='off' lets it pass (`--checks off`)"
            raise SimrankError("\n".join([*lines, f"  to fix: {cure}"]))
        checker = self._checker
        if self.checks.races == "first" and checker is not None and checker.proved:
            raise checker.proved[0]

    @property
    def unchecked(self) -> str | None:
        """The mistakes that this run did not look for, for the summary; None: it did for all."""
        races = self.checks.races
        if races == "off":
            left_out = ["races"]
        elif races == "first" and self._checker is not None and self._checker.was_stopped:
            left_out = ["races after the first operations"]
        else:
            left_out = []
        if not self.strict:
            left_out.append("sends that need buffers")
        if not self.checks.divergence:
            left_out.append("swapped calls")
        if not left_out:
            return None
        return f"not looked for: {', '.join(left_out)} (--checks all)"

    def _untidy(self) -> list[RankState]:
        """Return leaks, and the names of shared modules that ranks have set, for `strict`."""
        of_extensions = [leak for each in extensions("leaks") for leak in each.leaks(self)]
        return [*self.comm_library.leaks.report(), *of_extensions]

    @property
    def notes(self) -> list[str]:
        """Harmless leftovers at the end of a run: groups that were not destroyed."""
        states = [*self.comm_library.leaks.notes(), *self.engine.remarks]
        lines = [f"  {state}" for state in states]
        return lines if self.unchecked is None else [*lines, f"  {self.unchecked}"]

    def observe(self, observer: Observer) -> None:
        """Show an observer everything that happens from now on.

        One that has `on_memory(device, used_bytes, change_bytes, time_ps)` is notified of
        allocations.
        """
        self.engine.observers.append(observer)
        on_memory = getattr(observer, "on_memory", None)
        if on_memory is not None:
            engine = self.engine

            def tell(device: int, used_bytes: int, change_bytes: int) -> None:
                if not self._outer:  # The run is over.
                    return
                task = engine.current_task()
                host_ps = engine.now_ps if task is None else max(engine.now_ps, task.host_ps)
                on_memory(device, used_bytes, change_bytes, host_ps)

            self._space.on_memory.append(tell)


class _Multiprocessing:
    """The names of torch.multiprocessing, with `spawn` on one Context."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def spawn(  # noqa: PLR0913 - torch's signature
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
        *,
        share_args: bool = False,
    ) -> ProcessContext | None:
        """Run `fn(rank, *args)` on ranks of this Context; see `simrank.multiprocessing.spawn`."""
        if start_method != "spawn":
            warn_of_method(start_method)
        options = {"join": join, "daemon": daemon, "share_args": share_args}
        return spawn_on(self._context, start_method, fn, args, nprocs, **options)

    def start_processes(  # noqa: PLR0913 - torch's signature
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
        *,
        share_args: bool = False,
    ) -> ProcessContext | None:
        """Spawn with any start method; see `simrank.multiprocessing.start_processes`."""
        check_method(start_method)
        options = {"join": join, "daemon": daemon, "share_args": share_args}
        return spawn_on(self._context, start_method, fn, args, nprocs, **options)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the module's names
        return getattr(multiprocessing_module, name)


def _new(module: str, name: str) -> Any:  # noqa: ANN401 - a class or function
    """Return a class or function of an optional part, whose module is imported now."""
    return getattr(import_module(module), name)


def _load(cluster: str | Mapping[str, Any] | Cluster) -> Cluster:
    return cluster if isinstance(cluster, Cluster) else load_cluster(cluster)


def _checked_folding(
    folding: Folding | None, *, has_values: bool
) -> tuple[Folding | None, Comparisons | None]:
    if folding is not None and has_values:
        raise ValueError("folding needs data=False: ranks that do not run have no numbers")
    if folding is None:
        return None, None
    return folding, _new("simrank.ranks.comparisons", "Comparisons")(folding.world_size)


def _delays(delays: Delays | str | int | None) -> Delays | None:
    if not isinstance(delays, int | str):
        return delays
    parsed: Delays = _new("simrank.engine.delays", "Delays").parse(str(delays))
    return parsed


def _watchdog(
    engine: Engine, watchdog_s: float | None, time_limit_s: float | None
) -> Watchdog | None:
    if watchdog_s is None and time_limit_s is None:
        return None
    made: Watchdog = _new("simrank.engine.watchdog", "Watchdog")(engine, watchdog_s, time_limit_s)
    return made


def _faults(context: Context, faults: FaultsRef) -> Faults:
    made: Faults = _new("simrank.faults", "Faults")(
        faults, context.engine, context.network, context.comm_library, context.devices
    )
    return made


def _note_seen(handle: Handle) -> None:
    """Order the running program behind an operation, for race checks."""
    if isinstance(handle, Operation):
        handle.host_ordered()


def _race_checker(engine: Engine, races: str, stop: Callable[[], None]) -> RaceChecker | None:
    """Return the race checker, which calls `stop` at its limit of operations; None: no checks."""
    if races == "off":
        return None
    limit = MAX_OPERATIONS_BY_DEFAULT if races == "first" else None
    checker: RaceChecker = _new("simrank.device.races", "RaceChecker")(
        engine, raises=races == "error", max_operations=limit
    )
    checker.on_stop.append(stop)
    return checker


def _indented(state: object) -> str:
    return f"  {state}"


def _library(cluster: Cluster, algorithms: Mapping[str, Any]) -> CollectiveLibrary:
    chooser, named = chooser_of(cluster), dict(algorithms)
    kernels = [extension.take_algorithms(named) for extension in extensions("take_algorithms")]
    num_sms = min(cluster.collectives.num_channels, cluster.device.num_sms)
    forced = _new("simrank.formats.msccl", "forced_algorithms")(named) if named else {}
    library = CollectiveLibrary(chooser.cost, chooser, forced, num_sms)
    for each in kernels:
        library.kernels.update(each)
    return library
