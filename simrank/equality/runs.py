"""Runs of a program: the single one, the same with rounding errors, and its layouts."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._pytree import tree_flatten

from simrank.context import Context
from simrank.equality.calls import CallLog
from simrank.equality.dropouts import Dropouts
from simrank.equality.naming import names_of
from simrank.equality.precision import backwards_under, computing_in, eager, let_flash_take, ring_in
from simrank.equality.program import program_of
from simrank.equality.record import parameters_of, plain_name, taped
from simrank.equality.setting import Setting
from simrank.equality.tape import Tape
from simrank.isolation.private_modules import private_modules
from simrank.multiprocessing.script import run_calls
from simrank.ranks import require_rank
from simrank.ranks.current import rank_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.nn import Module
    from torch.overrides import TorchFunctionMode

    from simrank.config.equal import EqualConfig
    from simrank.equality.layout import Layout
    from simrank.equality.program import Program, Session
    from simrank.equality.record import Record, Spot
    from simrank.multiprocessing.script import Script

_POOL, _STRIDE = 1 << 16, 7919  # Rounding errors that are drawn once, and a prime.
_NOISE_SEED, _TRAIN_SEED = 7, 1


_NOT_NOTED = "the step of a program has to call note_gradients before it clips and uses them"


@dataclass(frozen=True)
class Options:
    """The program, and how it is run.

    Attributes:
        path: The program's file.
        num_steps: Training steps.
        dtype_name: What parameters and floating inputs are computed in.
        cluster: The cluster, by name, or None: of nodes as large as needed.
        excluded: Modules that are not compared.
        renamed: Names of modules on ranks, and those of the single program.
        has_dropout: Whether dropouts drop anything.
    """

    path: str
    num_steps: int = 2
    dtype_name: str = "float64"
    cluster: str | None = None
    excluded: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    has_dropout: bool = True

    @classmethod
    def of(cls, path: str, config: EqualConfig) -> Options:
        """Return the options of a program with the keys of a file."""
        excluded = (*config.ignore, *config.allow)
        return cls(path, config.steps, config.dtype, None, excluded, config.rename)

    @property
    def dtype(self) -> torch.dtype:
        """Return torch's type."""
        found: torch.dtype = getattr(torch, self.dtype_name)
        return found


@dataclass
class Reference:
    """The single program.

    Attributes:
        record: What it did.
        noisy: The same with one rounding error at each module's output and gradient, drawn again.
    """

    record: Record
    noisy: list[Record] = field(default_factory=list)


def run_single(options: Options, *, num_noisy: int = 1) -> Reference:
    """Run the single program, and again with rounding errors."""
    records: list[Record] = []
    for number in range(1 + num_noisy):
        run = _Run(options)

        def call(_: int, script: Script, run: _Run = run, number: int = number) -> None:
            # The file is run again: its globals may hold an optimizer, or a generator.
            with run.ready() as modes, _program(script) as program:
                records.append(_single(run, program, number, modes))

        run.on_ranks(call, 1)
    return Reference(records[0], records[1:])


@dataclass
class LayoutRun:
    """A run of a layout.

    Attributes:
        ranks: The records of the ranks.
        races: Accesses that nothing orders: the numbers are right here, and may be wrong on GPUs.
    """

    ranks: list[Record]
    races: list[str]


def run_layout(options: Options, layout: Layout, reference: Record) -> LayoutRun:
    """Run the program on a layout."""
    records: dict[int, Record] = {}
    run = _Run(options)

    def call(rank: int, script: Script) -> None:
        with run.ready() as modes:
            dist.init_process_group("nccl")
            with _program(script) as program:
                records[rank] = _rank(run, program, layout, reference, modes)
            dist.destroy_process_group()

    context = run.on_ranks(call, layout.num_ranks)
    for rank, record in records.items():
        record.calls = run.log.calls[rank]
    races = [str(race) for race in context.races]
    return LayoutRun([records[rank] for rank in range(layout.num_ranks)], races)


@dataclass
class Runner:
    """Runs a program again, to find a cause.

    Attributes:
        options: The program, and how it is run.
        reference: The single program.
    """

    options: Options
    reference: Reference

    def layout(self, layout: Layout) -> LayoutRun:
        """Run a layout."""
        return run_layout(self.options, layout, self.reference.record)

    def part_gradients(
        self, step: int, spot: Spot, call: int, parts: Sequence[Sequence[int]]
    ) -> list[dict[str, torch.Tensor]]:
        """Return the gradients of the parameters by parts of an output of the single program.

        Args:
            step: The training step.
            spot: The output.
            call: Its call.
            parts: For each the elements through which its gradient flows.
        """
        found: list[dict[str, torch.Tensor]] = []
        run = _Run(self.options)

        def call_single(_: int, script: Script) -> None:
            with run.ready() as modes, _program(script) as program:
                found.extend(_by_parts(run, program, (step, spot, call), parts, modes))

        run.on_ranks(call_single, 1)
        return found


