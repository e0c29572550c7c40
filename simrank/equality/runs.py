"""Runs of a program: the single one, the same with rounding errors, and its layouts."""

from __future__ import annotations

import sys
from collections import defaultdict
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.optim.optimizer import register_optimizer_step_post_hook

from simrank.config.project import SIMULATED
from simrank.context import Context
from simrank.equality.alignment import names_of
from simrank.equality.comparison import VALUES, epsilon_of, errors_of, tolerance_of
from simrank.equality.operations import (
    Located,
    MicroBatches,
    Operations,
    TorchCall,
    first_unknown,
    first_unknown_gradient,
    located,
)
from simrank.equality.precision import (
    backwards_under,
    computing_in,
    eager,
    fsdp_in,
    let_flash_take,
    once_imported,
    ring_in,
)
from simrank.equality.program import Generation, ModelSetting, PartOfBatch, Training, program_of
from simrank.equality.record import GENERATED, CallLog, Reference, Taped, parameters_of
from simrank.equality.tape import Tape
from simrank.equality.tensor_file import TensorFile, release_free_memory
from simrank.equality.verdict import GENERATE, LOSS_MODULE, MODEL, RECORDING, WHOLE, FirstDifference
from simrank.errors import SimrankError
from simrank.isolation.package_changes import RESTART, refusal
from simrank.isolation.private_modules import private_modules
from simrank.multiprocessing.script import run_calls
from simrank.ranks import require_rank
from simrank.ranks.current import rank_program
from simrank.torch.rank_state.turns import EAGER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch.nn import Module
    from torch.overrides import TorchFunctionMode

    from simrank.config.equal import EqualConfig
    from simrank.equality.comparison import Compared
    from simrank.equality.layout import Layout
    from simrank.equality.program import TrainedProgram
    from simrank.equality.record import Names, Record, Spot, Step
    from simrank.multiprocessing.script import Script

_POOL, _STRIDE = 1 << 16, 7919  # Rounding errors that are drawn once, and a prime.
_NOISE_SEED = 7
EXACT, DECLARED = "float64", "declared"
CUDA, CPU = "cuda", "cpu"
_BACKENDS = {CUDA: "nccl", CPU: "gloo"}


@dataclass(frozen=True)
class RunOptions:
    """The program, and how it is run.

    Attributes:
        path: The program's file.
        num_steps: Training steps.
        dtype_name: What parameters and floating inputs are computed in; DECLARED: as they are.
        also_declared: Whether a layout that is equal runs again in its own types.
        device: Where models and batches lie: cuda or cpu; None: cuda, unless that fails.
        cluster: The cluster, by name, or None: of nodes as large as needed.
        excluded: Modules that are not compared.
        renamed: Names of modules on ranks, and those of the single program.
        has_dropout: Whether dropouts drop anything.
        has_gradient: Whether the program's loss, if it has one, is trained.
        cuda_devices: The meaning of cuda: simulated or real.
        private: Packages that each rank executes for itself, and why; those that ranks write
            different values to are added, for the process.
    """

    path: str
    num_steps: int = 2
    dtype_name: str = EXACT
    also_declared: bool = False
    device: str | None = None
    cluster: str | None = None
    excluded: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    has_dropout: bool = True
    has_gradient: bool = True
    cuda_devices: str = SIMULATED
    private: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        path: str,
        config: EqualConfig,
        cuda_devices: str = SIMULATED,
        private: Sequence[str] = (),
    ) -> RunOptions:
        """Return the options of a program with the keys of a file."""
        excluded = (*config.ignore, *config.allow)
        also = config.dtype == DECLARED
        steps, dtype, device = config.steps, EXACT if also else config.dtype, config.device
        return cls(
            path, steps, dtype, also, device,
            excluded=excluded, renamed=config.rename, cuda_devices=cuda_devices,
            private=dict.fromkeys(private, ""),
        )  # fmt: skip

    @property
    def dtype(self) -> torch.dtype | None:
        """Return torch's type; None: the program's own types."""
        found: torch.dtype | None = getattr(torch, self.dtype_name, None)
        return found

    @property
    def device_type(self) -> str:
        """Return `cuda` or `cpu`."""
        return self.device or CUDA