class _Run:
    """A run of some ranks.

    Args:
        options: The program, and how it is run.

    Attributes:
        tapes: Those of the ranks.
        log: Of their collectives.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.tapes: dict[int, Tape] = {}
        self.log = CallLog()
        self._modes: dict[int, list[TorchFunctionMode]] = {}

    def on_ranks(self, call: Callable[[int, Script], None], num_ranks: int) -> Context:
        """Call a function on ranks of their own Context, and return it."""
        cluster = self.options.cluster
        races = "report" if num_ranks > 1 else "off"
        settings: dict[str, Any] = {"races": races, "flight_recorder": self.log}
        settings["carrier"] = "thread"  # All programs use torch, if through an adapter.
        context = (
            Context.for_ranks(num_ranks, **settings)
            if cluster is None
            else Context(cluster, **settings)
        )
        backwards = backwards_under(self._modes_here)
        with context, _trials_paused(self.tapes), backwards, ring_in(self.options.dtype):
            run_calls(context.program, self.options.path, call, num_ranks)
        return context

    @contextmanager
    def ready(self) -> Iterator[list[TorchFunctionMode]]:
        """Set up the running rank; yield the modes of its backwards, which may be added to."""
        rank = require_rank("a run").rank or 0
        torch.cuda.set_device(rank % torch.cuda.device_count())
        let_flash_take(self.options.dtype)
        with computing_in(self.options.dtype) as modes, eager():
            self._modes[rank] = modes
            yield modes

    def _modes_here(self, roots: Sequence[torch.Tensor]) -> Sequence[TorchFunctionMode]:
        program = rank_program()
        if program is None:
            return ()
        rank = program.rank or 0
        if rank in self.tapes:
            self.tapes[rank].note_roots(roots)
        return self._modes.get(rank, ())


@contextmanager
def _program(script: Script) -> Iterator[Program]:
    """Run the program's file on a rank, as a module of the rank's own; yield its functions."""
    name = f"{Path(script.path).stem}_{require_rank('a program').rank}"
    module = ModuleType(name)
    module.__file__ = script.path
    sys.modules[name] = module  # Dataclasses and pickles look it up.
    own = private_modules(require_rank("a program"))
    if own is not None:  # It may import what the rank has for itself.
        own.add(name, module)
    try:
        exec(script.code, module.__dict__)  # noqa: S102 - the user's own file
        yield program_of(module.__dict__, script.path)
    finally:
        sys.modules.pop(name, None)


def _noise(options: Options, number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that multiplies each element by 1 and a rounding error."""
    drawn = torch.Generator().manual_seed(_NOISE_SEED + number)
    epsilon = torch.finfo(options.dtype).eps / 2
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


def _single(run: _Run, program: Program, number: int, modes: list[TorchFunctionMode]) -> Record:
    """Run the single program; with a number above 0 with rounding errors."""
    options = run.options
    session = program.start(Setting(options.dtype))
    noise = _noise(options, number) if number else None
    if noise is not None:
        with torch.no_grad():
            for parameter in parameters_of(session.parts).values():
                parameter.copy_(noise(parameter))
    tape = run.tapes[0] = Tape(session.parts, noise=noise)
    tape.record.axes, tape.record.shared_axes = program.axes, program.shared_axes
    tape.record.exported = session.exported
    _train(session, tape, options, modes)
    return tape.record


def _train(
    session: Session,
    tape: Tape,
    options: Options,
    modes: list[TorchFunctionMode],
    place: tuple[Layout, Mapping[str, int]] | None = None,
) -> None:
    """Do and record the steps."""
    with _dropouts(_dropouts_of(tape, options, place), modes):
        for index in range(options.num_steps):
            torch.manual_seed(_TRAIN_SEED + index)
            with tape.step() as step:
                loss = session.step(index, tape.note_gradients)
                if not step.parameter_gradients:
                    raise RuntimeError(_NOT_NOTED)
                step.loss = None if loss is None else taped(torch.as_tensor(loss)).value
                tape.note_state()
            _forget_gradients(session.parts)
            torch.cuda.synchronize()
            step.to_host()


def _dropouts_of(
    tape: Tape, options: Options, place: tuple[Layout, Mapping[str, int]] | None = None
) -> Dropouts:
    off = tape.record.switched_off
    is_off = not options.has_dropout
    return Dropouts(tape.find_dropout, tape.is_in_step, off, place, is_off=is_off)