@dataclass
class ModuleWatch:
    """Operations of a module that a run is to record.

    Attributes:
        module: The module, or LOSS_MODULE.
        step: The training step.
        has_integers: Whether also results that are integers.
        done: By rank.
    """

    module: str
    step: int
    has_integers: bool = False
    done: dict[int, list[TorchCall]] = field(default_factory=dict)


def run_single(
    options: RunOptions,
    *,
    num_noisy: int = 1,
    initial: Mapping[str, Taped] | None = None,
    watch: ModuleWatch | None = None,
    file: TensorFile | None = None,
) -> Reference:
    """Run the single program, again with rounding errors, and once more without recording.

    Args:
        options: The program.
        num_noisy: Runs with rounding errors; with none it is not run without recording either.
        initial: Values of the parameters; None: those that it draws, and jitter.
        watch: Operations to record; None: none.
        file: For large tensors of what is returned; None: one of its own.
    """
    kept = file or TensorFile()

    def run(single: _Single) -> Record:
        # What recording does not change is in the file already.
        return single.run(options, initial, watch, TensorFile() if single.number else kept)

    record, *noisy = (run(_Single(number)) for number in range(1 + num_noisy))
    reference = Reference(record, [errors_of(record, each) for each in noisy])
    release_free_memory()
    if num_noisy:
        _note_changed(reference, noisy, run)
    return reference


@dataclass
class LayoutRun:
    """A run of a layout.

    Attributes:
        ranks: The records of the ranks.
        names: By rank, names of its parts' modules and those of the single program.
        races: Accesses that nothing orders: the numbers are right here, and may be wrong on GPUs.
    """

    ranks: list[Record]
    races: list[str]
    names: dict[int, Names]


def run_layout(
    options: RunOptions,
    layout: Layout,
    reference: Record,
    names: Mapping[int, Names] | None = None,
    watch: ModuleWatch | None = None,
) -> LayoutRun:
    """Run the program on a layout.

    Args:
        options: The program.
        layout: Where its ranks stand.
        reference: The single program.
        names: By rank, names of its parts' modules; None: they are found by values.
        watch: Operations to record; None: none.
    """
    found = dict(names or {})
    records: dict[int, Record] = {}
    run = _Run(options, watch)

    def call(rank: int, script: Script) -> None:
        with run.ready() as modes:
            dist.init_process_group(_BACKENDS[options.device_type])
            with run.program(script) as program:
                records[rank] = _rank(run, program, layout, reference, modes, found)
            dist.destroy_process_group()

    context = run.on_ranks(call, layout.num_ranks)
    for rank, record in records.items():
        record.calls = run.log.calls[rank]
    races = [str(race) for race in context.races]
    return LayoutRun([records[rank] for rank in range(layout.num_ranks)], races, found)


@dataclass
class Runner:
    """Runs a program again, to find a cause.

    Attributes:
        options: The program, and how it is run.
        reference: The single program.
    """

    options: RunOptions
    reference: Reference

    def layout(self, layout: Layout) -> LayoutRun:
        """Run a layout."""
        return run_layout(self.options, layout, self.reference.record)

    def begin(
        self,
        layout: Layout,
        ranks: Sequence[int],
        module: str,
        step: int,
        kinds: Sequence[str],
        parts: MicroBatches,
    ) -> Located | None:
        """Return the operation in a module where a difference begins.

        Args:
            layout: Where the ranks stand.
            ranks: Those that are wrong.
            module: The module, or LOSS_MODULE.
            step: The training step.
            kinds: What may differ, VALUES or GRADIENTS, in the order in which to look.
            parts: Micro-batches.

        Returns:
            The operation; None if the single program has all results, or they are not known.
        """
        decoding = self.reference.record.steps[step].decoding
        options = replace(self.options, num_steps=1 + (decoding.batch if decoding else step))
        single, watch = ModuleWatch(module, step), ModuleWatch(module, step)
        run_single(options, num_noisy=0, watch=single)
        run = run_layout(options, layout, self.reference.record, watch=watch)
        every = [watch.done[number] for number in range(layout.num_ranks)]
        calls = [record.calls for record in run.ranks]
        for kind in kinds:
            of_gradients = partial(first_unknown_gradient, parts=parts)
            find = first_unknown if kind == VALUES else of_gradients
            found = [(rank, find(single.done[0], every, rank, layout)) for rank in ranks]
            begins = [
                (located(each, every[rank], calls[rank], layout), rank)
                for rank, each in found
                if each is not None
            ]
            if begins:  # Others are wrong later, by what they get from it.
                begin, rank = min(begins, key=lambda pair: (not pair[0].is_before, pair[0].number))
                if begin.times:
                    begin.place = self._term(layout, rank, step, every[rank]) or begin.place
                return begin
        return None

    def _term(self, layout: Layout, rank: int, step: int, within: Sequence[TorchCall]) -> str:
        """Return the line of the loss that takes a number which a module gives; "" for none.

        Args:
            layout: Where the ranks stand.
            rank: The rank.
            step: The training step.
            within: The operations of the module.
        """
        given = [each for done in within for each in done.results if each.numel() == 1]
        watch = ModuleWatch(LOSS_MODULE, step)
        run_layout(
            replace(self.options, num_steps=1 + step), layout, self.reference.record, watch=watch
        )
        places = (
            done.place
            for done in watch.done[rank]
            if any(
                torch.equal(one.flatten(), each.flatten()) for one in done.taken for each in given
            )
        )
        return next(places, "")

    def origin(self, layout: Layout, rank: int, step: int, wrong: Compared) -> str:
        """Return the line outside of modules that gave a wrong tensor; "" if it is not known.

        Args:
            layout: Where the ranks stand.
            rank: One that is wrong.
            step: The decoding step, among those of all batches.
            wrong: What the model took in it, or what was returned after it.
        """
        decoding = self.reference.record.steps[step].decoding
        assert decoding is not None
        is_before = wrong.spot.module != GENERATED and decoding.number
        watch = ModuleWatch(GENERATE, step - 1 if is_before else step, has_integers=True)
        options = replace(self.options, num_steps=1 + decoding.batch)
        run_layout(options, layout, self.reference.record, watch=watch)
        got = wrong.got[rank][0].flatten()
        places = (
            done.place
            for done in watch.done[rank]
            if any(torch.equal(each.flatten(), got) for each in done.results)
        )
        return next(places, "")

    def part_gradients(
        self, step: int, spot: Spot, parts: Sequence[Mapping[int, Sequence[int]]]
    ) -> list[dict[str, torch.Tensor]]:
        """Return the gradients of the parameters by parts of an output of the single program.

        Args:
            step: The training step.
            spot: The output.
            parts: For each, by call of the output, the elements through which its gradient flows.
        """
        found: list[dict[str, torch.Tensor]] = []
        options = self.options
        run = _Run(options)

        def make(parts: Sequence[Module]) -> Tape:
            run.tapes[0] = Tape(parts)
            return run.tapes[0]

        def call_single(_: int, script: Script) -> None:
            for flows in parts:
                drops = options.has_dropout
                part = PartOfBatch(step + 1, make, spot, flows, has_dropout=drops)
                with run.ready() as modes, run.program(script) as program, part.recorded(modes):
                    program.train(ModelSetting(options.dtype, options.device_type), part)
                found.append(part.gradients)

        run.on_ranks(call_single, 1)
        return found