class _Seen(Exception):  # noqa: N818 - it ends a step, and is no error
    """The gradients of a step are known: the rest of it is not needed."""


def _by_parts(
    run: _Run,
    program: Program,
    where: tuple[int, Spot, int],
    parts: Sequence[Sequence[int]],
    modes: list[TorchFunctionMode],
) -> list[dict[str, torch.Tensor]]:
    """Return the single program's gradients at a step, by parts of an output."""
    last, spot, call = where
    session = program.start(Setting(run.options.dtype))
    tape = run.tapes[0] = Tape(session.parts)
    gate = _Gate(session.parts, spot, call)
    found: list[dict[str, torch.Tensor]] = []

    def see() -> None:
        found.append(_gradients(session.parts))
        raise _Seen

    with _dropouts(_dropouts_of(tape, run.options), modes):
        for index in range(last):
            torch.manual_seed(_TRAIN_SEED + index)
            with tape.step():
                session.step(index, lambda: None)
            _forget_gradients(session.parts)
        for elements in parts:
            gate.num_calls, gate.elements = 0, elements
            torch.manual_seed(_TRAIN_SEED + last)
            with tape.step(), suppress(_Seen):
                session.step(last, see)
            _forget_gradients(session.parts)
    return found


class _Gate:
    """Lets the gradient of one output flow through some of its elements only.

    Args:
        parts: The model, or its parts.
        spot: The output.
        call: Its call.
    """

    def __init__(self, parts: Sequence[Module], spot: Spot, call: int) -> None:
        self.num_calls = 0
        self.elements: Sequence[int] | None = None
        self._at = call, spot.index
        named = ((n, m) for part in parts for n, m in part.named_modules())
        module = next(each for name, each in named if plain_name(name) == spot.module)
        module.register_forward_hook(self._see)

    def _see(self, _module: Module, _args: object, out: object) -> None:
        call, index = self._at
        self.num_calls += 1
        if self.num_calls == call + 1:
            tree_flatten(out)[0][index].register_hook(self._cut)

    def _cut(self, gradient: torch.Tensor) -> torch.Tensor:
        if self.elements is None:
            return gradient
        mask = torch.zeros(gradient.numel(), dtype=gradient.dtype)
        mask[list(self.elements)] = 1
        return gradient * mask.view(gradient.shape).to(gradient.device)


def _rank(
    run: _Run,
    program: Program,
    layout: Layout,
    reference: Record,
    modes: list[TorchFunctionMode],
) -> Record:
    """Run the program on one rank of a layout."""
    sizes, names = tuple(layout.axes.values()), tuple(layout.axes)
    mesh = init_device_mesh("cuda", sizes, mesh_dim_names=names)
    setting = Setting(run.options.dtype, layout.sizes, mesh, reference.initial, reference.exported)
    session = program.start(setting)
    renamed = names_of(session.parts, reference, run.options.renamed)
    rank = dist.get_rank()
    tape = run.tapes[rank] = Tape(session.parts, single=reference, names=renamed)
    _train(session, tape, run.options, modes, (layout, layout.coordinates(rank)))
    return tape.record


@contextmanager
def _dropouts(mode: Dropouts, modes: list[TorchFunctionMode]) -> Iterator[None]:
    """Record and replace dropouts in a block, and in its backwards."""
    before = list(modes)
    modes.append(mode)
    try:
        with mode:
            yield
    finally:
        modes[:] = before


def _gradients(parts: Sequence[Module]) -> dict[str, torch.Tensor]:
    return {
        name: each.grad.detach().cpu().clone()
        for name, each in parameters_of(parts).items()
        if each.grad is not None
    }


def _forget_gradients(parts: Sequence[Module]) -> None:
    for part in parts:
        part.zero_grad(set_to_none=True)


@contextmanager
def _trials_paused(tapes: Mapping[int, Tape]) -> Iterator[None]:
    """Record nothing while stages of a pipeline find out shapes by trial."""
    stage: Any = import_module("torch.distributed.pipelining.stage").PipelineStage
    with ExitStack() as stack:
        for name in ("_prepare_forward_infra", "_prepare_backward_infra"):
            stack.enter_context(_wrapped(stage, name, tapes))
        yield


@contextmanager
def _wrapped(kind: Any, name: str, tapes: Mapping[int, Tape]) -> Iterator[None]:  # noqa: ANN401
    original = getattr(kind, name)

    @wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's own
        tape = tapes.get(dist.get_rank())
        with nullcontext() if tape is None else tape.paused():
            return original(*args, **kwargs)

    setattr(kind, name, run)
    try:
        yield
    finally:
        setattr(kind, name, original)