class _Run:
    """A run of some ranks.

    Args:
        options: The program, and how it is run.
        watch: Operations to record; None: none.
        file: For large tensors; None: one of its own.

    Attributes:
        file: That one.
        tapes: Those of the ranks.
        log: Of their collectives.
    """

    def __init__(
        self,
        options: RunOptions,
        watch: ModuleWatch | None = None,
        file: TensorFile | None = None,
    ) -> None:
        self.options, self.file = options, file or TensorFile()
        self._watch = watch
        self.tapes: dict[int, Tape] = {}
        self.log = CallLog()
        self._modes: dict[int, list[TorchFunctionMode]] = {}

    def on_ranks(self, call: Callable[[int, Script], None], num_ranks: int) -> Context:
        """Call a function on ranks of their own Context, and return it.

        Again with a package private that ranks have written different values to.
        """
        conflicts: dict[str, str] = {}
        try:
            context = self._once(call, num_ranks, conflicts)
        except SimrankError as error:
            for rank, cause in getattr(error, "errors", {}).items():
                refused = refusal(rank, cause)
                if refused is not None:  # Perhaps what an earlier run has done.
                    conflicts.setdefault(refused[0], str(refused[1]).partition("\n")[0])
            if not conflicts.keys() - self.options.private:
                raise
        if not conflicts.keys() - self.options.private:
            return context
        self.options.private.update({**conflicts, **self.options.private})
        return self.on_ranks(call, num_ranks)

    def _once(
        self, call: Callable[[int, Script], None], num_ranks: int, conflicts: dict[str, str]
    ) -> Context:
        self.log = CallLog()
        cluster = self.options.cluster
        races = "report" if num_ranks > 1 else "off"
        settings: dict[str, Any] = {"races": races, "flight_recorder": self.log}
        settings["cuda_devices"] = self.options.cuda_devices
        settings["private"] = tuple(self.options.private) or None
        settings["carrier"] = "thread"  # All programs use torch, if through an adapter.
        context = (
            Context.for_ranks(num_ranks, **settings)
            if cluster is None
            else Context(cluster, **settings)
        )
        # A package that is private already conflicts no more; a rerun keeps those of the project.
        known = dict.fromkeys(context.private, "")
        context.program.local[RESTART] = lambda name, why: conflicts.update({**known, name: why})
        backwards = backwards_under(self._modes_here)
        dtype = self.options.dtype
        noted = register_optimizer_step_post_hook(self._note_optimizer)
        patched = ExitStack()
        with noted, context, backwards, patched:
            for each in (_trials_paused(self.tapes), ring_in(dtype), fsdp_in(dtype), eager()):
                patched.enter_context(each)
            run_calls(context.program, self.options.path, call, num_ranks)
            self.tapes.clear()  # They hold models, which die with the Context then.
            self._modes.clear()
        release_free_memory()
        return context

    @contextmanager
    def ready(self) -> Iterator[list[TorchFunctionMode]]:
        """Set up the running rank; yield the modes of its backwards, which may be added to."""
        program = require_rank("a run")
        program.local[EAGER] = True  # Compiled kernels do not compute in float64.
        rank = program.rank or 0
        num_devices = torch.cuda.device_count()
        if not num_devices:
            raise SimrankError(
                "the ranks of the layout see no CUDA device\n"
                "  to fix: leave out CUDA_VISIBLE_DEVICES and --devices real, or give --device cpu"
            )
        torch.cuda.set_device(rank % num_devices)
        let_flash_take(self.options.dtype)
        with self._watching(rank), computing_in(self.options.dtype) as modes:
            self._modes[rank] = modes
            yield modes

    def program(self, script: Script) -> AbstractContextManager[TrainedProgram]:
        """Run the program's file on the running rank; yield its functions."""
        return _program(script, has_gradient=self.options.has_gradient)

    @contextmanager
    def _watching(self, rank: int) -> Iterator[None]:
        watch = self._watch
        if watch is None:
            yield
            return

        def is_in_module() -> bool:
            return rank in self.tapes and self.tapes[rank].is_in(watch.module, watch.step)

        def is_gradient(tensor: torch.Tensor) -> bool:
            return rank in self.tapes and self.tapes[rank].is_gradient(tensor)

        integers = watch.has_integers
        with Operations(is_in_module, is_gradient, has_integers=integers) as operations:
            yield
        watch.done[rank] = operations.done

    def _note_optimizer(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        program = rank_program()
        tape = None if program is None else self.tapes.get(program.rank or 0)
        if tape is not None:
            tape.note_optimizer(optimizer)

    def _modes_here(self, roots: Sequence[torch.Tensor]) -> Sequence[TorchFunctionMode]:
        program = rank_program()
        if program is None:
            return ()
        rank = program.rank or 0
        if rank in self.tapes:
            self.tapes[rank].note_roots(roots)
        return self._modes.get(rank, ())


@contextmanager
def _program(script: Script, *, has_gradient: bool) -> Iterator[TrainedProgram]:
    """Run the program's file on a rank, as a module of the rank's own; yield its functions."""
    name = f"{Path(script.path).stem}_{require_rank('a program').rank}"
    module = ModuleType(name)
    module.__file__ = script.path
    sys.modules[name] = module  # Dataclasses and pickles look it up.
    own = private_modules(require_rank("a program"))
    if own is not None:  # It may import what the rank has for itself.
        own.add(name, module, script.code)
    try:
        exec(script.code, module.__dict__)  # noqa: S102 - the user's own file
        yield program_of(module.__dict__, script.path, has_gradient=has_gradient)
    finally:
        sys.modules.pop(name, None)


def _noise(options: RunOptions, number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that multiplies each element by 1 and a rounding error."""
    drawn = torch.Generator().manual_seed(_NOISE_SEED + number)
    epsilon = torch.finfo(options.dtype or torch.float32).eps / 2
    pool = torch.randn(_POOL, generator=drawn, dtype=torch.float64) * epsilon
    start = 0

    def noisy(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal start
        if not tensor.is_floating_point():
            return tensor
        start = (start + _STRIDE) % _POOL
        errors = pool.roll(-start)[: tensor.numel()]
        if tensor.numel() > _POOL:
            errors = errors.repeat(-(-tensor.numel() // _POOL))[: tensor.numel()]
        factors = (1 + errors).view(tensor.shape)
        return tensor * factors.to(tensor.device, tensor.dtype)

    return noisy


@dataclass(frozen=True)
class _Single:
    """A run of the single program.

    Attributes:
        number: With one above 0 there are rounding errors.
        watched: Modules that are recorded; None: all.
        records_dropouts: Whether dropouts are recorded.
    """

    number: int = 0
    watched: Sequence[str] | None = None
    records_dropouts: bool = True

    def run(
        self,
        options: RunOptions,
        initial: Mapping[str, Taped] | None,
        watch: ModuleWatch | None,
        file: TensorFile | None,
    ) -> Record:
        """Run it on a rank of its own, and return its record."""
        run, records = _Run(options, watch, file), []

        def call(_: int, script: Script) -> None:
            # The file is run again: its globals may hold an optimizer, or a generator.
            with run.ready() as modes, run.program(script) as program:
                records.append(self._record(run, program, modes, initial))

        run.on_ranks(call, 1)
        return records[0]

    def _record(
        self,
        run: _Run,
        program: TrainedProgram,
        modes: list[TorchFunctionMode],
        initial: Mapping[str, Taped] | None,
    ) -> Record:
        options = run.options
        noise = _noise(options, self.number) if self.number else None

        def make(parts: Sequence[Module]) -> Tape:
            if noise is not None:
                with torch.no_grad():
                    for parameter in parameters_of(parts).values():
                        parameter.copy_(noise(parameter))
            watched, file = self.watched, run.file
            tape = run.tapes[0] = Tape(parts, noise=noise, watched=watched, file=file)
            tape.record.axes, tape.record.shared_axes = program.axes, program.shared_axes
            if isinstance(program, Generation):
                tape.record.tolerance = program.tolerance
            return tape

        drops, records = options.has_dropout, self.records_dropouts
        training = Training(options.num_steps, make, has_dropout=drops, records=records)
        setting = ModelSetting(options.dtype, options.device_type, initial=initial)
        with training.recorded(modes):
            program.train(setting, training)
        return training.tape.record


# ---- the single program without recording: a value that recording loses is lost in both ----

_TO_FIX = (
    "to fix: hand values on as arguments and outputs. A module that is recorded gets views of its "
    "inputs,\nand its caller may get a copy of its output: `is`, hooks, `grad` and writes in place "
    "do not reach the original"
)


def _note_changed(
    reference: Reference, noisy: Sequence[Record], run: Callable[[_Single], Record]
) -> None:
    """Compare the single program with itself without recording, and find what changes it."""
    unrecorded = _Single(watched=(), records_dropouts=False)
    plain = run(unrecorded)
    apart = _first_apart(reference.record, plain, reference.noisy)
    if apart is None:
        every = zip(noisy, reference.noisy, strict=True)
        rounded = [_first_apart(reference.record, each, [errors]) for each, errors in every]
        reference.notes += [
            f"the single program is not stable, and faults may hide: {found[1]} with one rounding "
            "error at each module"
            for found in rounded
            if found is not None
        ]
        return
    again = _first_apart(plain, run(unrecorded), reference.noisy)
    if again is not None:
        reference.notes.append(f"the single program differs from run to run: {again[1]}")
        return
    step, text, error = apart
    modules = list(dict.fromkeys(spot.module for spot, _ in reference.record.steps[0].order))
    low, high = 0, len(modules)  # With the first `high` of them recorded, it changes.
    while low < high:
        middle = (low + high) // 2
        found = _first_apart(run(_Single(watched=modules[:middle])), plain, reference.noisy)
        low, high = (middle + 1, high) if found is None else (low, middle)
    module, begin = (WHOLE, "its dropouts") if not high else (modules[high - 1] or MODEL, "it")
    cause = f"recording {begin} changes the single program: recorded, {text} in plain torch"
    reference.changed = FirstDifference(
        RECORDING, module, (), cause, error, step=step, report=_TO_FIX, needs_masks=False
    )


def _first_apart(
    one: Record, other: Record, noisy: Sequence[Record]
) -> tuple[int, str, float] | None:
    """Return step, text and relative error of the first difference of two runs."""
    every = zip(one.batches(), other.batches(), strict=True)
    for number, (mine, theirs) in enumerate(every):
        noise = [_state_of(record.batches()[number]) for record in noisy]
        have, want, epsilon = _state_of(mine), _state_of(theirs), epsilon_of(one)
        largest: dict[str, float] = defaultdict(float)  # Of all gradients, ...
        for (kind, _), each in have.items():
            largest[kind] = max(largest[kind], _finite(each.value).norm().item())
        for kind, name in dict.fromkeys((*have, *want)):
            got, plain = (_value_of(e.get((kind, name))) for e in (have, want))
            text = f"{kind} {name}".strip() + f" is {_shown(got)}, and {_shown(plain)}"
            if got is None or plain is None or got.shape != plain.shape:
                return number, text, 1.0
            error = (_finite(got) - _finite(plain)).norm().item()
            errors = [each[kind, name].value.item() for each in noise if (kind, name) in each]
            # Rounding errors that do more than that are no measure: they change the program, too.
            limit = min(tolerance_of(got, errors, epsilon), epsilon**0.5 * largest[kind])
            if error > limit:
                return number, text, error / (_finite(plain).norm().item() or 1.0)
    return None


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double().nan_to_num()  # They may be in the same places.


def _value_of(taped: Taped | None) -> torch.Tensor | None:
    return None if taped is None else taped.value


def _state_of(step: Step) -> dict[tuple[str, str], Taped]:
    """Return loss, gradients, parameters and buffers of a step, by kind and name."""
    found = {} if step.loss is None else {("the loss", ""): Taped(step.loss)}
    gradients = {n: e for n, e in step.parameter_gradients.items() if e is not None}
    generated = {str(s.index): c[0] for s, c in step.values.items() if s.module == GENERATED}
    kinds = (
        ("gradient of", gradients),
        ("parameter", step.parameters),
        ("buffer", step.buffers),
        ("generated tensor", generated),
    )
    for kind, tensors in kinds:
        found |= {(f"the {kind}", name): each for name, each in tensors.items()}
    return found


def _shown(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "missing"
    return (
        f"{tensor.item():.6g}"
        if tensor.numel() == 1
        else f"of norm {tensor.double().norm().item():.6g}"
    )


def _rank(
    run: _Run,
    program: TrainedProgram,
    layout: Layout,
    reference: Record,
    modes: list[TorchFunctionMode],
    names: dict[int, Names],
) -> Record:
    """Run the program on one rank of a layout; note the names of its modules."""
    options, rank = run.options, dist.get_rank()
    sizes, axes = tuple(layout.axes.values()), tuple(layout.axes)
    mesh = init_device_mesh(options.device_type, sizes, mesh_dim_names=axes)

    def make(parts: Sequence[Module]) -> Tape:
        release_free_memory()  # Of the whole model.
        if rank not in names:
            names[rank] = names_of(parts, reference, options.renamed)
        run.tapes[rank] = Tape(parts, single=reference, names=names[rank], file=run.file)
        return run.tapes[rank]

    place = layout, layout.coordinates(rank), options.device_type
    training = Training(options.num_steps, make, place, has_dropout=options.has_dropout)
    known = reference.initial, reference.exported
    setting = ModelSetting(options.dtype, options.device_type, layout.sizes, mesh, *known)
    with training.recorded(modes):
        program.train(setting, training)
    return training.tape.record


def _trials_paused(tapes: Mapping[int, Tape]) -> AbstractContextManager[None]:
    """Record nothing while stages of a pipeline find out shapes by trial."""
    names = "_prepare_forward_infra", "_prepare_backward_infra"

    def paused(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's own
            tape = tapes.get(dist.get_rank())
            with nullcontext() if tape is None else tape.paused():
                return original(*args, **kwargs)

        return run

    def patches(module: Any) -> list[tuple[Any, str, Any]]:  # noqa: ANN401 - a module of torch
        stage = module.PipelineStage
        return [(stage, name, paused(getattr(stage, name))) for name in names]

    return once_imported("torch.distributed.pipelining.stage", patches)
